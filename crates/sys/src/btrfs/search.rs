//! Searching the trees of a file system.
#![expect(unsafe_code, reason = "ioctls have no safe interface")]

use std::io;
use std::mem::size_of;
use std::os::fd::AsFd;

use rustix::ioctl::{Updater, ioctl, opcode};

use super::GROUP;

pub(super) const ROOT_TREE: u64 = 1;
pub(super) const CHUNK_TREE: u64 = 3;
pub(super) const QUOTA_TREE: u64 = 8;
/// Represents the subvolume of the descriptor.
pub(super) const OWN_TREE: u64 = 0;
pub(super) const EXTENT_DATA: u32 = 108;
pub(super) const ROOT_ITEM: u32 = 132;
pub(super) const ROOT_BACKREF: u32 = 144;
pub(super) const ROOT_REF: u32 = 156;
pub(super) const CHUNK_ITEM: u32 = 228;
pub(super) const QGROUP_INFO: u32 = 242;
pub(super) const QGROUP_RELATION: u32 = 246;
/// `BTRFS_FIRST_CHUNK_TREE_OBJECTID`
pub(super) const FIRST_CHUNK: u64 = 256;
/// `BTRFS_LAST_FREE_OBJECTID`
pub(super) const LAST_SUBVOLUME: u64 = u64::MAX - 255;

/// The key of an item in a tree. Keys are ordered by object, kind and offset, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub object: u64,
    pub kind: u32,
    pub offset: u64,
}

impl Key {
    /// The next possible key.
    fn after(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        // The kernel stores the kind in a byte.
        if self.kind < u32::from(u8::MAX) {
            return Some(Self { kind: self.kind + 1, offset: 0, ..self });
        }
        Some(Self { object: self.object.checked_add(1)?, kind: 0, offset: 0 })
    }
}

/// An item in a tree.
pub(super) struct Item<'a> {
    pub key: Key,
    /// The transaction that wrote its block.
    pub generation: u64,
    /// Empty if it is too large for the buffer.
    pub data: &'a [u8],
}

/// `btrfs_ioctl_search_args`
#[repr(C)]
struct SearchArgs {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transid: u64,
    max_transid: u64,
    min_kind: u32,
    max_kind: u32,
    items: u32,
    unused: u32,
    unused_words: [u64; 4],
    found: [u8; 3992],
}

/// `btrfs_ioctl_search_header`: transid, object, offset, kind, length.
const HEADER_LEN: usize = 32;

const _: () = assert!(size_of::<SearchArgs>() == 4096);

/// All keys of a tree from `first` to `last`, in order.
pub(super) fn search(
    filesystem: impl AsFd,
    tree: u64,
    first: Key,
    last: Key,
) -> io::Result<Vec<Key>> {
    let mut keys = Vec::new();
    search_data(filesystem, tree, first, last, 0, |item| keys.push(item.key))?;
    Ok(keys)
}

/// The same with the data, one at a time, and only from blocks changed in transaction `since` or later.
pub(super) fn search_data(
    filesystem: impl AsFd,
    tree: u64,
    first: Key,
    last: Key,
    since: u64,
    mut found: impl FnMut(Item<'_>),
) -> io::Result<()> {
    const OP: u32 = opcode::read_write::<SearchArgs>(GROUP, 17);
    let mut next = first;
    loop {
        let mut args = search_args(tree, next, last);
        args.min_transid = since;
        // SAFETY: the kernel reads and writes `args`, which has the layout the ioctl expects.
        unsafe { ioctl(&filesystem, Updater::<OP, SearchArgs>::new(&mut args)) }?;
        match read_items(&args, &mut found) {
            Some(key) if key < last => match key.after() {
                Some(after) => next = after,
                None => return Ok(()),
            },
            Some(_) | None => return Ok(()),
        }
    }
}

fn search_args(tree: u64, first: Key, last: Key) -> SearchArgs {
    SearchArgs {
        tree,
        min_object: first.object,
        max_object: last.object,
        min_offset: first.offset,
        max_offset: last.offset,
        min_transid: 0,
        max_transid: u64::MAX,
        min_kind: first.kind,
        max_kind: last.kind,
        items: u32::MAX,
        unused: 0,
        unused_words: [0; 4],
        found: [0; 3992],
    }
}

/// Passes the results on; returns the last key.
fn read_items(args: &SearchArgs, found: &mut impl FnMut(Item<'_>)) -> Option<Key> {
    let mut rest = &args.found[..];
    let mut last = None;
    for _ in 0..args.items {
        let Some((header, data)) = rest.split_at_checked(HEADER_LEN) else { break };
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        let key = Key { object: word(8), offset: word(16), kind: half(24) };
        let length = (half(28) as usize).min(data.len());
        let (data, after) = data.split_at(length);
        found(Item { key, generation: word(0), data });
        (last, rest) = (Some(key), after);
    }
    last
}
