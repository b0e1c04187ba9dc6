//! A non-root stage: it can prepare only descriptors. The tool has to create a user namespace first, and finds the rest
//! by path.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::MountAttrFlags;

use super::process::{Given, Never, during, execute, filter, private_mounts, restrict};
use super::{BareStaging, Failure, Lifeline, Meeting, NamedOverlay};
use crate::launcher::{Ids, guest_image};
use crate::{mount, namespace, overlay};

pub fn perform(staging: &BareStaging, fds: Vec<OwnedFd>) -> Result<Never, Failure> {
    let (listener, lifeline) = sort(staging.lifeline, fds).ok_or_else(|| {
        during("receive its descriptors")(io::Error::from_raw_os_error(libc::EPROTO))
    })?;
    if let Some(overlay) = &staging.overlay {
        mount_root(overlay).map_err(during("mount the overlay of its root"))?;
    }
    rustix::process::setsid().map_err(|errno| during("begin a session")(errno.into()))?;
    let guest = guest_image().map_err(during("make the guest executable"))?;
    let filter = filter().map_err(during("make its system call filter"))?;
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null = null.map_err(|errno| during("open /dev/null")(errno.into()))?;
    // Landlock requires it, and the tool must not have more rights than we do.
    rustix::thread::set_no_new_privs(true)
        .map_err(|errno| during("give up new privileges")(errno.into()))?;
    restrict().map_err(during("restrict itself with Landlock"))?;
    let given = Given { null, listener, guest, lifeline, filter: Some(filter) };
    given.arrange(Meeting::Listen).map_err(during("arrange its descriptors"))?;
    Err(during("execute the tool")(execute(&staging.program, &staging.arguments)))
}

/// For a tool without overlay support, the overlay is mounted in advance, in an outer user namespace.
fn mount_root(overlay: &NamedOverlay) -> io::Result<()> {
    namespace::enter_user()?;
    private_mounts()?;
    let (volume, layers) =
        (mount::clone_tree(&overlay.volume)?, mount::clone_tree(&overlay.layers)?);
    let (volume, layers) = (volume.as_fd(), layers.as_fd());
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    for part in [volume, layers] {
        mount::set_attributes_of_tree(part, quiet)?;
    }
    let pieces = overlay::Pieces { layers, volume, names: &overlay.names };
    overlay::assemble(&pieces, Ids::Single, "/tmp")?;
    Ok(rustix::process::chdir("/")?)
}

fn sort(lifeline: Lifeline, fds: Vec<OwnedFd>) -> Option<(OwnedFd, Option<OwnedFd>)> {
    let mut fds = fds.into_iter();
    let listener = fds.next()?;
    match lifeline {
        Lifeline::None => Some((listener, None)),
        Lifeline::Passed => Some((listener, Some(fds.next()?))),
    }
}
