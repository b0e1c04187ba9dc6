//! Limits of scans in volumes.

use std::time::Duration;

use super::MIB;

/// The bench does not reuse a connection that was idle for this long; well below [`super::HEADERS_READ`].
pub const BENCH_IDLE: Duration = Duration::from_secs(5);

/// How often the daemon has the storage enforce its limits.
pub const TEND_INTERVAL: Duration = Duration::from_secs(5);
/// A tree that may have grown since it was measured is measured again after this time.
pub const TREE_LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Maximum size of an `/etc/hosts` file that is edited; a larger one is left as it is.
pub const HOSTS_MAX_BYTES: u64 = 64 * 1024;
/// How many extents of a tree are remembered while they are counted, so that none counts twice.
pub const EXTENTS_REMEMBERED_MAX: usize = 1024 * 1024;
/// What a tree over its limit may still write, once: removing files takes a little space, too. So does starting.
pub const FULL_TREE_HEADROOM_BYTES: u64 = MIB;

/// What one request may cost on the host: bytes of files that are read (including holes that must be transferred), and
/// time.
pub const TREE_WORK_MAX_BYTES: u64 = 64 * 1024 * MIB;
pub const TREE_WORK_MAX: Duration = Duration::from_secs(600);
/// How long a copy of a volume may take, for a snapshot, a fork, a rollback or a template.
pub const COPY_MAX: Duration = Duration::from_secs(3600);
/// How many trees the storage copies, measures or removes concurrently.
pub const STORAGE_LONG_MAX: usize = 64;
/// Concurrent requests that read or write the files of sandboxes; one organization alone gets half.
pub const TREE_WORK_AT_ONCE_MAX: usize = 64;

/// How often a copy of a volume is broken off for which a destroy waits, until it has ended.
pub const BREAK_OFF_EVERY: Duration = Duration::from_millis(50);
