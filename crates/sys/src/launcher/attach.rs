//! Trees that a sandbox has below its root, besides those of its template: attached last, when the root is complete.
//!
//! The sandbox's own users decide what is on the way to a target, so no link on it is followed: the tree comes to a
//! directory or file of the root itself, or nothing is started.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::mount::{MountAttrFlags, MoveMountFlags, move_mount};
use serde::{Deserialize, Serialize};

use super::Ids;
use crate::mount;

/// A tree that is not the template's. Its detached mount comes with the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Relative to the root. A directory is there, or a file if the mount is one.
    pub target: String,
    pub access: MountAccess,
    pub ids: MountIds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountAccess {
    Read,
    ReadWrite,
}

/// How the owners of a tree's files become those inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MountIds {
    /// On disk they are as inside; the mount maps them to the sandbox's range.
    Mapped,
    /// They already are the sandbox's ids of the host, or the server of the mount translates them.
    AsTheyAre,
}

impl Attachment {
    /// Sets the attributes of the detached mount: no set-user-ID programs and no devices, whatever it was copied from.
    pub fn set_properties(
        &self,
        mount: &OwnedFd,
        ids: Ids,
        users: impl std::os::fd::AsFd,
    ) -> io::Result<()> {
        let mut set = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        match self.access {
            MountAccess::Read => set |= MountAttrFlags::MOUNT_ATTR_RDONLY,
            MountAccess::ReadWrite => {}
        }
        match (ids, self.ids) {
            (Ids::Range { .. }, MountIds::Mapped) => {
                mount::map_ids_without_setuid(mount, set, users)
            }
            (Ids::Range { .. }, MountIds::AsTheyAre) => mount::set_attributes(mount, set),
            // The only id already owns all of it.
            (Ids::Single, _) => mount::set_attributes_of_tree(mount, set),
        }
    }

    /// Attaches the mount below the working directory, which is the root.
    pub fn attach(&self, mount: &OwnedFd) -> io::Result<()> {
        // Without NOFOLLOW, so that a link in the last place is refused as well, and not mounted on.
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let stay = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let root = rustix::fs::CWD;
        let target = openat2(root, self.target.as_str(), flags, Mode::empty(), stay)?;
        let whole =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(move_mount(mount, "", target, "", whole)?)
    }
}
