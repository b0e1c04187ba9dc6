//! What the files of a subvolume refer to, found by looking through its tree. That takes a step for each file and each
//! extent, and reads nothing of what is in them.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;

use super::SUBVOLUME_INODE;
use super::search::{EXTENT_DATA, Item, Key, LAST_SUBVOLUME, OWN_TREE, search_data};
use sandkeep_core::limits;

/// How much a subvolume refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    pub bytes: u64,
    /// Of that, what goes if the subvolume lets go of it.
    pub own_bytes: u64,
}

/// Which transactions wrote what. One that is written down is never written to again, so its number tells whose it is.
#[derive(Clone, Copy, Debug)]
pub struct Epochs {
    /// What was written until then is in a layer, and not counted.
    pub base: u64,
    /// What was written until then is also in a snapshot, or was charged to another subvolume.
    pub shared: u64,
}

/// How much of a block is in use, as numerator and denominator: a rule of thumb for trees that were changed here and there.
const BLOCKS_PER_USED: (u64, u64) = (3, 2);
/// What an item takes in its block besides its data.
const ITEM_BYTES: u64 = 25;

/// What a subvolume, given by its root, refers to. One that is written to meanwhile is in no single state, so the caller
/// looks at one that is read-only.
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
    /// How much of an extent nobody has referred to yet, by where it lies.
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

    /// One of its own counts whole, as it is charged. Of a shared one only what is referred to: while a file is written
    /// anew from its beginning, less and less of the old one is.
    fn add_extent(&mut self, extent: &Extent) {
        let own = extent.generation > self.epochs.shared;
        let known = self.left.get(&extent.place).copied();
        let left = known.unwrap_or(extent.disk_bytes);
        let taken = if own { left } else { left.min(extent.bytes) };
        // Past the bound what is referred to twice counts twice: too much, never too little.
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

/// A part of a file that lies somewhere on the disk.
pub(super) struct Extent {
    generation: u64,
    pub place: u64,
    pub disk_bytes: u64,
    /// How much of it this part of the file is.
    bytes: u64,
}

impl Extent {
    /// From a `btrfs_file_extent_item`. `None` for what is within the item itself, and for a hole.
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
