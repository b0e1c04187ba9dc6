//! The free space of a btrfs file system, from sysfs. Unlike `statfs`, that includes data that is written but not yet
//! on disk; and it needs no descriptor on the file system, so it never prevents unmounting.

use std::io;
use std::path::Path;

use super::quota::{number, sysfs};
use sandkeep_core::limits;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Space for sandboxes' data.
    Data,
    /// Space outside all chunks.
    Chunks,
    Nothing,
    /// There is more than will be needed soon.
    Less,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolSpace {
    /// Data, including reservations for data that is being written.
    pub used_bytes: u64,
    /// Size of the data chunks.
    pub data_bytes: u64,
    /// Size of the metadata chunks.
    pub metadata_bytes: u64,
    /// Size of all chunks.
    pub allocated_bytes: u64,
}

impl PoolSpace {
    /// `None` if the file system is not mounted.
    pub fn of(filesystem_id: [u8; 16]) -> io::Result<Option<Self>> {
        match Self::read(&sysfs(filesystem_id).join("allocation")) {
            Ok(room) => Ok(Some(room)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(shown: &Path) -> io::Result<Self> {
        let used = |kind: &str| -> io::Result<u64> {
            let taken = ["used", "may_use", "reserved", "pinned", "readonly"];
            taken.iter().map(|how| number(&shown.join(kind), &format!("bytes_{how}"))).sum()
        };
        let [data_bytes, metadata_bytes, system_bytes] =
            ["data", "metadata", "system"].map(|kind| number(&shown.join(kind), "disk_total"));
        let (data_bytes, metadata_bytes) = (data_bytes?, metadata_bytes?);
        Ok(Self {
            used_bytes: used("data")?,
            data_bytes,
            metadata_bytes,
            allocated_bytes: data_bytes + metadata_bytes + system_bytes?,
        })
    }

    /// The free space to keep. A pool whose minimum is small keeps less.
    fn headroom_bytes(&self, smallest_bytes: u64) -> u64 {
        let least = limits::POOL_HEADROOM_MIN_BYTES.min(smallest_bytes / 2);
        (self.used_bytes / 4).clamp(least, limits::POOL_HEADROOM_MAX_BYTES)
    }

    /// What a pool of this size, with this minimum, has too little or too much of.
    pub fn need(&self, pool_bytes: u64, smallest_bytes: u64) -> Need {
        let unallocated = pool_bytes.saturating_sub(self.allocated_bytes);
        let in_chunks = self.data_bytes.saturating_sub(self.used_bytes);
        let free = unallocated.saturating_add(in_chunks);
        let headroom = self.headroom_bytes(smallest_bytes.min(pool_bytes));
        let share = pool_bytes / limits::POOL_UNALLOCATED_SHARE;
        let share = share.min(limits::POOL_UNALLOCATED_MAX_BYTES);
        // The data chunks are nearly full, and the next chunk would be one of them.
        if free < headroom || (unallocated < share && in_chunks < 2 * headroom) {
            Need::Data
        } else if unallocated < share {
            Need::Chunks
        } else if unallocated >= 2 * share
            // A piece may need a chunk of its own.
            && free >= 2 * headroom + 2 * limits::POOL_PIECE_BYTES
        {
            Need::Less
        } else {
            Need::Nothing
        }
    }

    /// Whether there is room for a new chunk, which takes at most a tenth of the pool. Otherwise moving metadata could
    /// leave the file system without any.
    pub fn can_move_metadata(&self, pool_bytes: u64) -> bool {
        let unallocated = pool_bytes.saturating_sub(self.allocated_bytes);
        unallocated >= pool_bytes / limits::POOL_UNALLOCATED_SHARE
    }
}
