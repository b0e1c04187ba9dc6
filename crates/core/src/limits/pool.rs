//! The size of the pool of `btrfs` storage, and fill levels of every pool.

use std::time::Duration;

use super::MIB;

/// The smallest pool image of `btrfs` storage, and the largest initial size of a new one unless configured.
pub const POOL_MIN_BYTES: u64 = 256 * MIB;
pub const POOL_START_BYTES: u64 = 1024 * MIB;
/// A new pool takes this part of the disk's free space, within those bounds.
pub const POOL_START_SHARE: u64 = 16;
/// The space that a pool keeps free for fast writers: a quarter of what is used, within these bounds. A small pool
/// keeps half of its size.
pub const POOL_HEADROOM_MIN_BYTES: u64 = 512 * MIB;
pub const POOL_HEADROOM_MAX_BYTES: u64 = 4096 * MIB;
/// The space that a pool keeps out of chunks, as a part of its size, at most this: metadata needs new chunks too.
pub const POOL_UNALLOCATED_SHARE: u64 = 8;
pub const POOL_UNALLOCATED_MAX_BYTES: u64 = 1024 * MIB;
/// The least metadata chunks of a pool that can grow. A new filesystem has less.
pub const POOL_METADATA_MIN_BYTES: u64 = 16 * MIB;
/// How often the free space of a pool is checked. A sandbox can write a few hundred megabytes in that time.
pub const POOL_LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often a pool that is short of room makes what was removed usable: the filesystem itself does so every half
/// minute.
pub const POOL_COMMIT_INTERVAL: Duration = Duration::from_millis(500);
/// How long the daemon's own work waits for space that is being freed before it is told that the pool is full, and how
/// often it looks.
pub const POOL_RECLAIM_MAX: Duration = Duration::from_secs(10);
pub const POOL_RECLAIM_POLL: Duration = Duration::from_millis(20);
/// The size of a pool changes in steps of this, or of a part of its size if that is more. A pool grows by less only
/// if there is no more to be had, and never by less than the minimum.
pub const POOL_STEP_BYTES: u64 = 1024 * MIB;
pub const POOL_GROW_SHARE: u64 = 4;
pub const POOL_GROW_MIN_BYTES: u64 = 64 * MIB;
/// A pool shrinks in pieces of this size, once it has had more than twice its reserved free space for this long.
pub const POOL_PIECE_BYTES: u64 = 64 * MIB;
pub const POOL_SPARE_FOR: Duration = Duration::from_secs(10);
/// A growing pool leaves this much of the disk free.
pub const POOL_HOST_RESERVE_BYTES: u64 = 1024 * MIB;
/// Default maximum size of a pool.
pub const POOL_GROWN_MAX_BYTES: u64 = 256 * 1024 * MIB;
/// The used fraction of the pool above which health reports a warning, and above which the daemon is not ready and
/// creates nothing new; defaults. A pool with more than these bytes free never counts as that full: 4 % of a large disk
/// is plenty.
pub const POOL_WARNING: f64 = 0.85;
pub const POOL_CRITICAL: f64 = 0.95;
pub const POOL_WARNING_FREE_BYTES: u64 = 16 * 1024 * MIB;
pub const POOL_CRITICAL_FREE_BYTES: u64 = 1024 * MIB;
