//! Bounds for layers while they are written. The size of a layer is known only when it is complete, so its draft is
//! bounded during writing: by what remains of the owner's quotas (all drafts of the owner together), and by the
//! critical mark of the pool.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::quota::{self, Coming};
use super::record::{Record, Whose};
use crate::error::Error;
use crate::health;
use crate::shared::Shared;
use sandkeep_core::ledger::{Over, Reservation};
use sandkeep_core::{TemplateName, limits};
use sandkeep_image::layer::SpaceCheck;

/// The space of one import or build.
pub struct DraftRoom {
    pool: PoolRoom,
    /// `None` for shared templates.
    quota: Option<Reservation>,
    entries: AtomicU64,
}

/// Space in the pool, as long as it is not critically full.
pub struct PoolRoom {
    shared: Arc<Shared>,
    /// Bytes written since the last check, and in total.
    unseen: AtomicU64,
    written: AtomicU64,
    /// Free space at the beginning.
    first: OnceLock<u64>,
    refused: OnceLock<Over>,
}

impl DraftRoom {
    pub fn new(
        shared: &Arc<Shared>,
        whose: &Whose,
        name: &TemplateName,
        all: &[(Whose, Record)],
    ) -> Arc<Self> {
        let quota = match whose {
            Whose::Own(owner) => {
                let beside = quota::used(all, Coming { owner, name, record: None });
                Some(shared.images.drafts.open_beside(owner, beside))
            }
            Whose::Shared => None,
        };
        let pool = PoolRoom::new(shared);
        Arc::new(Self { pool, quota, entries: AtomicU64::new(0) })
    }

    /// For the writer of a layer.
    pub fn as_room(self: &Arc<Self>) -> SpaceCheck {
        let room = Arc::clone(self);
        SpaceCheck::asking(move |bytes, entries| room.take(bytes, entries).map_err(full))
    }

    /// Reserves space for the next write. Blocks now and then.
    fn take(&self, bytes: u64, entries: u64) -> Result<(), Over> {
        self.pool.take(bytes)?;
        let before = self.entries.fetch_add(entries, Ordering::Relaxed);
        let counted = |entries: u64| entries.saturating_sub(limits::DRAFT_ENTRIES_FREE);
        let files = counted(before + entries) - counted(before);
        self.hold(bytes + files * limits::DRAFT_ENTRY_BYTES)
    }

    /// The same for a sandbox's files: they are in the pool already, and are only attributed to a template.
    pub fn hold(&self, bytes: u64) -> Result<(), Over> {
        self.quota.as_ref().map_or(Ok(()), |quota| quota.take(bytes))
    }

    /// For whoever decodes an archive to see what it is, before anything of it is written.
    pub fn as_decoder(self: &Arc<Self>) -> impl Fn(u64) -> io::Result<()> + Send + Sync + 'static {
        let room = Arc::clone(self);
        move |bytes| {
            if room.pool.shared.closing.is_cancelled() {
                Err(io::Error::other("the daemon ends"))
            } else {
                room.could_hold(bytes).map_err(full)
            }
        }
    }

    /// Whether an archive of so many bytes can fit at all. That of an image may hold some times what is taken of it.
    /// Blocks.
    fn could_hold(&self, bytes: u64) -> Result<(), Over> {
        let least = bytes / limits::ARCHIVE_SURPLUS;
        self.hold(least)?;
        if let Some(quota) = &self.quota {
            quota.give(least);
        }
        self.pool.could_hold(least)
    }

    /// Why it had to stop, if it had to.
    pub fn refused(&self) -> Option<Over> {
        let quota = self.quota.as_ref().and_then(Reservation::refused);
        quota.or_else(|| self.pool.refused())
    }
}

impl PoolRoom {
    pub fn new(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        let (unseen, written) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
        Self { shared, unseen, written, first: OnceLock::new(), refused: OnceLock::new() }
    }

    /// For the writer of a volume.
    pub fn as_room(self: &Arc<Self>) -> SpaceCheck {
        let room = Arc::clone(self);
        SpaceCheck::asking(move |bytes, _| room.take(bytes).map_err(full))
    }

    fn take(&self, bytes: u64) -> Result<(), Over> {
        let written = self.written.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let unseen = self.unseen.load(Ordering::Relaxed).saturating_add(bytes);
        if unseen < limits::DRAFT_LOOK_BYTES {
            self.unseen.store(unseen, Ordering::Relaxed);
            return Ok(());
        }
        self.unseen.store(0, Ordering::Relaxed);
        // Bytes written a moment ago are still in memory, and the pool does not count them yet.
        self.look(|free| free.min(self.first.get_or_init(|| free).saturating_sub(written)))
    }

    fn could_hold(&self, bytes: u64) -> Result<(), Over> {
        self.look(|free| free.saturating_sub(bytes))
    }

    fn look(&self, left: impl Fn(u64) -> u64) -> Result<(), Over> {
        match health::over_critical_mark(&self.shared, left) {
            None => Ok(()),
            Some(over) => {
                let _ = self.refused.set(over);
                Err(over)
            }
        }
    }

    pub fn refused(&self) -> Option<Over> {
        self.refused.get().copied()
    }
}

fn full(over: Over) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, over)
}

/// Replaces an error with the limit that caused it.
pub fn told<T>(result: Result<T, Error>, refused: Option<Over>) -> Result<T, Error> {
    result.map_err(|error| refused.map_or(error, Error::from))
}
