//! Notes about a volume beyond the kernel's state: attributes of its snapshots' directory. The directory is created
//! with the first note, and removed with the volume.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{
    AtFlags, Mode, XattrFlags, fgetxattr, fremovexattr, fsetxattr, mkdirat, statat, unlinkat,
};
use rustix::io::Errno;

use super::{Btrfs, c_name};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_tree::untrusted;

/// A noted number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note<'a> {
    /// The requested limit of the tree: that of the volume's own group differs once it has snapshots.
    TreeLimit,
    /// The same for tree and snapshots, if the volume started as a fork.
    TotalLimit,
    /// The transaction before which the data of the layers below was written; 0 without layers.
    Base,
    /// The volume's initial data as a clone, which is charged to others.
    Began,
    /// The size of the volume when the snapshot was taken, or slightly more.
    Held(&'a SnapshotId),
}

impl Note<'_> {
    fn attribute(self) -> String {
        match self {
            Self::TreeLimit => "user.sandkeep.tree_limit".to_owned(),
            Self::TotalLimit => "user.sandkeep.total_limit".to_owned(),
            Self::Base => "user.sandkeep.base".to_owned(),
            Self::Began => "user.sandkeep.began".to_owned(),
            Self::Held(snapshot) => format!("user.sandkeep.held.{snapshot}"),
        }
    }
}

/// The directory of a volume's snapshots.
pub(super) struct Notes(pub OwnedFd);

impl Notes {
    pub fn get(&self, note: Note<'_>) -> io::Result<Option<u64>> {
        // No number has more digits.
        let mut value = [0; 20];
        let length = match fgetxattr(&self.0, note.attribute(), &mut value) {
            Ok(length) => length,
            Err(Errno::NODATA) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let text = std::str::from_utf8(&value[..length]).map_err(io::Error::other)?;
        text.parse().map(Some).map_err(io::Error::other)
    }

    pub fn set(&self, note: Note<'_>, value: u64) -> io::Result<()> {
        let value = value.to_string();
        Ok(fsetxattr(&self.0, note.attribute(), value.as_bytes(), XattrFlags::empty())?)
    }

    pub fn forget(&self, note: Note<'_>) -> io::Result<()> {
        match fremovexattr(&self.0, note.attribute()) {
            Ok(()) | Err(Errno::NODATA) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Btrfs {
    /// The notes about a volume, if any.
    pub(super) fn notes(&self, id: &SandboxId) -> io::Result<Option<Notes>> {
        match untrusted::open_dir(self.pool.snapshots()?, &c_name(id)) {
            Ok(directory) => Ok(Some(Notes(directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, created if necessary.
    pub(super) fn notes_to_write(&self, id: &SandboxId) -> io::Result<Notes> {
        let snapshots = self.pool.snapshots()?;
        match mkdirat(&snapshots, c_name(id), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(Notes(untrusted::open_dir(&snapshots, &c_name(id))?)),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the notes about a volume that has no snapshots.
    pub(super) fn forget_notes(&self, id: &SandboxId) -> io::Result<()> {
        match unlinkat(self.pool.snapshots()?, c_name(id), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the notes about volumes that are gone. Their snapshots are not ours to remove: they are listed.
    pub(super) fn sweep_notes(&self) -> io::Result<()> {
        let (snapshots, volumes) = (self.pool.snapshots()?, self.pool.volumes()?);
        for (name, _) in untrusted::entries(&snapshots)? {
            match statat(&volumes, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => match unlinkat(&snapshots, &name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOTEMPTY | Errno::NOTDIR) => {}
                    Err(error) => return Err(error.into()),
                },
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The name of a snapshot in its volume's directory.
pub(super) fn file_name(snapshot: &SnapshotId) -> CString {
    CString::new(snapshot.as_str()).expect("an id has only letters and digits")
}
