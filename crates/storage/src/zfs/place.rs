//! Mount points of datasets on the host. Each is a directory with an unused name, so a clone can be mounted whatever is
//! mounted elsewhere.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmodat, openat};
use rustix::mount::{MountAttrFlags, UnmountFlags, unmount};

use super::look::Seen;
use super::{Zfs, random};
use sandkeep_sys::mount;
use sandkeep_tree::Ids;

/// Prefix of the mount points of drafts.
pub const DRAFT: &str = "draft";
const MOUNTED: &str = "mounted";

pub fn of(data_dir: &Path) -> PathBuf {
    data_dir.join("storage").join("zfs")
}

impl Zfs {
    /// A new mount point.
    pub(super) fn new_place(&self, label: &str) -> io::Result<PathBuf> {
        let path = self.place.join(MOUNTED).join(format!("{label}.{}", random()));
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(path)
    }

    /// The mount point of a dataset, mounted or not.
    pub(super) fn place_of<'a>(&self, dataset: &'a Seen) -> io::Result<&'a Path> {
        let path = dataset.mountpoint.as_deref().filter(|path| path.starts_with(&self.place));
        let elsewhere =
            || format!("{} is mounted elsewhere; set its mountpoint back", dataset.name);
        path.ok_or_else(|| io::Error::other(elsewhere()))
    }

    /// Mounts a dataset if it is not mounted: always nosuid and nodev, because not every ZFS honours these properties.
    pub(super) fn mount(&self, name: &str, path: &Path) -> io::Result<()> {
        match state(path) {
            Ok(State::Mounted) => return quiet(path),
            Ok(State::Free) => {}
            // Its server process is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                unmount(path, UnmountFlags::DETACH)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(path)?;
            }
            Err(error) => return Err(error),
        }
        self.tool.run(&["mount", name])?;
        quiet(path)
    }

    /// Whether a dataset is mounted at its place, or its directory still exists.
    pub(super) fn is_mounted(&self, dataset: &Seen) -> bool {
        self.place_of(dataset).is_ok_and(|path| path.symlink_metadata().is_ok() || is_stale(path))
    }

    /// Unmounts a dataset, if it is mounted at its place, and removes the directory.
    pub(super) fn unmount(&self, dataset: &Seen) -> io::Result<()> {
        match self.place_of(dataset) {
            Ok(path) => release(path),
            Err(_) => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Mounted,
}

/// Whether something is mounted on a directory: then it is on another device than its parent.
fn state(path: &Path) -> io::Result<State> {
    let around = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    if path.symlink_metadata()?.dev() == around.symlink_metadata()?.dev() {
        Ok(State::Free)
    } else {
        Ok(State::Mounted)
    }
}

/// The server process of the mount is gone.
fn is_stale(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
}

fn quiet(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = openat(CWD, path, flags, Mode::empty())?;
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    mount::set_attributes(root, quiet)
}

/// Unmounts a directory, if something is mounted there, and removes it.
pub fn release(path: &Path) -> io::Result<()> {
    let flags = match state(path) {
        Ok(State::Free) => None,
        // A reader still has it open.
        Ok(State::Mounted) => Some(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Some(UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        }
        Err(error) => return Err(error),
    };
    if let Some(flags) = flags {
        unmount(path, flags)?;
    }
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Gives the root directory of a new dataset the mode and owner of a volume's root.
pub fn set_root_attributes(path: &Path, ids: Ids) -> io::Result<()> {
    ids.give_to_root(CWD, path)?;
    Ok(chmodat(CWD, path, Mode::from_raw_mode(0o755), AtFlags::empty())?)
}

/// Releases all of our directories that are unused.
pub fn sweep(place: &Path, is_used: impl Fn(&Path) -> bool) -> io::Result<()> {
    let entries = match std::fs::read_dir(place.join(MOUNTED)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_random =
            |text: &str| text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let ours = name.split_once('.').is_some_and(|(_, end)| is_random(end));
        if ours && !is_used(&path) {
            release(&path)?;
        }
    }
    Ok(())
}
