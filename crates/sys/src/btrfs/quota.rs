//! Quota groups. Each subvolume has one, of level 0, that its writes are charged to; groups of level 1 sum up their
//! members. A limit applies to what is charged to its group.
//!
//! Changing groups needs space in the subvolume of the descriptor. So it must be one without a limit: through a full
//! one the kernel refuses even to raise its limit.
#![expect(unsafe_code, reason = "ioctls have no safe interface")]

use std::io;
use std::mem::size_of;
use std::os::fd::AsFd;

use rustix::ioctl::{Setter, Updater, ioctl, opcode};

use super::search::{Key, QGROUP_INFO, QGROUP_RELATION, QUOTA_TREE, search};
use super::{GROUP, SubvolumeId};

/// A quota group. The upper 16 bits are its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

const LEVEL_SHIFT: u32 = 48;
/// The initial subvolume of a file system.
const TOP_LEVEL: u64 = 5;

impl GroupId {
    /// The group of a subvolume.
    pub const fn of(subvolume: SubvolumeId) -> Self {
        Self(subvolume.0)
    }

    /// A group of level 1; only the lower 48 bits of the number count.
    pub const fn upper(number: u64) -> Self {
        Self(1 << LEVEL_SHIFT | number & ((1 << LEVEL_SHIFT) - 1))
    }

    pub const fn level(self) -> u64 {
        self.0 >> LEVEL_SHIFT
    }

    /// Its number within its level.
    pub const fn number(self) -> u64 {
        self.0 & ((1 << LEVEL_SHIFT) - 1)
    }
}

/// The group that a new subvolume is charged to besides its own, and the limit of its own group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charged {
    pub limit_bytes: Option<u64>,
    pub group: Option<GroupId>,
}

impl Charged {
    /// Only its own group, without a limit, like every subvolume.
    pub const TO_ITSELF: Self = Self { limit_bytes: None, group: None };
}

/// `btrfs_qgroup_inherit` with room for one group.
#[repr(C)]
#[derive(Default)]
pub(super) struct QgroupInherit {
    flags: u64,
    num_qgroups: u64,
    num_ref_copies: u64,
    num_excl_copies: u64,
    limit_flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    rsv_referenced: u64,
    rsv_exclusive: u64,
    group: u64,
}

const INHERIT_SET_LIMITS: u64 = 1;
const LIMIT_MAX_REFERENCED: u64 = 1;

impl QgroupInherit {
    pub fn of(charged: Charged) -> Option<Self> {
        if charged == Charged::TO_ITSELF {
            return None;
        }
        let mut inherit = Self::default();
        if let Some(max_referenced) = charged.limit_bytes {
            inherit.flags = INHERIT_SET_LIMITS;
            inherit.limit_flags = LIMIT_MAX_REFERENCED;
            inherit.max_referenced = max_referenced;
        }
        if let Some(group) = charged.group {
            inherit.num_qgroups = 1;
            inherit.group = group.0;
        }
        Some(inherit)
    }

    /// The length that the kernel is to read.
    pub fn len_bytes(&self) -> u64 {
        let unused = size_of::<u64>() as u64 * (1 - self.num_qgroups);
        size_of::<Self>() as u64 - unused
    }
}

/// `btrfs_ioctl_quota_ctl_args`
#[repr(C)]
struct QuotaCtl {
    command: u64,
    status: u64,
}

const ENABLE_SIMPLE: u64 = 4;

/// `btrfs_ioctl_qgroup_create_args`
#[repr(C)]
struct QgroupCreate {
    create: u64,
    id: u64,
}

/// `btrfs_ioctl_qgroup_assign_args`
#[repr(C)]
struct QgroupAssign {
    assign: u64,
    member: u64,
    group: u64,
}

/// `btrfs_ioctl_qgroup_limit_args`
#[repr(C)]
struct QgroupLimit {
    id: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    rsv_referenced: u64,
    rsv_exclusive: u64,
}

const _: () = assert!(size_of::<QgroupInherit>() == 80 && size_of::<QgroupLimit>() == 48);

/// Enables simple quotas. Does nothing if quotas are enabled; `EINVAL` before Linux 6.7.
pub fn enable_simple(filesystem: impl AsFd) -> io::Result<()> {
    const OP: u32 = opcode::read_write::<QuotaCtl>(GROUP, 40);
    let mut args = QuotaCtl { command: ENABLE_SIMPLE, status: 0 };
    // SAFETY: the kernel reads and writes `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Updater::<OP, QuotaCtl>::new(&mut args)) }?;
    Ok(())
}

/// Creates a group. For level 0 the kernel accepts only numbers below those of subvolumes.
pub fn create(filesystem: impl AsFd, group: GroupId) -> io::Result<()> {
    change(filesystem, QgroupCreate { create: 1, id: group.0 })
}

/// Removes a group that nothing is charged to any more, otherwise `EBUSY`. For level 0 the caller ensures that its
/// subvolume is gone.
pub fn remove(filesystem: impl AsFd, group: GroupId) -> io::Result<()> {
    change(filesystem, QgroupCreate { create: 0, id: group.0 })
}

fn change(filesystem: impl AsFd, args: QgroupCreate) -> io::Result<()> {
    const OP: u32 = opcode::write::<QgroupCreate>(GROUP, 42);
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Setter::<OP, QgroupCreate>::new(args)) }?;
    Ok(())
}

/// Past and future charges of `member` are charged to `group` too.
pub fn assign(filesystem: impl AsFd, member: GroupId, group: GroupId) -> io::Result<()> {
    const OP: u32 = opcode::write::<QgroupAssign>(GROUP, 41);
    let args = QgroupAssign { assign: 1, member: member.0, group: group.0 };
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Setter::<OP, QgroupAssign>::new(args)) }?;
    Ok(())
}

/// Sets the limit of a group.
pub fn limit(filesystem: impl AsFd, group: GroupId, bytes: u64) -> io::Result<()> {
    // The kernel's header declares the wrong direction.
    const OP: u32 = opcode::read::<QgroupLimit>(GROUP, 43);
    let args = QgroupLimit {
        id: group.0,
        flags: LIMIT_MAX_REFERENCED,
        max_referenced: bytes,
        max_exclusive: 0,
        rsv_referenced: 0,
        rsv_exclusive: 0,
    };
    // SAFETY: the kernel only reads `args`, which has the layout the ioctl expects.
    unsafe { ioctl(filesystem, Setter::<OP, QgroupLimit>::new(args)) }?;
    Ok(())
}

/// All groups but that of the top level, including those of subvolumes that are gone.
pub fn groups(filesystem: impl AsFd) -> io::Result<Vec<GroupId>> {
    let key = |offset| Key { object: 0, kind: QGROUP_INFO, offset };
    let found = search(filesystem, QUOTA_TREE, key(TOP_LEVEL + 1), key(u64::MAX))?;
    Ok(found.into_iter().map(|key| GroupId(key.offset)).collect())
}

/// The groups that are directly above or below this one.
pub fn related(filesystem: impl AsFd, group: GroupId) -> io::Result<Vec<GroupId>> {
    let key = |offset| Key { object: group.0, kind: QGROUP_RELATION, offset };
    let found = search(filesystem, QUOTA_TREE, key(0), key(u64::MAX))?;
    Ok(found.into_iter().map(|key| GroupId(key.offset)).collect())
}
