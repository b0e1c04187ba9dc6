//! The size of everything that a subvolume's files refer to, by searching its tree. That takes a step for each file and
//! each extent, and reads no file content.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use super::SUBVOLUME_INODE;
use super::search::{EXTENT_DATA, Item, Key, LAST_SUBVOLUME, OWN_TREE, search_data};
use sandkeep_core::limits;

/// The size of a subvolume's references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub bytes: u64,
    /// The part that is freed if the subvolume releases it.
    pub own_bytes: u64,
}

/// Which transactions wrote which data. Written data is never overwritten in place, so its transaction identifies its
/// owner.
#[derive(Clone, Copy, Debug)]
pub struct Epochs {
    /// Data up to this transaction is in a layer, and not counted.
    pub base: u64,
    /// Data up to this transaction is also in a snapshot, or was charged to another subvolume.
    pub shared: u64,
}

/// The used part of a block, as numerator and denominator: a rule of thumb for trees with scattered changes.
const BLOCKS_PER_USED: (u64, u64) = (3, 2);
/// Size of an item in its block besides its data.
const ITEM_BYTES: u64 = 25;

/// The size of a subvolume, given by its root. The result is consistent only for a read-only one.
pub fn holding(subvolume: impl AsFd, epochs: Epochs) -> io::Result<Holding> {
    let first = Key { object: SUBVOLUME_INODE, kind: 0, offset: 0 };
    let last = Key { object: LAST_SUBVOLUME, kind: u32::from(u8::MAX), offset: u64::MAX };
    let mut count =
        Count { epochs, data: Holding::default(), items: Holding::default(), left: HashMap::new() };
    search_data(subvolume, OWN_TREE, first, last, epochs.base, |item| count.add(&item))?;
    Ok(count.sum())
}

struct Count {
    epochs: Epochs,
    data: Holding,
    items: Holding,
    /// The unreferenced rest of each extent, by its location.
    left: HashMap<u64, u64>,
}

impl Count {
    fn add(&mut self, item: &Item<'_>) {
        let bytes = ITEM_BYTES + item.data.len() as u64;
        self.items.bytes += bytes;
        if item.generation > self.epochs.shared {
            self.items.own_bytes += bytes;
        }
        if item.key.kind == EXTENT_DATA
            && let Some(extent) = Extent::read(item.data)
            && extent.generation > self.epochs.base
        {
            self.add_extent(&extent);
        }
    }

    /// An own extent counts completely, as it is charged. Of a shared one only the referenced part counts: while a file
    /// is rewritten from its beginning, ever less of the old one is referenced.
    fn add_extent(&mut self, extent: &Extent) {
        let own = extent.generation > self.epochs.shared;
        let known = self.left.get(&extent.place).copied();
        let left = known.unwrap_or(extent.disk_bytes);
        let taken = if own { left } else { left.min(extent.bytes) };
        // Beyond the limit, data with two references counts twice: too much, never too little.
        if known.is_some() || self.left.len() < limits::EXTENTS_REMEMBERED_MAX {
            self.left.insert(extent.place, left - taken);
        }
        self.data.bytes += taken;
        if own {
            self.data.own_bytes += taken;
        }
    }

    fn sum(&self) -> Holding {
        let (blocks, used) = BLOCKS_PER_USED;
        let whole = |data: u64, items: u64| data.saturating_add(items / used * blocks);
        Holding {
            bytes: whole(self.data.bytes, self.items.bytes),
            own_bytes: whole(self.data.own_bytes, self.items.own_bytes),
        }
    }
}

/// A part of a file with a location on disk.
pub(super) struct Extent {
    generation: u64,
    pub place: u64,
    pub disk_bytes: u64,
    /// The size of this part of the file.
    bytes: u64,
}

impl Extent {
    /// Parses a `btrfs_file_extent_item`. `None` for inline data and holes.
    pub fn read(data: &[u8]) -> Option<Self> {
        const INLINE: u8 = 0;
        let word = |at: usize| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
        if *data.get(20)? == INLINE {
            return None;
        }
        let (place, disk_bytes, bytes) = (word(21)?, word(29)?, word(45)?);
        (place != 0).then_some(Self { generation: word(0)?, place, disk_bytes, bytes })
    }
}
