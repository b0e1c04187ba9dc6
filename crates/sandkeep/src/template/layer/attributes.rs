//! What files are besides their bytes: owner, mode, time, extended attributes.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::{Applied, Owners};
use crate::limits;
use crate::template::archive::{Attributes, Moment};

const CAPABILITY: &CStr = c"security.capability";

/// Attributes that a layer may bring. Those of overlays it may not, because they would speak to the
/// overlay in which the layer lies: they can make it show one file as another.
fn is_kept(name: &CStr, owners: Owners) -> bool {
    let name = name.to_bytes();
    match name == CAPABILITY.to_bytes() {
        true => owners == Owners::Kept,
        false => name.starts_with(b"user.") && !name.starts_with(b"user.overlay."),
    }
}

/// The ids of the owner, or the one that no sandbox has.
pub(super) fn check_owner(attributes: &Attributes) -> Result<(), u64> {
    let ids = [attributes.uid, attributes.gid];
    ids.into_iter().find(|id| *id > limits::LAYER_ID_MAX).map_or(Ok(()), Err)
}

fn ids(attributes: &Attributes) -> (Option<Uid>, Option<Gid>) {
    // They were checked; an id that did not fit would leave the file root's.
    let id = |id: u64| u32::try_from(id).unwrap_or(0);
    (Some(Uid::from_raw(id(attributes.uid))), Some(Gid::from_raw(id(attributes.gid))))
}

pub(super) fn times(modified: Moment) -> Timestamps {
    let moment = Timespec { tv_sec: modified.secs, tv_nsec: modified.nanos.into() };
    Timestamps { last_access: moment, last_modification: moment }
}

/// What an open file is, as an archive would say it. The attributes that are not kept are left out.
pub(super) fn of(file: BorrowedFd<'_>, stat: &Stat) -> rustix::io::Result<Attributes> {
    Ok(Attributes { xattrs: kept_xattrs(file)?, ..plain(stat) })
}

/// The same without extended attributes.
pub(super) fn plain(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        modified: modified(stat),
        xattrs: Vec::new(),
    }
}

pub(super) fn modified(stat: &Stat) -> Moment {
    Moment { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

fn kept_xattrs(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in xattr_names(file)? {
        if is_kept(&name, Owners::Kept) {
            let mut value = vec![0; fgetxattr(file, &name, &mut [0_u8; 0])?];
            let size = fgetxattr(file, &name, &mut value)?;
            value.truncate(size);
            found.push((name, value));
        }
    }
    Ok(found)
}

fn xattr_names(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = match flistxattr(file, &mut [0_u8; 0]) {
        Ok(size) => vec![0; size],
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let size = flistxattr(file, &mut names)?;
    let names = names[..size].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}

/// Takes off what a directory of a layer below had.
pub(super) fn clear_xattrs(file: BorrowedFd<'_>, owners: Owners) -> rustix::io::Result<()> {
    for name in xattr_names(file)?.iter().filter(|name| is_kept(name, owners)) {
        fremovexattr(file, name.as_c_str())?;
    }
    Ok(())
}

/// Sets everything on a file or directory that is open. The owner comes first, because giving a file away
/// takes its setuid bit and its capabilities.
pub(super) fn set(
    file: impl AsFd,
    attributes: &Attributes,
    applied: &mut Applied,
) -> rustix::io::Result<()> {
    let file = file.as_fd();
    if applied.owners == Owners::Kept {
        let (uid, gid) = ids(attributes);
        fchown(file, uid, gid)?;
    }
    fchmod(file, Mode::from_raw_mode(attributes.mode))?;
    for (name, value) in &attributes.xattrs {
        match is_kept(name, applied.owners) {
            true => fsetxattr(file, name.as_c_str(), value, XattrFlags::empty())?,
            false => applied.xattrs_skipped += 1,
        }
    }
    futimens(file, &times(attributes.modified))
}

/// Sets what can be set on a link or FIFO, by its name. Neither may have attributes of users.
pub(super) fn set_on_special(
    directory: BorrowedFd<'_>,
    name: &[u8],
    attributes: &Attributes,
    applied: &mut Applied,
) -> rustix::io::Result<()> {
    if applied.owners == Owners::Kept {
        let (uid, gid) = ids(attributes);
        chownat(directory, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    applied.xattrs_skipped += attributes.xattrs.len() as u64;
    utimensat(directory, name, &times(attributes.modified), AtFlags::SYMLINK_NOFOLLOW)
}
