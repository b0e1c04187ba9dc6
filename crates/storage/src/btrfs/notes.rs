//! What has to be remembered of a volume besides what the kernel holds: attributes of the directory of its
//! snapshots. The directory is there once there is something to note down; it goes with the volume.

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

/// A number that is noted down.
#[derive(Clone, Copy, Debug)]
pub(super) enum Note<'a> {
    /// The limit of the tree that was asked for: that of the volume's own group is another once it has snapshots.
    TreeLimit,
    /// The same of tree and snapshots, if the volume began as a fork.
    TotalLimit,
    /// The transaction that what is in the layers below was written before; 0 above nothing.
    Base,
    /// What the volume had when it began as a clone: that is charged to others.
    Began,
    /// How much the volume held when the snapshot was made, or a little more.
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
    /// What is noted down about a volume, if anything is.
    pub(super) fn notes(&self, id: &SandboxId) -> io::Result<Option<Notes>> {
        match untrusted::open_dir(self.pool.snapshots()?, &c_name(id)) {
            Ok(directory) => Ok(Some(Notes(directory))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The same, with a place made for it.
    pub(super) fn notes_to_write(&self, id: &SandboxId) -> io::Result<Notes> {
        let snapshots = self.pool.snapshots()?;
        match mkdirat(&snapshots, c_name(id), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => Ok(Notes(untrusted::open_dir(&snapshots, &c_name(id))?)),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets all about a volume that has no snapshots.
    pub(super) fn forget_notes(&self, id: &SandboxId) -> io::Result<()> {
        match unlinkat(self.pool.snapshots()?, c_name(id), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets volumes that are gone. Snapshots of one are not ours to remove: they are listed.
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

/// The name of a snapshot in the directory of its volume's.
pub(super) fn file_name(snapshot: &SnapshotId) -> CString {
    CString::new(snapshot.as_str()).expect("an id has only letters and digits")
}
