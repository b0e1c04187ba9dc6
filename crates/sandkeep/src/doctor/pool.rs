//! What a data directory owns in a ZFS pool.

use std::path::Path;

use super::{DoctorError, INSTANCE, Kind, LeakedResource, Owners, disk, during};
use sandkeep_home::Survey;
use sandkeep_storage::{Holding, Whose, ZfsStorage};

/// Datasets and snapshots belong to a sandbox, or are shared. A draft belongs to the task that creates it, so a daemon
/// must be running. A removed dataset belongs to those that depend on it, and to nobody once there are none.
pub fn found(
    data: &Path,
    survey: &Survey,
    owners: &Owners,
) -> Result<Vec<LeakedResource>, DoctorError> {
    let all = ZfsStorage::census(data).map_err(during("the pool"))?;
    if all.is_empty() {
        return Ok(Vec::new());
    }
    let recorded = disk::known_snapshots(data)?;
    let shared = || Some(INSTANCE.to_owned());
    let found = |Holding { name, whose }: Holding| {
        let (kind, owner, detail) = match whose {
            Whose::Shared => (Kind::Dataset, shared(), "shared"),
            Whose::Sandbox(id) => (Kind::Dataset, owners.of(id.as_str()), "of a volume"),
            Whose::Snapshot(id, snapshot) => {
                let is_recorded = recorded.contains(&(id.clone(), snapshot));
                let owner = owners.of(id.as_str()).filter(|_| is_recorded);
                (Kind::Snapshot, owner, "in the pool")
            }
            Whose::Draft => {
                let owner = survey.daemon_pid.and_then(|_| shared());
                (Kind::Dataset, owner, "a layer being created")
            }
            Whose::Needed => (Kind::Dataset, shared(), "removed; a clone still needs it"),
            Whose::Nobody(why) => (Kind::Dataset, None, why),
        };
        LeakedResource { kind, name, owner, detail: detail.to_owned() }
    };
    Ok(all.into_iter().map(found).collect())
}
