//! Btrfs ioctls: subvolumes, quotas, and tree searches. Safe functions over plain descriptors; no policy.
#![expect(unsafe_code, reason = "ioctls have no safe interface")]

pub mod holding;
pub mod places;
pub mod quota;
mod search;

use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _};

use rustix::ioctl::{Getter, Setter, Updater, ioctl, opcode};

use quota::{Charged, QgroupInherit};
use search::{Key, LAST_SUBVOLUME, ROOT_BACKREF, ROOT_ITEM, ROOT_REF, ROOT_TREE, search};

/// Identifies a subvolume within its file system; ids are never reused.
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
    /// A name or, with [`SPEC_BY_ID`], the subvolume's id in the first eight bytes.
    name: [u8; 4040],
}

const READ_ONLY: u64 = 1 << 1;
const QGROUP_INHERIT: u64 = 1 << 2;
const SPEC_BY_ID: u64 = 1 << 4;

/// `btrfs_ioctl_get_subvol_info_args`
#[repr(C)]
struct SubvolInfo {
    id: u64,
    name: [u8; 256],
    parent: u64,
    directory: u64,
    generation: u64,
    flags: u64,
    uuid: [u8; 16],
    parent_uuid: [u8; 16],
    received_uuid: [u8; 16],
    changed: u64,
    made: u64,
    rest: [u64; 18],
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
const _: () = assert!(size_of::<SubvolInfo>() == 504 && size_of::<FsInfo>() == 1024);

/// Whether a subvolume's content can be changed. A read-only one can still be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Write,
    ReadOnly,
}

/// Creates an empty subvolume in a directory. Charging applies from the first byte: the kernel sets everything up in
/// one transaction.
pub fn create_subvolume(parent: impl AsFd, name: &CStr, charged: Charged) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgsV2>(GROUP, 24);
    let inherit = QgroupInherit::of(charged);
    let args = with_limit(by_name(name)?, inherit.as_ref());
    // SAFETY: the kernel reads `args`, and `inherit` through it, which lives until the end of this
    // function; both have the layout the ioctl expects.
    unsafe { ioctl(parent, Setter::<OP, VolArgsV2>::new(args)) }?;
    Ok(())
}

/// Creates a subvolume in a directory with the present content of `source`, the root of another. Data is shared until
/// one changes. Charging is as in [`create_subvolume`]. When this returns, it is on disk with everything written to the
/// source before: the kernel creates it only during a commit.
pub fn snapshot_subvolume(
    parent: impl AsFd,
    name: &CStr,
    source: impl AsFd,
    access: Access,
    charged: Charged,
) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgsV2>(GROUP, 23);
    let inherit = QgroupInherit::of(charged);
    let mut args = with_limit(by_name(name)?, inherit.as_ref());
    if access == Access::ReadOnly {
        args.flags |= READ_ONLY;
    }
    args.fd = i64::from(source.as_fd().as_raw_fd());
    // SAFETY: the kernel reads `args`, and `inherit` through it, which lives until the end of this
    // function; both have the layout the ioctl expects, and `source` is open for as long.
    unsafe { ioctl(parent, Setter::<OP, VolArgsV2>::new(args)) }?;
    Ok(())
}

/// Makes a subvolume read-only; it can still be removed.
pub fn make_read_only(subvolume: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::write::<u64>(GROUP, 26);
    // SAFETY: the kernel only reads the flags, a word.
    unsafe { ioctl(subvolume, Setter::<OP, u64>::new(READ_ONLY)) }?;
    Ok(())
}

/// The caller keeps `inherit` alive until the kernel has read it.
fn with_limit(mut args: VolArgsV2, inherit: Option<&QgroupInherit>) -> VolArgsV2 {
    if let Some(inherit) = inherit {
        args.flags |= QGROUP_INHERIT;
        args.inherit_size = inherit.len_bytes();
        args.inherit = std::ptr::from_ref(inherit);
    }
    args
}

/// Removes a subvolume by its name in a directory. `ENOTEMPTY` if it contains other subvolumes.
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

/// Facts about a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subvolume {
    pub id: SubvolumeId,
    /// It was created as a snapshot of another.
    pub is_clone: bool,
    /// The transaction that created it.
    pub made: u64,
}

/// The subvolume that contains a file.
pub fn subvolume_id(file: impl AsFd) -> io::Result<SubvolumeId> {
    Ok(subvolume(file)?.id)
}

/// The subvolume that contains a file.
pub fn subvolume(file: impl AsFd) -> io::Result<Subvolume> {
    const OP: u32 = opcode::read::<SubvolInfo>(GROUP, 60);
    // SAFETY: the kernel fills a `SubvolInfo`, of which every bit pattern is valid.
    let info = unsafe { ioctl(file, Getter::<OP, SubvolInfo>::new()) }?;
    let is_clone = info.parent_uuid != [0; 16];
    Ok(Subvolume { id: SubvolumeId(info.id), is_clone, made: info.made })
}

/// The filesystem's own id, as in its superblock.
pub fn filesystem_id(file: impl AsFd) -> io::Result<[u8; 16]> {
    const OP: u32 = opcode::read::<FsInfo>(GROUP, 31);
    // SAFETY: the kernel fills an `FsInfo`, of which every bit pattern is valid.
    let info = unsafe { ioctl(file, Getter::<OP, FsInfo>::new()) }?;
    Ok(info.fsid)
}

/// Commits everything done to the file system so far: names, subvolumes and written-back data, but not dirty pages.
/// `syncfs` would first write all of those, of every process.
pub fn commit(filesystem: impl AsFd) -> io::Result<()> {
    const START: u32 = opcode::read::<u64>(GROUP, 24);
    const WAIT: u32 = opcode::write::<u64>(GROUP, 22);
    // SAFETY: the kernel fills the transaction's number, a word.
    let transaction = unsafe { ioctl(&filesystem, Getter::<START, u64>::new()) }?;
    // SAFETY: the kernel only reads the number.
    unsafe { ioctl(&filesystem, Setter::<WAIT, u64>::new(transaction)) }?;
    Ok(())
}

/// Grows the mounted file system to the size of its device. Does nothing if it has it.
pub fn grow_to_device(filesystem: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::write::<VolArgs>(GROUP, 3);
    let mut args = VolArgs { fd: 0, name: [0; 4088] };
    args.name[..3].copy_from_slice(b"max");
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects; the descriptor is open.
    match unsafe { libc::ioctl(filesystem.as_fd().as_raw_fd(), libc::Ioctl::from(OP), &args) } {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        // A special return value: another resize or a balance is running.
        _ => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

/// Moves all metadata to new chunks, whose size follows that of the filesystem.
pub fn relocate_metadata(filesystem: impl AsFd) -> io::Result<()> {
    /// `btrfs_ioctl_balance_args`, as far as it is used.
    #[repr(C)]
    struct BalanceArgs {
        flags: u64,
        rest: [u64; 127],
    }
    const _: () = assert!(size_of::<BalanceArgs>() == 1024);
    const OP: u32 = opcode::read_write::<BalanceArgs>(GROUP, 32);
    const METADATA: u64 = 1 << 2;
    let mut args = BalanceArgs { flags: METADATA, rest: [0; 127] };
    // SAFETY: the kernel reads and fills `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Updater::<OP, BalanceArgs>::new(&mut args)) }?;
    Ok(())
}

/// The subvolumes directly within a subvolume.
pub fn children(filesystem: impl AsFd, parent: SubvolumeId) -> io::Result<Vec<SubvolumeId>> {
    let key = |offset| Key { object: parent.0, kind: ROOT_REF, offset };
    let found = search(filesystem, ROOT_TREE, key(0), key(u64::MAX))?;
    Ok(found.into_iter().map(|key| SubvolumeId(key.offset)).collect())
}

/// All subvolumes, including deleted ones that are not cleaned up yet.
pub fn subvolumes(filesystem: impl AsFd) -> io::Result<Vec<SubvolumeId>> {
    let items = roots(filesystem)?.into_iter().filter(|key| key.kind == ROOT_ITEM);
    Ok(items.map(|key| SubvolumeId(key.object)).collect())
}

/// Whether the kernel is still cleaning up deleted subvolumes: those that are in no directory.
pub fn is_clearing_away(filesystem: impl AsFd) -> io::Result<bool> {
    let keys = roots(filesystem)?;
    let count = |kind| keys.iter().filter(|key| key.kind == kind).count();
    Ok(count(ROOT_ITEM) > count(ROOT_BACKREF))
}

fn roots(filesystem: impl AsFd) -> io::Result<Vec<Key>> {
    let first = Key { object: SUBVOLUME_INODE, kind: ROOT_ITEM, offset: 0 };
    let last = Key { object: LAST_SUBVOLUME, kind: ROOT_BACKREF, offset: u64::MAX };
    search(filesystem, ROOT_TREE, first, last)
}
