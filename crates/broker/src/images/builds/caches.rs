//! Caches that steps of builds mount: one volume for each owner and id.
//!
//! ```text
//! first use   row `unready` ─▶ volume ─▶ its directory ─▶ row `ready`
//! removal     row `unready` ─▶ volume removed ─▶ row removed
//! ```
//!
//! Their content may be lost at any time, so a row that is not `ready`, or whose volume is gone, is simply begun anew.
//! They count towards the `template_mb` of their owner and give way to templates: what does not fit beside those is
//! removed, the least recently used first.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;
use tracing::{info, warn};

use super::steps::Builder;
use crate::error::Error;
use crate::images::quota;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::{Owner, SandboxId, failpoint, limits};
use sandkeep_image::recipe::Sharing;
use sandkeep_storage::{Base, Quota, StorageError};
use sandkeep_store::{Entry, Key, Prefix, SqliteStore, StateStore as _, StoreError};
use sandkeep_tree::{Ids, digest::Digest};

/// The first segment of every row's key.
const CACHES: &str = "build-caches";
/// The part of a volume that steps see.
const TREE: &str = "tree";

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    /// The node that has its volume.
    node: Option<String>,
    volume: SandboxId,
    state: State,
    bytes: u64,
    used_at: jiff::Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Unready,
    Ready,
}

impl Row {
    fn read(entry: &Entry) -> Option<Self> {
        // An unreadable row counts as missing.
        serde_json::from_slice(&entry.value).ok()
    }

    async fn write(&self, shared: &Shared, key: &Key) -> Result<(), StoreError> {
        let value = serde_json::to_vec(self).expect("a row holds only strings and numbers");
        rows::replace(shared.store.as_ref(), key, value).await.map(drop)
    }
}

/// A cache as a step wants it. Mode and owner are those of a new one.
pub struct CacheWanted<'a> {
    pub id: &'a str,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

/// A cache in use.
pub struct CacheUse {
    pub tree: PathBuf,
    pub ids: Ids,
    key: Key,
    _hold: Hold,
}

/// A lock, held until it is dropped.
type Hold = Box<dyn Send + Sync>;

/// Who uses which cache. Only caches that are used now are in it, or were when it was last tidied.
#[derive(Default)]
pub struct Holds(Mutex<HashMap<Key, Arc<RwLock<()>>>>);

impl Holds {
    fn of(&self, key: &Key) -> Arc<RwLock<()>> {
        let mut holds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holds.retain(|_, hold| Arc::strong_count(hold) > 1);
        Arc::clone(holds.entry(key.clone()).or_default())
    }

    /// `None` if it is in use, and the caller shall not wait.
    async fn take(&self, key: &Key, sharing: Sharing) -> Option<Hold> {
        let hold = self.of(key);
        match sharing {
            Sharing::Shared => Some(Box::new(hold.read_owned().await)),
            Sharing::Locked => Some(Box::new(hold.write_owned().await)),
            Sharing::Private => hold.try_write_owned().ok().map(|held| Box::new(held) as Hold),
        }
    }
}

fn key_of(owner: &Owner, id: &str) -> Key {
    let Owner { organization, user, project } = owner;
    // An id may be a path.
    Key::new([CACHES, organization, user, project, &Digest::of(id.as_bytes()).hex()])
}

impl Builder<'_> {
    /// Opens a cache, and creates it if it is not there. `None` if it is private and in use.
    pub async fn open_cache(
        &self,
        wanted: &CacheWanted<'_>,
        sharing: Sharing,
    ) -> Result<Option<CacheUse>, Error> {
        let shared = &self.broker.shared;
        let key = key_of(&self.owner, wanted.id);
        let images = &shared.images;
        let Some(_hold) = images.cache_holds.take(&key, sharing).await else { return Ok(None) };
        let _only = images.layers.join(key.clone()).await;
        let before = shared.store.get(&key).await?.as_ref().and_then(Row::read);
        let found = match &before {
            Some(row) if row.state == State::Ready => root_of(shared, &row.volume).await?,
            Some(_) | None => None,
        };
        let (tree, ids) = match found {
            Some(found) => found,
            None => self.create_cache(&key, before, wanted).await?,
        };
        Ok(Some(CacheUse { tree, ids, key, _hold }))
    }

    async fn create_cache(
        &self,
        key: &Key,
        before: Option<Row>,
        wanted: &CacheWanted<'_>,
    ) -> Result<(PathBuf, Ids), Error> {
        let shared = &self.broker.shared;
        if let Some(before) = before {
            discard(shared, key, before).await?;
        }
        let (node, volume) = (shared.node(), SandboxId::random());
        let used_at = shared.clock.wall();
        let row = Row { node, volume, state: State::Unready, bytes: 0, used_at };
        row.write(shared, key).await?;
        failpoint!("build.after_cache_row");
        let quota = if shared.storage.capabilities().disk_quota {
            Quota::of_tree(self.cache_max_bytes())
        } else {
            Quota::NONE
        };
        let root = shared.storage.create(&row.volume, &Base::Empty, &quota).await?;
        let made = root.make_top_dir(TREE, wanted.uid, wanted.gid, wanted.mode);
        made.map_err(|source| {
            let what = "make the directory of a cache".to_owned();
            StorageError::Io { storage: "build", what, source }
        })?;
        failpoint!("build.after_cache_volume");
        Row { state: State::Ready, ..row }.write(shared, key).await?;
        Ok((root.own_dir().join(TREE), root.ids()))
    }

    /// No cache may be larger than all that its owner may have.
    fn cache_max_bytes(&self) -> u64 {
        let quotas = &self.broker.shared.policy.quotas;
        let most = [&quotas.user, &quotas.organization].into_iter().filter_map(|q| q.template_mb);
        let most = most.map(|mb| mb.saturating_mul(limits::MIB)).min().unwrap_or(u64::MAX);
        most.clamp(limits::MIB, limits::BUILD_CACHE_MOUNT_MAX_BYTES)
    }

    /// Notes what a step left in its caches.
    pub async fn note_caches(&self, caches: &[CacheUse]) -> Result<(), Error> {
        let shared = &self.broker.shared;
        for CacheUse { key, .. } in caches {
            let Some(row) = shared.store.get(key).await?.as_ref().and_then(Row::read) else {
                continue;
            };
            let bytes = shared.storage.usage(&row.volume).await?.tree.used_bytes;
            let row = Row { bytes, used_at: shared.clock.wall(), ..row };
            row.write(shared, key).await?;
        }
        Ok(())
    }
}

async fn root_of(shared: &Shared, volume: &SandboxId) -> Result<Option<(PathBuf, Ids)>, Error> {
    match shared.storage.root(volume).await {
        Ok(root) => {
            let tree = root.own_dir().join(TREE);
            Ok(tree.is_dir().then(|| (tree, root.ids())))
        }
        Err(StorageError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Removes a cache that nobody uses. May be repeated.
async fn discard(shared: &Shared, key: &Key, row: Row) -> Result<(), Error> {
    let row = Row { state: State::Unready, ..row };
    row.write(shared, key).await?;
    shared.storage.destroy(&row.volume).await?;
    rows::remove(shared.store.as_ref(), key, None).await?;
    Ok(())
}

async fn all(shared: &Shared) -> Result<Vec<(Key, Row)>, StoreError> {
    let entries = shared.store.list(&Prefix::new([CACHES])).await?.entries;
    let read = |entry: &Entry| Row::read(entry).map(|row| (entry.key.clone(), row));
    let here = |(_, row): &(Key, Row)| !shared.is_elsewhere(row.node.as_deref());
    Ok(entries.iter().filter_map(read).filter(here).collect())
}

/// The volumes of all caches of this node.
pub async fn volumes(shared: &Shared) -> Result<Vec<SandboxId>, StoreError> {
    Ok(all(shared).await?.into_iter().map(|(_, row)| row.volume).collect())
}

/// The same in the registry at `path`, for a read-only caller.
pub fn recorded(path: &Path) -> Result<Vec<SandboxId>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &Prefix::new([CACHES]))?;
    Ok(listing.entries.iter().filter_map(Row::read).map(|row| row.volume).collect())
}

/// Removes caches that are too many or too large, or do not fit beside the templates of their owners.
pub async fn trim(shared: &Shared) -> Result<(), Error> {
    let mut rows = all(shared).await?;
    rows.sort_by_key(|(_, row)| std::cmp::Reverse(row.used_at));
    let records = shared.images.records.all().await?;
    let mut budgets = Budgets::default();
    let quotas = &shared.policy.quotas;
    for (key, row) in rows {
        let segments = key.segments();
        let [_, organization, user, ..] = &segments[..] else { continue };
        let of_organization = |owner: &Owner| owner.organization == *organization;
        let of_user = |owner: &Owner| of_organization(owner) && owner.user == *user;
        let room = |mb: Option<u64>, used: u64| {
            mb.map_or(u64::MAX, |mb| mb.saturating_mul(limits::MIB).saturating_sub(used))
        };
        let user_room = room(quotas.user.template_mb, quota::bytes_of(&records, of_user));
        let organization_room =
            room(quotas.organization.template_mb, quota::bytes_of(&records, of_organization));
        let fits = budgets.take(organization, organization_room, user, user_room, row.bytes);
        if fits && row.state == State::Ready {
            continue;
        }
        // One that is in use stays; it is judged again when its step is over.
        if let Ok(_alone) = shared.images.cache_holds.of(&key).try_write_owned() {
            info!(bytes = row.bytes, "removing a cache of builds");
            discard(shared, &key, row).await?;
        }
    }
    Ok(())
}

/// The same where nothing else depends on it.
pub async fn trim_or_warn(shared: &Shared) {
    if let Err(error) = trim(shared).await {
        warn!(%error, "cannot remove caches of builds; it will be tried after the next");
    }
}

/// What the caches that stay take up, by whose they are.
#[derive(Default)]
struct Budgets {
    organizations: BTreeMap<String, u64>,
    /// Their number, too.
    users: BTreeMap<(String, String), (u64, usize)>,
    all_bytes: u64,
}

impl Budgets {
    /// Counts one more, if it fits.
    fn take(
        &mut self,
        organization: &str,
        organization_room: u64,
        user: &str,
        user_room: u64,
        bytes: u64,
    ) -> bool {
        let of_organization = self.organizations.entry(organization.to_owned()).or_default();
        let whose = (organization.to_owned(), user.to_owned());
        let (of_user, count) = self.users.entry(whose).or_default();
        let fits = bytes <= limits::BUILD_CACHE_MOUNT_MAX_BYTES
            && *count < limits::BUILD_CACHE_MOUNTS_PER_USER_MAX
            && *of_user + bytes <= user_room
            && *of_organization + bytes <= organization_room
            && self.all_bytes + bytes <= limits::BUILD_CACHE_MOUNTS_MAX_BYTES;
        if fits {
            *of_organization += bytes;
            (*of_user, *count) = (*of_user + bytes, *count + 1);
            self.all_bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_stay_while_they_fit_beside_templates() {
        let mut budgets = Budgets::default();
        let mut take =
            |user: &str, room: u64, bytes: u64| budgets.take("acme", 100, user, room, bytes);
        assert!(take("ann", 50, 40));
        assert!(!take("ann", 50, 20), "that is more than she may have");
        assert!(take("ann", 50, 10), "a smaller one fits");
        assert!(take("bob", u64::MAX, 50));
        assert!(!take("bob", u64::MAX, 1), "the organization has no more");
        assert!(!take("bob", u64::MAX, limits::BUILD_CACHE_MOUNT_MAX_BYTES + 1));
    }

    #[test]
    fn one_user_has_no_more_than_so_many_caches() {
        let mut budgets = Budgets::default();
        for _ in 0..limits::BUILD_CACHE_MOUNTS_PER_USER_MAX {
            assert!(budgets.take("acme", u64::MAX, "ann", u64::MAX, 1));
        }
        assert!(!budgets.take("acme", u64::MAX, "ann", u64::MAX, 0));
        assert!(budgets.take("acme", u64::MAX, "bob", u64::MAX, 1));
    }

    #[tokio::test]
    async fn a_locked_cache_is_waited_for_and_a_private_one_is_not() {
        let holds = Holds::default();
        let key = key_of(&Owner::local(), "/c");
        let first = holds.take(&key, Sharing::Shared).await.expect("it is free");
        let second = holds.take(&key, Sharing::Shared).await.expect("it is shared");
        assert!(holds.take(&key, Sharing::Private).await.is_none());
        let locked = holds.take(&key, Sharing::Locked);
        tokio::pin!(locked);
        assert!(futures_util::poll!(&mut locked).is_pending());
        drop((first, second));
        let locked = locked.await.expect("they are gone");
        assert!(holds.take(&key, Sharing::Private).await.is_none());
        drop(locked);
        assert!(holds.take(&key, Sharing::Private).await.is_some());
    }
}
