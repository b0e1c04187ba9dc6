//! Space that was freed, but not yet for others.
//!
//! btrfs frees what was removed when it commits, which it does every half minute, and clears away a deleted subvolume
//! only after that. Until then `statfs` counts it as used, and who needs a new chunk may be told that there is none. So
//! a pool that is short of room commits often, and the daemon's own work waits for what is being cleared away before it
//! believes that the pool is full.

use std::io;
use std::time::Instant;

use super::Btrfs;
use super::pool::{Pool, open_dir};
use sandkeep_core::limits;
use sandkeep_sys::btrfs;

impl Pool {
    /// Commits until all deleted subvolumes are cleared away, or the time is over. `false`: there was nothing to clear
    /// away.
    pub fn reclaim(&self, deadline: Instant) -> io::Result<bool> {
        let mut freed = false;
        loop {
            // Opened anew each time: a descriptor that is held would keep the pool from being unmounted.
            let _mounted = self.keep_mounted();
            let volumes = self.volumes()?;
            let clearing = btrfs::is_clearing_away(&volumes)?;
            btrfs::commit(&volumes)?;
            freed |= clearing;
            if !clearing || Instant::now() >= deadline {
                return Ok(freed);
            }
            drop((volumes, _mounted));
            std::thread::sleep(limits::POOL_RECLAIM_POLL);
        }
    }

    /// Makes what was freed usable, if the pool is mounted.
    pub(super) fn commit(&self) -> io::Result<()> {
        let _mounted = self.keep_mounted();
        btrfs::commit(open_dir(self.path())?)
    }
}

impl Btrfs {
    /// Runs what makes a subvolume, and runs it again if there was no room and there is some now. A quota that is used
    /// up is an answer at once: only its owner can free something.
    pub(super) fn creating<T>(&self, mut create: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let deadline = Instant::now() + limits::POOL_RECLAIM_MAX;
        let mut first = true;
        loop {
            let full = match self.quotas.while_creating(&mut create) {
                Err(error) if error.kind() == io::ErrorKind::StorageFull => error,
                made => return made,
            };
            // Also where nothing is cleared away: what was removed from a volume is free after a commit.
            let more = self.pool.reclaim(deadline)? || self.pool.grow()? || first;
            if !more || Instant::now() >= deadline {
                return Err(full);
            }
            first = false;
        }
    }
}
