//! The descriptors and mounts of a request: identified, and given their properties.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::mount::MountAttrFlags;

use super::child::Ids;
use super::{Attachment, EntryKind, Lifeline, RootKind};
use crate::namespace::ChildStack;
use crate::{mount, overlay};

/// The descriptors of a request.
pub struct Received {
    pub root: ReceivedRoot,
    pub listener: OwnedFd,
    pub lifeline: Option<OwnedFd>,
    pub binds: Vec<(String, OwnedFd)>,
    pub attachments: Vec<(Attachment, OwnedFd)>,
    pub tasks: Vec<OwnedFd>,
    pub into_cgroup: Option<OwnedFd>,
}

/// What the mounts of a request are for, besides the root.
#[derive(Clone, Copy)]
pub struct Targets<'a> {
    pub binds: &'a [String],
    pub attachments: &'a [Attachment],
}

/// The pieces of the root, as detached mounts.
pub enum ReceivedRoot {
    Dir(OwnedFd),
    Shifted(OwnedFd),
    Overlay { volume: OwnedFd, layers: OwnedFd, names: overlay::Names },
}

impl Received {
    /// `cloned` are the mounts of means without descriptors; without an entry there is no cgroup.
    pub fn sort(
        lifeline: Lifeline,
        root: &RootKind,
        targets: Targets<'_>,
        entry: Option<EntryKind>,
        cloned: Vec<OwnedFd>,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let listener = fds.next()?;
        let lifeline = match lifeline {
            Lifeline::None => None,
            Lifeline::Passed => Some(fds.next()?),
        };
        let mut rest = cloned.into_iter().chain(fds);
        let root = match root {
            RootKind::Dir => ReceivedRoot::Dir(rest.next()?),
            RootKind::Shifted => ReceivedRoot::Shifted(rest.next()?),
            RootKind::Overlay(names) => ReceivedRoot::Overlay {
                volume: rest.next()?,
                layers: rest.next()?,
                names: names.clone(),
            },
        };
        let mut binds = Vec::with_capacity(targets.binds.len());
        for target in targets.binds {
            binds.push((target.clone(), rest.next()?));
        }
        let mut attachments = Vec::with_capacity(targets.attachments.len());
        for attachment in targets.attachments {
            attachments.push((attachment.clone(), rest.next()?));
        }
        let (tasks, into_cgroup) = match entry {
            Some(EntryKind::V1) => (rest.collect(), None),
            Some(EntryKind::V2) => (Vec::new(), Some(rest.next()?)),
            None => (Vec::new(), None),
        };
        Some(Self { root, listener, lifeline, binds, attachments, tasks, into_cgroup })
    }
}

impl ReceivedRoot {
    /// The root as one detached mount. Its pieces already have their properties. `place` is as for [`overlay::mount`].
    pub fn mount(
        self,
        users: BorrowedFd<'_>,
        ids: Ids,
        place: &str,
        stack: &mut ChildStack,
    ) -> io::Result<OwnedFd> {
        match self {
            Self::Dir(root) | Self::Shifted(root) => Ok(root),
            Self::Overlay { volume, layers, names } => {
                let (volume, layers) = (volume.as_fd(), layers.as_fd());
                let pieces = overlay::Pieces { layers, volume, names: &names };
                overlay::mount(&pieces, users, ids, place, stack)
            }
        }
    }

    /// Maps its ids, unless they are shifted on disk. Either way set-user-ID programs may work, because they cannot
    /// make anybody one of the host's users.
    fn map_ids(&self, users: BorrowedFd<'_>) -> io::Result<()> {
        let quiet = MountAttrFlags::MOUNT_ATTR_NODEV;
        match self {
            Self::Dir(_) | Self::Overlay { .. } => {
                self.mounts().try_for_each(|part| mount::set_id_map(part, quiet, users))
            }
            Self::Shifted(root) => {
                mount::set_attributes(root, quiet)?;
                mount::allow_setuid(root)
            }
        }
    }

    fn mounts(&self) -> impl Iterator<Item = &OwnedFd> {
        let (first, second) = match self {
            Self::Dir(root) | Self::Shifted(root) => (root, None),
            Self::Overlay { volume, layers, .. } => (volume, Some(layers)),
        };
        std::iter::once(first).chain(second)
    }
}

/// The root is the sandbox's own, so its ids are mapped. Binds are the host's and are not: root inside owns nothing
/// there, so it reads only what everybody may.
pub fn set_properties(received: &Received, ids: Ids, users: BorrowedFd<'_>) -> io::Result<()> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY | quiet;
    let mut binds = received.binds.iter().map(|(_, bind)| bind);
    for (attachment, mount) in &received.attachments {
        attachment.set_properties(mount, ids, users)?;
    }
    match ids {
        Ids::Range { .. } => {
            received.root.map_ids(users)?;
            binds.try_for_each(|bind| mount::set_attributes(bind, read_only))
        }
        // The only id already owns all of it.
        Ids::Single => {
            let mut root = received.root.mounts();
            root.try_for_each(|part| mount::set_attributes_of_tree(part, quiet))?;
            binds.try_for_each(|bind| mount::set_attributes_of_tree(bind, read_only))
        }
    }
}
