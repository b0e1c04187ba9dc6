//! The host's disk outside of sandboxes: journals, uploads and temporary files of imports. All of it is in this node's
//! data directory, so each owner's share is counted in memory, starting from what is on disk when the daemon starts.
//! The files of sandboxes are counted by their rows ([`super::quota`]).
//!
//! The last part of the disk is reserved for the daemon's own records: without them nothing could be stopped or
//! destroyed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::{Policy, Quota};
use crate::error::Error;
use sandkeep_core::ledger::{Ledger, Over, Shares};
use sandkeep_core::limits;

/// The ledger of everything that the daemon stores for tenants in its data directory.
pub(crate) fn ledger(data: &Path, policy: &Policy) -> Arc<Ledger> {
    let quotas = &policy.quotas;
    let shares =
        Shares { organization_mb: host_mb(&quotas.organization), user_mb: host_mb(&quotas.user) };
    let disk = HostDisk {
        path: data.to_owned(),
        reserve_bytes: policy.host_reserve_bytes,
        last: Mutex::new(None),
    };
    Ledger::new("host_mb", shares, move |bytes| disk.room(bytes))
}

/// The default: as much outside of sandboxes and templates as inside them.
fn host_mb(quota: &Quota) -> Option<u64> {
    let usual = |disk_mb: u64| disk_mb.saturating_add(quota.template_mb.unwrap_or(0));
    quota.host_mb.or(quota.disk_mb.map(usual))
}

struct HostDisk {
    path: PathBuf,
    reserve_bytes: u64,
    /// When the free space was last read, and its value, minus what was taken since.
    last: Mutex<Option<(Instant, u64)>>,
}

impl HostDisk {
    fn room(&self, bytes: u64) -> Result<(), Over> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            last.filter(|(at, left)| at.elapsed() < limits::HOST_LOOK_FRESH && bytes <= *left);
        let (at, left) = match known {
            Some(known) => known,
            // A disk that does not answer will fail when it is written to.
            None => match rustix::fs::statvfs(&self.path) {
                Ok(found) => {
                    let free = found.f_bavail.saturating_mul(found.f_frsize);
                    (Instant::now(), free.saturating_sub(self.reserve_bytes))
                }
                Err(_) => return Ok(()),
            },
        };
        let enough = left.checked_sub(bytes);
        *last = Some((at, enough.unwrap_or(left)));
        match enough {
            Some(_) => Ok(()),
            None => Err(Over::Reserve { reserve_bytes: self.reserve_bytes }),
        }
    }
}

impl From<Over> for Error {
    fn from(over: Over) -> Self {
        match over {
            Over::Quota { whose, what, limit_mb, used_mb, asked_mb } => {
                let (limit, used, asked) = (limit_mb as f64, used_mb as f64, asked_mb as f64);
                Self::QuotaExceeded { whose, what, limit, used, asked }
            }
            Over::Bound { max_bytes } => {
                let limit = usize::try_from(max_bytes / limits::MIB).unwrap_or(usize::MAX);
                Self::LimitReached { what: "MiB of output kept for one sandbox", limit }
            }
            Over::Pool { storage, percent } => Self::PoolFull { storage, percent: percent as f64 },
            Over::Reserve { reserve_bytes } => {
                Self::HostFull { reserve_mb: reserve_bytes / limits::MIB }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_core::Owner;

    #[test]
    fn the_last_part_of_the_disk_is_not_for_tenants() {
        let dir = tempfile::tempdir().expect("a directory");
        let policy = Policy { host_reserve_bytes: u64::MAX, ..Policy::default() };
        let space = ledger(dir.path(), &policy).open(&Owner::local());
        assert!(matches!(space.take(1), Err(Over::Reserve { .. })));
        let policy = Policy { host_reserve_bytes: 0, ..Policy::default() };
        ledger(dir.path(), &policy)
            .open(&Owner::local())
            .take(1)
            .expect("there is room for a byte");
    }

    #[test]
    fn without_a_quota_of_its_own_it_is_that_of_sandboxes_and_templates() {
        let quota = Quota { disk_mb: Some(100), template_mb: Some(10), ..Quota::default() };
        assert_eq!(host_mb(&quota), Some(110));
        assert_eq!(host_mb(&Quota { host_mb: Some(7), ..quota }), Some(7));
        assert_eq!(host_mb(&Quota { disk_mb: None, ..quota }), None);
    }
}
