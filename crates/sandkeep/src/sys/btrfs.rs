//! Btrfs by its ioctls: subvolumes, quotas, and looking into its trees. Safe functions over plain
//! descriptors; nothing here decides anything.
#![expect(unsafe_code, reason = "ioctls have no safe interface")]

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

/// Names a subvolume within its filesystem; it never means another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubvolumeId(pub u64);

/// The inode number of the root of every subvolume.
pub const SUBVOLUME_INODE: u64 = 256;
/// `f_type` of `statfs`.
pub const MAGIC: i64 = 0x9123_683E;

const GROUP: u8 = 0x94;
const NAME_MAX: usize = 255;

/// `btrfs_ioctl_vol_args`
#[repr(C)]
struct VolArgs {
    fd: i64,
    name: [u8; 4088],
}

/// `btrfs_ioctl_vol_args_v2`
#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    inherit_size: u64,
    inherit: *const QgroupInherit,
    unused: [u64; 2],
    /// A name, or, with [`SPEC_BY_ID`], the subvolume's id in the first eight bytes.
    name: [u8; 4040],
}

const READ_ONLY: u64 = 1 << 1;
const QGROUP_INHERIT: u64 = 1 << 2;
const SPEC_BY_ID: u64 = 1 << 4;

/// `btrfs_qgroup_inherit` with no qgroups to inherit from, only a limit to set.
#[repr(C)]
#[derive(Default)]
struct QgroupInherit {
    flags: u64,
    num_qgroups: u64,
    num_ref_copies: u64,
    num_excl_copies: u64,
    limit_flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    rsv_referenced: u64,
    rsv_exclusive: u64,
}

const INHERIT_SET_LIMITS: u64 = 1;
const LIMIT_MAX_REFERENCED: u64 = 1;

/// `btrfs_ioctl_quota_ctl_args`
#[repr(C)]
struct QuotaCtl {
    command: u64,
    status: u64,
}

const QUOTA_ENABLE_SIMPLE: u64 = 4;

/// `btrfs_ioctl_qgroup_create_args`
#[repr(C)]
struct QgroupCreate {
    create: u64,
    id: u64,
}

/// `btrfs_ioctl_get_subvol_info_args`: 504 bytes, of which the first word is the id.
#[repr(C)]
struct SubvolInfo {
    id: u64,
    rest: [u64; 62],
}

/// `btrfs_ioctl_fs_info_args`
#[repr(C)]
struct FsInfo {
    max_id: u64,
    num_devices: u64,
    fsid: [u8; 16],
    rest: [u64; 124],
}

const _: () = assert!(size_of::<VolArgs>() == 4096 && size_of::<VolArgsV2>() == 4096);
const _: () = assert!(size_of::<QgroupInherit>() == 72 && size_of::<SubvolInfo>() == 504);
const _: () = assert!(size_of::<FsInfo>() == 1024 && size_of::<SearchArgs>() == 4096);

/// Makes an empty subvolume in a directory. With a limit it is there from the first byte: the kernel
/// sets both in one transaction.
pub fn create_subvolume(
    parent: impl AsFd,
    name: &CStr,
    limit_bytes: Option<u64>,
) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgsV2>(GROUP, 24);
    let inherit = limit(limit_bytes);
    let args = with_limit(by_name(name)?, inherit.as_ref());
    // SAFETY: the kernel reads `args`, and `inherit` through it, which lives until the end of this
    // function; both have the layout the ioctl expects.
    unsafe { ioctl(parent, Setter::<OP, VolArgsV2>::new(args)) }?;
    Ok(())
}

/// Makes a subvolume in a directory that holds what `source`, the root of another, holds now. They share
/// it until one changes. A limit is as in [`create_subvolume`].
pub fn snapshot_subvolume(
    parent: impl AsFd,
    name: &CStr,
    source: impl AsFd,
    limit_bytes: Option<u64>,
) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgsV2>(GROUP, 23);
    let inherit = limit(limit_bytes);
    let mut args = with_limit(by_name(name)?, inherit.as_ref());
    args.fd = i64::from(source.as_fd().as_raw_fd());
    // SAFETY: the kernel reads `args`, and `inherit` through it, which lives until the end of this
    // function; both have the layout the ioctl expects, and `source` is open for as long.
    unsafe { ioctl(parent, Setter::<OP, VolArgsV2>::new(args)) }?;
    Ok(())
}

/// Nothing can be changed in a subvolume from now on; it can still be removed.
pub fn make_read_only(subvolume: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::write::<u64>(GROUP, 26);
    // SAFETY: the kernel only reads the flags, a word.
    unsafe { ioctl(subvolume, Setter::<OP, u64>::new(READ_ONLY)) }?;
    Ok(())
}

fn limit(limit_bytes: Option<u64>) -> Option<QgroupInherit> {
    limit_bytes.map(|max_referenced| QgroupInherit {
        flags: INHERIT_SET_LIMITS,
        limit_flags: LIMIT_MAX_REFERENCED,
        max_referenced,
        ..QgroupInherit::default()
    })
}

/// The caller keeps `inherit` until the kernel has read it.
fn with_limit(mut args: VolArgsV2, inherit: Option<&QgroupInherit>) -> VolArgsV2 {
    if let Some(inherit) = inherit {
        args.flags |= QGROUP_INHERIT;
        args.inherit_size = size_of::<QgroupInherit>() as u64;
        args.inherit = std::ptr::from_ref(inherit);
    }
    args
}

/// Removes a subvolume by its name in a directory. `ENOTEMPTY` if it holds other subvolumes.
pub fn delete_subvolume(parent: impl AsFd, name: &CStr) -> io::Result<()> {
    destroy(parent, by_name(name)?)
}

/// Removes a subvolume wherever it is in the filesystem.
pub fn delete_subvolume_by_id(filesystem: impl AsFd, id: SubvolumeId) -> io::Result<()> {
    let mut args = by_name(c"")?;
    args.flags = SPEC_BY_ID;
    args.name[..8].copy_from_slice(&id.0.to_ne_bytes());
    destroy(filesystem, args)
}

fn destroy(directory: impl AsFd, args: VolArgsV2) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgsV2>(GROUP, 63);
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(directory, Setter::<OP, VolArgsV2>::new(args)) }?;
    Ok(())
}

fn by_name(name: &CStr) -> io::Result<VolArgsV2> {
    let bytes = name.to_bytes();
    if bytes.len() > NAME_MAX {
        return Err(io::Error::from(rustix::io::Errno::NAMETOOLONG));
    }
    let mut args = VolArgsV2 {
        fd: 0,
        transid: 0,
        flags: 0,
        inherit_size: 0,
        inherit: std::ptr::null(),
        unused: [0; 2],
        name: [0; 4040],
    };
    args.name[..bytes.len()].copy_from_slice(bytes);
    Ok(args)
}

/// The subvolume that a file is in.
pub fn subvolume_id(file: impl AsFd) -> io::Result<SubvolumeId> {
    const OP: u32 = opcode::read::<SubvolInfo>(GROUP, 60);
    // SAFETY: the kernel fills a `SubvolInfo`, of which every bit pattern is valid.
    let info = unsafe { ioctl(file, Getter::<OP, SubvolInfo>::new()) }?;
    Ok(SubvolumeId(info.id))
}

/// The filesystem's own id, as in its superblock.
pub fn filesystem_id(file: impl AsFd) -> io::Result<[u8; 16]> {
    const OP: u32 = opcode::read::<FsInfo>(GROUP, 31);
    // SAFETY: the kernel fills an `FsInfo`, of which every bit pattern is valid.
    let info = unsafe { ioctl(file, Getter::<OP, FsInfo>::new()) }?;
    Ok(info.fsid)
}

/// Makes the filesystem as large as its device. Nothing happens if it is.
pub fn grow_to_device(filesystem: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgs>(GROUP, 3);
    let mut args = VolArgs { fd: 0, name: [0; 4088] };
    args.name[..3].copy_from_slice(b"max");
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Setter::<OP, VolArgs>::new(args)) }?;
    Ok(())
}

/// Turns simple quotas on. Nothing happens if quotas are on; `EINVAL` before Linux 6.7.
pub fn enable_simple_quotas(filesystem: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::read_write::<QuotaCtl>(GROUP, 40);
    let mut args = QuotaCtl { command: QUOTA_ENABLE_SIMPLE, status: 0 };
    // SAFETY: the kernel reads and writes `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Updater::<OP, QuotaCtl>::new(&mut args)) }?;
    Ok(())
}

/// Removes the quota group of a subvolume. The caller makes sure that the subvolume is gone.
pub fn remove_quota_group(filesystem: impl AsFd, id: SubvolumeId) -> io::Result<()> {
    change_quota_group(filesystem, QgroupCreate { create: 0, id: id.0 })
}

/// Makes a quota group without a subvolume, as an older kernel would leave it. The kernel takes only ids
/// below those of subvolumes.
#[cfg(test)]
pub fn create_quota_group(filesystem: impl AsFd, id: SubvolumeId) -> io::Result<()> {
    change_quota_group(filesystem, QgroupCreate { create: 1, id: id.0 })
}

fn change_quota_group(filesystem: impl AsFd, args: QgroupCreate) -> io::Result<()> {
    const OP: u32 = opcode::write::<QgroupCreate>(GROUP, 42);
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Setter::<OP, QgroupCreate>::new(args)) }?;
    Ok(())
}

/// The subvolumes directly within a subvolume.
pub fn children(filesystem: impl AsFd, parent: SubvolumeId) -> io::Result<Vec<SubvolumeId>> {
    let key = |offset| Key { object: parent.0, kind: ROOT_REF, offset };
    let found = search(filesystem, ROOT_TREE, key(0), key(u64::MAX))?;
    Ok(found.into_iter().map(|key| SubvolumeId(key.offset)).collect())
}

/// All subvolumes, also those that are deleted but not yet cleared away.
pub fn subvolumes(filesystem: impl AsFd) -> io::Result<Vec<SubvolumeId>> {
    let first = Key { object: SUBVOLUME_INODE, kind: ROOT_ITEM, offset: 0 };
    let last = Key { object: LAST_SUBVOLUME, kind: ROOT_ITEM, offset: u64::MAX };
    let found = search(filesystem, ROOT_TREE, first, last)?;
    let items = found.into_iter().filter(|key| key.kind == ROOT_ITEM);
    Ok(items.map(|key| SubvolumeId(key.object)).collect())
}

/// The subvolumes, but for the top level, that have a quota group, whether or not they still exist.
pub fn quota_groups(filesystem: impl AsFd) -> io::Result<Vec<SubvolumeId>> {
    let key = |offset| Key { object: 0, kind: QGROUP_INFO, offset };
    let found = search(filesystem, QUOTA_TREE, key(TOP_LEVEL + 1), key(LAST_LEVEL_0))?;
    Ok(found.into_iter().map(|key| SubvolumeId(key.offset)).collect())
}

const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
const ROOT_ITEM: u32 = 132;
const ROOT_REF: u32 = 156;
const QGROUP_INFO: u32 = 242;
/// The subvolume that a filesystem begins with.
const TOP_LEVEL: u64 = 5;
/// `BTRFS_LAST_FREE_OBJECTID`
const LAST_SUBVOLUME: u64 = u64::MAX - 255;
/// The upper 16 bits of a quota group's id are its level.
const LAST_LEVEL_0: u64 = (1 << 48) - 1;

/// The key of an item in a tree. Keys are ordered by object, kind and offset, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    object: u64,
    kind: u32,
    offset: u64,
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

/// All keys of a tree from `first` to `last`, in order.
fn search(filesystem: impl AsFd, tree: u64, first: Key, last: Key) -> io::Result<Vec<Key>> {
    const OP: u32 = opcode::read_write::<SearchArgs>(GROUP, 17);
    let mut keys = Vec::new();
    let mut next = first;
    loop {
        let mut args = search_args(tree, next, last);
        // SAFETY: the kernel reads and writes `args`, which has the layout the ioctl expects.
        unsafe { ioctl(&filesystem, Updater::<OP, SearchArgs>::new(&mut args)) }?;
        let before = keys.len();
        read_keys(&args, &mut keys);
        match keys[before..].last() {
            Some(key) if *key < last => next = Key { offset: key.offset.saturating_add(1), ..*key },
            Some(_) | None => return Ok(keys),
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

fn read_keys(args: &SearchArgs, keys: &mut Vec<Key>) {
    let mut rest = &args.found[..];
    for _ in 0..args.items {
        let Some((header, data)) = rest.split_at_checked(HEADER_LEN) else { return };
        let word = |at: usize| u64::from_ne_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        let half = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("4 bytes"));
        keys.push(Key { object: word(8), offset: word(16), kind: half(24) });
        rest = data.get(half(28) as usize..).unwrap_or_default();
    }
}
