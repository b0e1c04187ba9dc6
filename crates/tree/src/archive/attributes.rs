//! A file's metadata, as in an archive.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{Stat, fgetxattr, flistxattr};
use rustix::io::Errno;

use super::entry::{Attributes, Moment};
use crate::{Node, OVERLAY_ATTRIBUTES};
use sandkeep_core::limits;

pub const CAPABILITY: &CStr = c"security.capability";

/// Attributes that a layer may contain. Overlay attributes are not allowed, because they would affect the overlay that
/// contains the layer: they can make it show one file as another.
pub fn is_kept(name: &CStr) -> bool {
    let bytes = name.to_bytes();
    let of_users = bytes.starts_with(b"user.") && !bytes.starts_with(OVERLAY_ATTRIBUTES.as_bytes());
    of_users || name == CAPABILITY
}

/// The metadata of an open file. Attributes that are not kept are left out.
pub fn of(file: BorrowedFd<'_>, stat: &Stat) -> rustix::io::Result<Attributes> {
    Ok(Attributes { xattrs: kept_xattrs(file)?, ..plain(stat) })
}

/// The metadata of a node in a tree.
pub(super) fn of_node(node: &Node) -> io::Result<Attributes> {
    let mut xattrs = node.attributes()?;
    xattrs.retain(|(name, _)| is_kept(name));
    Ok(Attributes { xattrs, ..plain(node.stat()) })
}

/// The same without extended attributes.
pub fn plain(stat: &Stat) -> Attributes {
    Attributes {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid.into(),
        gid: stat.st_gid.into(),
        modified: modified(stat),
        xattrs: Vec::new(),
    }
}

pub fn modified(stat: &Stat) -> Moment {
    Moment { secs: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) }
}

fn kept_xattrs(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, Vec<u8>)>> {
    let mut found = Vec::new();
    for name in xattr_names(file)?.into_iter().filter(|name| is_kept(name)) {
        let mut value = vec![0; limits::ATTRIBUTE_MAX_BYTES];
        let size = fgetxattr(file, name.as_c_str(), &mut value)?;
        found.push((name, value[..size].to_vec()));
    }
    Ok(found)
}

/// The names of all attributes of a file; the kernel limits the list to the size of a value.
pub fn xattr_names(file: BorrowedFd<'_>) -> rustix::io::Result<Vec<CString>> {
    let mut names = vec![0; limits::ATTRIBUTE_MAX_BYTES];
    let size = match flistxattr(file, &mut names) {
        Ok(size) => size,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = names[..size].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}
