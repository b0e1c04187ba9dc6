//! One running container: its first process, the cgroups below its own, and the connection to its guest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use super::container::{DOOR, VOLUME};
use crate::grouped::{Leaves, Live, end, limits_of, open_dir, pieces};
use crate::{Death, Stats};
use sandkeep_core::Resources;
use sandkeep_guestlink::{DialBack, Guest, GuestClient, Proof};
use sandkeep_home::GUEST_SOCKET;
use sandkeep_sys::{
    cgroup::{self, Around, Hierarchy},
    container::{self, Overlay},
    launcher::RootKind,
    mount, pidfd,
};
use sandkeep_tree::Root;

/// Directories that the guest sees below its root as in the container's.
const SHOWN_AGAIN: [&str; 2] = ["proc", "dev"];

/// The uid of root in a container, which uses the host's ids.
const ROOT: u32 = 0;

pub struct Contained {
    live: Live,
    groups: Arc<dyn Hierarchy>,
    /// The container's name in them.
    name: String,
    process: OwnedFd,
}

/// The socket that the guest of this home dials.
pub fn listen(home: &Path) -> io::Result<DialBack> {
    DialBack::bind(open_dir(&home.join(DOOR))?, GUEST_SOCKET, ROOT)
}

impl Contained {
    /// Manages a container that was just started or found. `None` if it is not running.
    pub async fn new(
        id: &str,
        pid: u32,
        resources: &Resources,
        door: DialBack,
        overlay: Option<Overlay>,
    ) -> io::Result<Option<Self>> {
        let Some((process, around)) = find(id, pid)? else { return Ok(None) };
        around.hierarchy.make(&around.name, &limits_of(resources))?;
        let process = furnish(process, overlay).await?;
        Self::watch(process, around, door).map(Some)
    }

    fn watch(process: OwnedFd, around: Around, door: DialBack) -> io::Result<Self> {
        let Around { hierarchy, name } = around;
        let groups: Arc<dyn Hierarchy> = Arc::from(hierarchy);
        let leaves = Leaves::open(Arc::clone(&groups), name.clone())?;
        let guest = GuestClient::dialed(door, process.try_clone()?, Proof::Process, leaves)?;
        let live = Live::new(process.try_clone()?, guest, None)?;
        Ok(Self { live, groups, name, process })
    }

    pub fn guest(&self) -> Arc<dyn Guest> {
        self.live.guest()
    }

    pub fn process(&self) -> io::Result<OwnedFd> {
        self.process.try_clone()
    }

    /// Whether it has ended, whoever noticed.
    pub fn is_over(&self) -> bool {
        self.live.is_dead() || pidfd::has_ended(&self.process)
    }

    pub fn death(&self) -> Option<Death> {
        self.live.death()
    }

    pub async fn died(&self) -> Death {
        self.live.died().await
    }

    pub async fn kill(&self) -> io::Result<()> {
        end(self.process.try_clone()?, || self.thaw()).await
    }

    pub fn freeze(&self) -> io::Result<()> {
        self.groups.freeze(&self.name)
    }

    pub fn thaw(&self) -> io::Result<()> {
        self.groups.thaw(&self.name)
    }

    pub fn stats(&self) -> io::Result<Stats> {
        let used = self.groups.used(&self.name)?;
        Ok(Stats { memory_bytes: used.memory_bytes, cpu_micros: used.cpu_micros, pids: used.pids })
    }
}

/// The first process of a container and its cgroups. `None` if it is gone: its pid may have been reused, but the new
/// process is in no cgroup with the container's id.
fn find(id: &str, pid: u32) -> io::Result<Option<(OwnedFd, Around)>> {
    let Ok(process) = pidfd::open(pid) else { return Ok(None) };
    let around = match cgroup::around(pid) {
        Ok(around) => around,
        Err(_) if pidfd::has_ended(&process) => return Ok(None),
        Err(error) => return Err(error),
    };
    let around = around.filter(|around| around.name.contains(id));
    Ok(around.filter(|_| !pidfd::has_ended(&process)).map(|around| (process, around)))
}

/// The parts of an overlay root.
pub fn overlay(root: &Root) -> io::Result<Option<Overlay>> {
    let (kind, paths) = pieces(root)?;
    match (kind, paths.as_slice()) {
        (RootKind::Overlay(names), [volume, layers]) => {
            let (volume, layers) = (mount::clone_path(volume)?, mount::clone_path(layers)?);
            Ok(Some(Overlay { volume, layers, names }))
        }
        (RootKind::Overlay(_) | RootKind::Dir | RootKind::Shifted, _) => Ok(None),
    }
}

async fn furnish(process: OwnedFd, overlay: Option<Overlay>) -> io::Result<OwnedFd> {
    let furnished = tokio::task::spawn_blocking(move || {
        container::furnish(process.as_fd(), Path::new(VOLUME), overlay.as_ref(), &SHOWN_AGAIN)?;
        Ok(process)
    });
    furnished.await.map_err(io::Error::other)?
}
