//! Codebases: named trees of an owner, on volumes of their own.
//!
//! ```text
//! create   row `creating` ─▶ volume ─▶ `tree`, its source ─▶ row `ready`
//! delete   row `deleting` ─▶ volume removed ─▶ row removed
//! ```
//!
//! A row that is not `ready` is a full intent: the next daemon removes its volume, and the row after it. The row is
//! named by owner and name, so the store itself keeps names unique.
//!
//! A volume holds one directory, [`TREE`], which is all that sandboxes and file operations see of it. The host never
//! opens a file in it: sandboxes may change anything there at any time. The API's file operations are carried out by
//! the toolbox in a jail (`files`).

mod changes;
mod content;
mod files;
mod jail;
mod mounting;
mod refusals;
mod revoke;
mod row;
mod serving;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tracing::{info, warn};

use crate::Broker;
use crate::error::Error;
use crate::health;
use crate::policy::slots::{Slots, check_share};
use crate::records::rows;
use crate::shared::Shared;
use row::Row;
use sandkeep_core::api::{CodebaseState, CreateCodebase};
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::{
    CodebaseId, CodebaseRef, Principal, SandboxId, SnapshotId, api, failpoint, limits, within,
};
use sandkeep_storage::{Base, Quota};
use sandkeep_store::{SqliteStore, StoreError};
use sandkeep_tree::{Ids, Root};

pub(crate) use mounting::{
    adopt, is_served, mounts, replace_served, served_alone, served_now, wanted,
};
pub(crate) use serving::{end as end_server, tell_refusals};

/// The part of a volume that is the codebase.
const TREE: &str = "tree";

/// All codebases of this node.
pub(crate) struct Codebases {
    all: Mutex<BTreeMap<CodebaseId, Row>>,
    /// Places for work on their files.
    work: Slots,
    /// Who keeps the rules that mounts cannot keep.
    serving: serving::Serving,
}

impl Default for Codebases {
    fn default() -> Self {
        let work = Slots::new(
            "file operations on codebases at once of one organization",
            limits::CODEBASE_WORK_AT_ONCE_MAX,
        );
        Self { all: Mutex::default(), work, serving: serving::Serving::default() }
    }
}

impl Codebases {
    /// Held for a look or one change; nothing panics meanwhile.
    fn all(&self) -> MutexGuard<'_, BTreeMap<CodebaseId, Row>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The codebase that a principal means: its own first, then others that it may see.
    fn find(&self, who: &Principal, which: &CodebaseRef) -> Result<Row, Error> {
        let all = self.all();
        let missing = || Error::CodebaseNotFound { text: which.to_string() };
        let mut found: Vec<&Row> = all
            .values()
            .filter(|row| who.may_see(&row.owner))
            .filter(|row| [row.id.as_str(), row.name.as_str()].contains(&which.as_str()))
            .collect();
        let own = who.owner(None).ok();
        found.sort_by_key(|row| (Some(&row.owner) != own.as_ref(), row.created_at));
        found.first().map(|row| (*row).clone()).ok_or_else(missing)
    }

    /// The same, if it can be used.
    fn ready(&self, who: &Principal, which: &CodebaseRef) -> Result<Row, Error> {
        let row = self.find(who, which)?;
        row.check_ready()?;
        Ok(row)
    }

    /// The volumes of all codebases.
    pub fn volumes(&self) -> Vec<SandboxId> {
        self.all().keys().map(CodebaseId::volume).collect()
    }

    fn admit(&self, row: Row) -> Result<(), Error> {
        let mut all = self.all();
        if let Some(same) = all.values().find(|other| other.is_namesake(&row)) {
            return Err(Error::CodebaseExists { name: row.name, holder: same.id.clone() });
        }
        let of_user = |other: &&Row| {
            (&other.owner.organization, &other.owner.user)
                == (&row.owner.organization, &row.owner.user)
        };
        if all.values().filter(of_user).count() >= limits::CODEBASES_PER_USER_MAX {
            let (what, limit) = ("codebases of one user", limits::CODEBASES_PER_USER_MAX);
            return Err(Error::LimitReached { what, limit });
        }
        let of_organization = |other: &&Row| other.owner.organization == row.owner.organization;
        let own = all.values().filter(of_organization).count();
        check_share(("codebases of one organization", limits::CODEBASES_MAX), all.len(), own)?;
        all.insert(row.id.clone(), row);
        Ok(())
    }

    fn set_state(&self, id: &CodebaseId, state: CodebaseState) {
        if let Some(row) = self.all().get_mut(id) {
            row.state = state;
        }
    }

    fn remove(&self, id: &CodebaseId) {
        self.all().remove(id);
    }
}

/// Takes up what an earlier daemon left, before anything is made.
pub(crate) async fn begin(shared: &Arc<Shared>) -> Result<(), Error> {
    for row in row::all(shared).await? {
        match row.state {
            CodebaseState::Ready => drop(shared.codebases.all().insert(row.id.clone(), row)),
            CodebaseState::Creating | CodebaseState::Deleting => {
                let (id, name) = (row.id.clone(), row.name.clone());
                match discard(shared, &row).await {
                    Ok(()) => info!(%id, %name, "removed what was left of a codebase"),
                    Err(error) => {
                        warn!(%id, %name, %error, "cannot remove what is left of a codebase");
                        shared.codebases.all().insert(id, row);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Tries again to remove what could not be removed.
pub(crate) async fn sweep(shared: &Arc<Shared>) {
    let rest: Vec<Row> = {
        let all = shared.codebases.all();
        all.values().filter(|row| row.failed_to_go).cloned().collect()
    };
    for row in rest {
        match discard(shared, &row).await {
            Ok(()) => shared.codebases.remove(&row.id),
            Err(error) => warn!(id = %row.id, %error, "cannot remove a codebase"),
        }
    }
}

/// Removes everything of a codebase whose row says that it is to go, the row last. May be repeated.
async fn discard(shared: &Shared, row: &Row) -> Result<(), Error> {
    shared.storage.destroy(&row.id.volume()).await?;
    failpoint!("codebase.delete_after_volume");
    rows::remove(shared.store.as_ref(), &row.key(), None).await?;
    failpoint!("codebase.delete_after_row");
    Ok(())
}

/// A codebase as the registry has it.
pub struct RecordedCodebase {
    pub id: CodebaseId,
    /// The one snapshot of its volume.
    pub base: Option<SnapshotId>,
}

/// The codebases in the registry at `path`, for a read-only caller.
pub fn recorded_codebases(path: &Path) -> Result<Vec<RecordedCodebase>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &row::prefix())?;
    let rows = listing.entries.iter().filter_map(|entry| Row::read(&entry.value));
    Ok(rows.map(|Row { id, base, .. }| RecordedCodebase { id, base }).collect())
}

/// Where the files of a codebase are on the host, and how the ids of their owners are stored.
async fn tree_of(shared: &Shared, id: &CodebaseId) -> Result<(PathBuf, Ids), Error> {
    let root = shared.storage.root(&id.volume()).await?;
    Ok((tree_in(&root), root.ids()))
}

fn tree_in(root: &Root) -> PathBuf {
    root.own_dir().join(TREE)
}

/// The sandboxes that have each codebase, oldest first.
fn all_users(shared: &Shared) -> HashMap<CodebaseId, Vec<SandboxId>> {
    let mut handles = shared.handles();
    handles.sort_by_key(|handle| handle.meta().created_at);
    let mut users: HashMap<CodebaseId, Vec<SandboxId>> = HashMap::new();
    for handle in handles {
        if let Some(mounted) = handle.meta().spec.codebase() {
            users.entry(mounted.codebase.clone()).or_default().push(handle.id.clone());
        }
    }
    users
}

fn users(shared: &Shared, id: &CodebaseId) -> Vec<SandboxId> {
    all_users(shared).remove(id).unwrap_or_default()
}

fn view(row: Row, sandboxes: Vec<SandboxId>) -> api::Codebase {
    let Row { id, name, state, owner, disk_mb, created_at, .. } = row;
    api::Codebase { id, name, state, owner, disk_mb, created_at, sandboxes }
}

impl Broker {
    /// Creates a codebase. It is created completely or not at all, whether or not the caller still waits.
    pub async fn create_codebase(
        &self,
        who: &Principal,
        draft: CreateCodebase,
    ) -> Result<api::Codebase, Error> {
        let shared = Arc::clone(&self.shared);
        if shared.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let other = |error: sandkeep_core::OtherProject| Error::InvalidField {
            field: "project",
            problem: error.to_string(),
        };
        let owner = who.owner(draft.project.as_deref()).map_err(other)?;
        let disk_mb = disk_limit(&shared, draft.disk_mb)?;
        health::refuse_when_full(&shared).await?;
        let opened = content::open(&shared, who, draft.source.as_ref()).await?;
        let row = Row::new(&shared, draft.name, owner, disk_mb);
        shared.codebases.admit(row.clone())?;
        let tasks = shared.tasks.clone();
        let made = tasks.spawn(async move {
            if let Err(refused) = row.create(&shared).await {
                shared.codebases.remove(&row.id);
                return Err(refused);
            }
            match make(&shared, &row, opened).await {
                Ok(made) => {
                    shared.codebases.all().insert(made.id.clone(), made);
                    tell(
                        &shared,
                        &row,
                        EventKind::CodebaseCreated {
                            codebase: row.id.clone(),
                            name: row.name.clone(),
                        },
                    );
                    let row = row.in_state(CodebaseState::Ready);
                    Ok(view(row, Vec::new()))
                }
                Err(cause) => {
                    give_up(&shared, &row).await;
                    Err(cause)
                }
            }
        });
        made.await.unwrap_or(Err(Error::ShuttingDown))
    }

    /// The codebases that this principal may see, by name.
    pub fn codebases(&self, who: &Principal) -> Vec<api::Codebase> {
        let mut rows: Vec<Row> = self.shared.codebases.all().values().cloned().collect();
        rows.retain(|row| who.may_see(&row.owner));
        rows.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        let mut users = all_users(&self.shared);
        let with_users = |row: Row| {
            let sandboxes = users.remove(&row.id).unwrap_or_default();
            view(row, sandboxes)
        };
        rows.into_iter().map(with_users).collect()
    }

    pub fn codebase(&self, who: &Principal, which: &CodebaseRef) -> Result<api::Codebase, Error> {
        let row = self.shared.codebases.find(who, which)?;
        let sandboxes = users(&self.shared, &row.id);
        Ok(view(row, sandboxes))
    }

    /// Deletes a codebase that no sandbox has.
    pub async fn delete_codebase(&self, who: &Principal, which: &CodebaseRef) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let row = shared.codebases.ready(who, which)?;
        // From here on no sandbox gets it: a create that is under way looks again once it is among those that are
        // counted here.
        shared.codebases.set_state(&row.id, CodebaseState::Deleting);
        let users = users(&shared, &row.id);
        if !users.is_empty() {
            shared.codebases.set_state(&row.id, CodebaseState::Ready);
            return Err(Error::CodebaseInUse { name: row.name, users });
        }
        let tasks = shared.tasks.clone();
        let deleted = tasks.spawn(async move {
            let going = row.in_state(CodebaseState::Deleting);
            if let Err(error) = going.write(&shared).await {
                shared.codebases.set_state(&going.id, CodebaseState::Ready);
                return Err(error);
            }
            failpoint!("codebase.delete_after_intent");
            if let Err(error) = discard(&shared, &going).await {
                shared
                    .codebases
                    .all()
                    .entry(going.id.clone())
                    .and_modify(|row| row.failed_to_go = true);
                return Err(error);
            }
            shared.codebases.remove(&going.id);
            tell(
                &shared,
                &going,
                EventKind::CodebaseDeleted { codebase: going.id.clone(), name: going.name.clone() },
            );
            Ok(())
        });
        deleted.await.unwrap_or(Err(Error::ShuttingDown))
    }
}

fn tell(shared: &Shared, row: &Row, kind: EventKind) {
    shared.emit(&Subject { owner: row.owner.clone(), sandbox: None }, &kind);
}

/// The size limit of a new codebase: what was asked for is kept or refused, a default is no promise.
fn disk_limit(shared: &Shared, asked: Option<u64>) -> Result<Option<u64>, Error> {
    let Some(disk_mb) = asked else { return Ok(shared.host.disk_default_mb) };
    if !shared.storage.capabilities().disk_quota {
        let storage = shared.storage.name();
        return Err(Error::StorageLacks { what: "disk_mb", needs: "disk_quota", storage });
    }
    within("disk_mb", disk_mb, limits::DISK_MIN_MB..=limits::DISK_MAX_MB, "allowed at most")?;
    Ok(Some(disk_mb))
}

/// Everything after the intent.
async fn make(shared: &Arc<Shared>, row: &Row, opened: content::Opened) -> Result<Row, Error> {
    failpoint!("codebase.after_intent");
    let bytes = row.disk_mb.map(|mb| mb.saturating_mul(limits::MIB));
    let quota = Quota { tree_bytes: bytes, total_bytes: None };
    let root = shared.storage.create(&row.id.volume(), &Base::Empty, &quota).await?;
    failpoint!("codebase.after_volume");
    let base = opened.is_some() && shared.storage.capabilities().snapshots;
    content::fill(shared, root, opened).await?;
    failpoint!("codebase.after_source");
    let mut made = row.clone().in_state(CodebaseState::Ready);
    if base {
        let snapshot = SnapshotId::random();
        shared.storage.snapshot(&row.id.volume(), &snapshot).await?;
        made.base = Some(snapshot);
        failpoint!("codebase.after_base");
    }
    made.write(shared).await?;
    failpoint!("codebase.after_outcome");
    Ok(made)
}

/// Removes what was made of a codebase that failed.
async fn give_up(shared: &Arc<Shared>, row: &Row) {
    shared.codebases.set_state(&row.id, CodebaseState::Deleting);
    match discard(shared, row).await {
        Ok(()) => shared.codebases.remove(&row.id),
        Err(error) => {
            warn!(id = %row.id, %error, "cannot remove what a failed create left");
            shared.codebases.all().entry(row.id.clone()).and_modify(|row| row.failed_to_go = true);
        }
    }
}
