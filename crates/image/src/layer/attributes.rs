//! File attributes: owner, mode, time, extended attributes.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fremovexattr, fsetxattr, futimens, utimensat,
};

use super::{Applied, Owners};
use sandkeep_core::limits;
use sandkeep_tree::{
    Ids,
    archive::{
        Attributes, Moment,
        attributes::{CAPABILITY, is_kept, xattr_names},
    },
};

/// Whether an attribute is set. Only root can set capabilities.
fn is_set(name: &CStr, owners: Owners) -> bool {
    is_kept(name) && (owners != Owners::Ours || name != CAPABILITY)
}

/// Checks that the owner's ids are in the range of a sandbox; an error is the one that is not.
pub(super) fn check_owner(attributes: &Attributes) -> Result<(), u64> {
    let ids = [attributes.uid, attributes.gid];
    ids.into_iter().find(|id| *id > limits::LAYER_ID_MAX).map_or(Ok(()), Err)
}

fn ids(attributes: &Attributes, kept: Ids) -> (Option<Uid>, Option<Gid>) {
    // They were checked; an id that did not fit would leave the file to root.
    let id = |id: u64| kept.on_disk(u32::try_from(id).unwrap_or(0));
    (Some(Uid::from_raw(id(attributes.uid))), Some(Gid::from_raw(id(attributes.gid))))
}

pub(super) fn times(modified: Moment) -> Timestamps {
    let moment = Timespec { tv_sec: modified.secs, tv_nsec: modified.nanos.into() };
    Timestamps { last_access: moment, last_modification: moment }
}

/// Removes the attributes that a directory of a layer below had.
pub(super) fn clear_xattrs(file: BorrowedFd<'_>, owners: Owners) -> rustix::io::Result<()> {
    for name in xattr_names(file)?.iter().filter(|name| is_set(name, owners)) {
        fremovexattr(file, name.as_c_str())?;
    }
    Ok(())
}

/// Sets everything on an open file or directory. The owner comes first, because changing it clears the setuid bit and
/// capabilities.
pub(crate) fn set(
    file: impl AsFd,
    attributes: &Attributes,
    applied: &mut Applied,
) -> rustix::io::Result<()> {
    let file = file.as_fd();
    if let Owners::Kept(kept) = applied.owners {
        let (uid, gid) = ids(attributes, kept);
        fchown(file, uid, gid)?;
    }
    fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    for (name, value) in &attributes.xattrs {
        if is_set(name, applied.owners) {
            fsetxattr(file, name.as_c_str(), value, XattrFlags::empty())?
        } else {
            applied.xattrs_skipped += 1
        }
    }
    futimens(file, &times(attributes.modified))
}

/// Sets what can be set on a link or FIFO, by its name. Neither may have user attributes.
pub(crate) fn set_on_special(
    directory: BorrowedFd<'_>,
    name: &[u8],
    attributes: &Attributes,
    applied: &mut Applied,
) -> rustix::io::Result<()> {
    if let Owners::Kept(kept) = applied.owners {
        let (uid, gid) = ids(attributes, kept);
        chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    applied.xattrs_skipped += attributes.xattrs.len() as u64;
    utimensat(directory, name, &times(attributes.modified), AtFlags::SYMLINK_NOFOLLOW)
}
