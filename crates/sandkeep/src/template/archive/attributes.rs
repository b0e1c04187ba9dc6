//! What a file on disk is besides its bytes, as an archive says it.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use rustix::fs::{Stat, fgetxattr, flistxattr};
use rustix::io::Errno;

use super::entry::{Attributes, Moment};
use crate::storage::OVERLAY_ATTRIBUTES;

pub(in crate::template) const CAPABILITY: &CStr = c"security.capability";

/// Attributes that a layer may bring. Those of overlays it may not, because they would speak to the
/// overlay in which the layer lies: they can make it show one file as another.
pub(in crate::template) fn is_kept(name: &CStr) -> bool {
    let bytes = name.to_bytes();
    let of_users = bytes.starts_with(b"user.") && !bytes.starts_with(OVERLAY_ATTRIBUTES.as_bytes());
    of_users || name == CAPABILITY
}

/// What an open file is, as an archive would say it. The attributes that are not kept are left out.
pub(in crate::template) fn of(file: BorrowedFd<'_>, stat: &Stat) -> rustix::io::Result<Attributes> {
    Ok(Attributes { xattrs: kept_xattrs(file)?, ..plain(stat) })
}

/// The same without extended attributes.
pub(in crate::template) fn plain(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        modified: modified(stat),
        xattrs: Vec::new(),
    }
}

pub(in crate::template) fn modified(stat: &Stat) -> Moment {
    Moment { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

fn kept_xattrs(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in xattr_names(file)? {
        if is_kept(&name) {
            let mut value = vec![0; fgetxattr(file, &name, &mut [0_u8; 0])?];
            let size = fgetxattr(file, &name, &mut value)?;
            value.truncate(size);
            found.push((name, value));
        }
    }
    Ok(found)
}

pub(in crate::template) fn xattr_names(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = match flistxattr(file, &mut [0_u8; 0]) {
        Ok(size) => vec![0; size],
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let size = flistxattr(file, &mut names)?;
    let names = names[..size].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}
