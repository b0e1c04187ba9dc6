//! Files on disk: rows, homes, volumes, sockets.

use std::collections::BTreeSet;
use std::path::Path;

use super::mounts::{ZFS_MOUNTS, sandbox_of};
use super::{DoctorError, Kind, LeakedResource, Owners, during, names};
use sandkeep_broker::RecordedCodebase;
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_guestlink::journal::{JOURNALS, journals_in};
use sandkeep_home::{self, Survey};
use sandkeep_store::{SqliteError, StoreError};

/// Where `local` storage moves the volumes that it removes.
const TRASH: &str = "storage/local/.trash";

/// The sandboxes in the registry; none if there is no registry, or an empty one, which a daemon leaves that is killed
/// during its first start.
pub fn rows(data: &Path) -> Result<Vec<SandboxId>, DoctorError> {
    match sandkeep_broker::registered(&data.join(sandkeep_home::REGISTRY)) {
        Err(StoreError::Unavailable(cause)) if is_empty(&*cause) => Ok(Vec::new()),
        rows => Ok(rows?),
    }
}

fn is_empty(cause: &(dyn std::error::Error + Send + Sync + 'static)) -> bool {
    matches!(cause.downcast_ref(), Some(SqliteError::Empty { .. }))
}

/// The volumes that are being removed, by their temporary names.
pub fn trash(data: &Path) -> Result<BTreeSet<String>, DoctorError> {
    Ok(names(&data.join(TRASH)).map_err(during("the volumes"))?.into_iter().collect())
}

/// Volumes that have been in the trash since the earlier scan and that a daemon should have removed. Later ones are
/// being removed now.
pub fn trash_found(
    data: &Path,
    since: &BTreeSet<String>,
) -> Result<Vec<LeakedResource>, DoctorError> {
    let left = |name: &String| LeakedResource {
        kind: Kind::Volume,
        name: name.clone(),
        owner: None,
        detail: format!("{TRASH}/{name}"),
    };
    Ok(trash(data)?.intersection(since).map(left).collect())
}

pub fn found(
    data: &Path,
    survey: &Survey,
    rows: &[SandboxId],
    owners: &Owners,
) -> Result<Vec<LeakedResource>, DoctorError> {
    let mut found = rows_found(survey, rows);
    found.extend(homes_found(data, survey, owners));
    // Each storage has directories with one entry per volume.
    for volumes in ["storage/local", "storage/local/.above", "storage/btrfs/volumes"] {
        for name in names(&data.join(volumes)).map_err(during("the volumes"))? {
            if name.starts_with('.') {
                continue;
            }
            let detail = format!("{volumes}/{name}");
            found.push(LeakedResource {
                kind: Kind::Volume,
                owner: owners.of(&name),
                name,
                detail,
            });
        }
    }
    for place in names(&data.join(ZFS_MOUNTS)).map_err(during("the volumes"))? {
        let (name, detail) = (sandbox_of(&place).to_owned(), format!("{ZFS_MOUNTS}/{place}"));
        found.push(LeakedResource { kind: Kind::Volume, owner: owners.of(&name), name, detail });
    }
    found.extend(snapshots_found(data, owners)?);
    for name in names(&data.join(sandkeep_home::RULES)).map_err(during("the servers of rules"))? {
        let detail = format!("{}/{name}", sandkeep_home::RULES);
        found.push(LeakedResource { kind: Kind::Socket, owner: owners.of(&name), name, detail });
    }
    // Without cgroups, a directory represents those of a sandbox.
    for name in names(&data.join(sandkeep_home::MADE)).map_err(during("the sandboxes made"))? {
        let detail = format!("{}/{name}", sandkeep_home::MADE);
        found.push(LeakedResource { kind: Kind::Cgroup, owner: owners.of(&name), name, detail });
    }
    Ok(found)
}

/// The codebases recorded in the registry.
pub fn codebases(data: &Path) -> Result<Vec<RecordedCodebase>, DoctorError> {
    match sandkeep_broker::recorded_codebases(&data.join(sandkeep_home::REGISTRY)) {
        Err(StoreError::Unavailable(cause)) if is_empty(&*cause) => Ok(Vec::new()),
        recorded => Ok(recorded?),
    }
}

/// The volumes of caches that builds use.
pub fn build_caches(data: &Path) -> Result<Vec<SandboxId>, DoctorError> {
    match sandkeep_broker::recorded_build_caches(&data.join(sandkeep_home::REGISTRY)) {
        Err(StoreError::Unavailable(cause)) if is_empty(&*cause) => Ok(Vec::new()),
        recorded => Ok(recorded?),
    }
}

/// Nothing but its volume belongs to a codebase, so its row needs no other owner.
pub fn row_of_codebase(codebase: &RecordedCodebase) -> LeakedResource {
    let (name, owner) = (codebase.id.to_string(), Some(codebase.id.to_string()));
    LeakedResource { kind: Kind::Row, name, owner, detail: "registry".to_owned() }
}

/// The snapshots recorded in the registry.
pub fn recorded_snapshots(data: &Path) -> Result<Vec<(SandboxId, SnapshotId)>, DoctorError> {
    match sandkeep_broker::recorded_snapshots(&data.join(sandkeep_home::REGISTRY)) {
        Err(StoreError::Unavailable(cause)) if is_empty(&*cause) => Ok(Vec::new()),
        recorded => Ok(recorded?),
    }
}

/// The same, with what codebases are compared with: that is in their own rows.
pub fn known_snapshots(data: &Path) -> Result<Vec<(SandboxId, SnapshotId)>, DoctorError> {
    let bases = codebases(data)?.into_iter();
    let bases = bases.filter_map(|codebase| Some((codebase.id.volume(), codebase.base?)));
    Ok(recorded_snapshots(data)?.into_iter().chain(bases).collect())
}

/// A snapshot belongs to its volume's sandbox, if the registry lists it. Each sandbox has one directory for its
/// snapshots; an empty one without an owner is a leftover, too. A record belongs to its sandbox.
fn snapshots_found(data: &Path, owners: &Owners) -> Result<Vec<LeakedResource>, DoctorError> {
    let (recorded, known) = (recorded_snapshots(data)?, known_snapshots(data)?);
    let row = |(sandbox, snapshot): &(SandboxId, SnapshotId)| {
        let owner = owners.of(sandbox.as_str());
        LeakedResource {
            kind: Kind::Row,
            name: snapshot.to_string(),
            owner,
            detail: "registry".to_owned(),
        }
    };
    let mut found: Vec<LeakedResource> = recorded.iter().map(row).collect();
    for room in ["storage/local/.snapshots", "storage/btrfs/snapshots"] {
        for sandbox in names(&data.join(room)).map_err(during("the snapshots"))? {
            let owner = owners.of(&sandbox);
            let place = format!("{room}/{sandbox}");
            let snapshots = names(&data.join(&place)).map_err(during("the snapshots"))?;
            if snapshots.is_empty() && owner.is_none() {
                let (kind, name) = (Kind::Snapshot, sandbox.clone());
                found.push(LeakedResource { kind, name, owner: None, detail: place.clone() });
            }
            let is_recorded = |name: &str| {
                known.iter().any(|(of, id)| of.as_str() == sandbox && id.as_str() == name)
            };
            found.extend(snapshots.into_iter().map(|name| {
                let owner = owner.clone().filter(|_| is_recorded(&name));
                let detail = format!("{place}/{name}");
                LeakedResource { kind: Kind::Snapshot, name, owner, detail }
            }));
        }
    }
    Ok(found)
}

/// A row owns itself if its sandbox has a home; that of a sandbox being created or removed may be missing.
fn rows_found(survey: &Survey, rows: &[SandboxId]) -> Vec<LeakedResource> {
    let with_home = |id: &SandboxId| survey.homes.iter().any(|home| home.id == *id);
    let row = |id: &SandboxId| LeakedResource {
        kind: Kind::Row,
        name: id.to_string(),
        owner: with_home(id).then(|| id.to_string()),
        detail: "registry".to_owned(),
    };
    rows.iter().map(row).collect()
}

fn homes_found(data: &Path, survey: &Survey, owners: &Owners) -> Vec<LeakedResource> {
    let mut found = Vec::new();
    for home in &survey.homes {
        let name = home.id.to_string();
        let owner = owners.of(&name);
        let detail = match &home.phase {
            Ok(phase) => format!("{phase:?}").to_lowercase(),
            Err(why) => why.to_string(),
        };
        let socket = sandkeep_home::Home::new(data, home.id.clone(), String::new())
            .path()
            .join(sandkeep_home::GUEST_SOCKET);
        if socket.exists() {
            let detail = socket.display().to_string();
            let (name, owner) = (name.clone(), owner.clone());
            found.push(LeakedResource { kind: Kind::Socket, name, owner, detail });
        }
        found.extend(journals_found(data, &home.id, owner.as_ref()));
        found.push(LeakedResource { kind: Kind::Home, name, owner, detail });
    }
    let strange = survey.strange.iter().map(|name| (name, "not a sandbox name"));
    let put_aside = survey.quarantined.iter().map(|name| (name, "quarantined: inspect it"));
    for (name, detail) in strange.chain(put_aside) {
        let (name, detail) = (name.clone(), detail.to_owned());
        found.push(LeakedResource { kind: Kind::Home, name, owner: None, detail });
    }
    found
}

/// The journals in a home belong to it; other files among them have no owner.
fn journals_found(data: &Path, id: &SandboxId, owner: Option<&String>) -> Vec<LeakedResource> {
    let home = sandkeep_home::Home::new(data, id.clone(), String::new());
    // A home that is being removed is checked again.
    let there = journals_in(&home.path().join(JOURNALS)).unwrap_or_default();
    let found = |name: String, owner: Option<String>| {
        let detail = format!("{JOURNALS}/{name} of {id}");
        LeakedResource { kind: Kind::Journal, name, owner, detail }
    };
    let journals = there.journals.into_keys().map(|exec| found(exec.to_string(), owner.cloned()));
    let strange = there.strange.into_iter().map(|name| found(name, None));
    journals.chain(strange).collect()
}
