//! Resources that the runtimes of one daemon share on this machine: cgroups, ranges of ids, and the pipe by which
//! sandboxes notice that the daemon is gone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;

use super::id_ranges::IdRanges;
use crate::{Plan, RuntimeError};
use sandkeep_core::{Privilege, Resources, SandboxId, limits};
use sandkeep_home::{self, Home};
use sandkeep_sys::{
    cgroup::{self, Entry, GroupPlacement, Groupless, Hierarchy, Limits},
    launcher::LauncherRights,
    pidfd, reactor,
};
use sandkeep_tree::Ids;

pub struct HostResources {
    data_dir: PathBuf,
    /// The data directory's own id.
    instance: String,
    cgroups: Arc<dyn Hierarchy>,
    id_ranges: Mutex<IdRanges>,
    lifeline: Lifeline,
}

/// Why the host has no resources for sandboxes.
#[derive(Debug, thiserror::Error)]
pub enum NoHostResources {
    #[error("cannot note down which sandboxes there are: {0}")]
    Groupless(#[source] io::Error),
    #[error(transparent)]
    Cgroups(#[from] cgroup::Unusable),
    #[error("the ids in use cannot be read: {0}")]
    IdRanges(#[source] io::Error),
    #[error("no pipe for the lifeline: {0}")]
    Lifeline(#[source] io::Error),
}

/// A pipe whose reading end the sandboxes hold: when the daemon ends, in whatever way, they see the end of file and end
/// too.
struct Lifeline {
    read: OwnedFd,
    _write: OwnedFd,
}

/// A range of the host's user ids for one sandbox, until dropped; or the shared one.
pub struct IdRange {
    base: u32,
    /// Where it is returned to, if it belongs to one sandbox.
    owner: Option<Arc<HostResources>>,
}

impl IdRange {
    /// The host's uid of root inside.
    pub fn base(&self) -> u32 {
        self.base
    }
}

impl Drop for IdRange {
    fn drop(&mut self) {
        if let Some(host_resources) = &self.owner {
            host_resources.id_ranges().give_back(self.base);
        }
    }
}

impl HostResources {
    /// Detects what this machine offers.
    pub fn open(data_dir: PathBuf, instance: String) -> Result<Arc<Self>, NoHostResources> {
        let cgroups = if rustix::process::geteuid().is_root() {
            cgroup::open(&instance)?
        } else {
            Self::groupless(&data_dir, &instance)?
        };
        Self::with(data_dir, instance, cgroups)
    }

    /// The substitute for cgroups if the daemon may not create any.
    pub fn groupless(
        data_dir: &Path,
        instance: &str,
    ) -> Result<Box<dyn Hierarchy>, NoHostResources> {
        let made = data_dir.join(sandkeep_home::MADE);
        let groupless = Groupless::open(made, instance.to_owned());
        Ok(Box::new(groupless.map_err(NoHostResources::Groupless)?))
    }

    /// The same in a given cgroup hierarchy.
    pub fn with(
        data_dir: PathBuf,
        instance: String,
        cgroups: Box<dyn Hierarchy>,
    ) -> Result<Arc<Self>, NoHostResources> {
        let id_ranges = IdRanges::new(&instance).map_err(NoHostResources::IdRanges)?;
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| NoHostResources::Lifeline(errno.into()))?;
        Ok(Arc::new(Self {
            data_dir,
            instance,
            cgroups: Arc::from(cgroups),
            id_ranges: Mutex::new(id_ranges),
            lifeline: Lifeline { read, _write: write },
        }))
    }

    /// Identifies the guest of a sandbox without cgroups.
    pub fn badge(&self, id: &SandboxId) -> String {
        cgroup::badge(&self.instance, id.as_str())
    }

    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    pub fn instance(&self) -> &str {
        &self.instance
    }

    pub fn cgroups(&self) -> &Arc<dyn Hierarchy> {
        &self.cgroups
    }

    pub fn home(&self, id: &SandboxId) -> Home {
        Home::new(&self.data_dir, id.clone(), self.instance.clone())
    }

    pub fn lifeline(&self) -> BorrowedFd<'_> {
        self.lifeline.read.as_fd()
    }

    fn id_ranges(&self) -> MutexGuard<'_, IdRanges> {
        self.id_ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A range of its own; the shared one if the files have ids of that.
    pub fn take_ids(self: &Arc<Self>, plan: &Plan) -> io::Result<IdRange> {
        match plan.stored()?.root.ids() {
            Ids::Plain => {
                let base = self.id_ranges().take().ok_or(io::ErrorKind::QuotaExceeded)?;
                Ok(IdRange { base, owner: Some(Arc::clone(self)) })
            }
            Ids::Shifted => Ok(IdRange { base: Ids::Shifted.on_disk(0), owner: None }),
        }
    }

    /// The ids of a sandbox: a range or, from a non-root daemon, none.
    pub fn ids_for(
        self: &Arc<Self>,
        runtime: &'static str,
        standing: LauncherRights,
        plan: &Plan,
    ) -> Result<Option<IdRange>, RuntimeError> {
        match (standing, plan.privilege) {
            (LauncherRights::Root, _) => self.take_ids(plan).map(Some).map_err(|source| {
                let what = "find a free range of ids".to_owned();
                RuntimeError::Io { runtime, what, source }
            }),
            (LauncherRights::User, Privilege::None) => Ok(None),
            (LauncherRights::User, Privilege::Root) => {
                let what = "give the privilege of root without having it";
                Err(RuntimeError::Unsupported { runtime, what })
            }
        }
    }

    /// The range that a running process already uses, if it is one of ours.
    pub fn adopt_ids(self: &Arc<Self>, pid: u32) -> io::Result<Option<IdRange>> {
        let Some(base) = id_base_of(pid)?.filter(|base| IdRanges::is_range(*base)) else {
            return Ok(None);
        };
        self.id_ranges().adopt(base);
        Ok(Some(IdRange { base, owner: Some(Arc::clone(self)) }))
    }

    /// The ranges that will most likely be used next.
    pub fn next_id_bases(&self, count: usize) -> Vec<u32> {
        self.id_ranges().next(count)
    }

    pub fn make_groups(&self, plan: &Plan) -> io::Result<()> {
        self.make_groups_for(plan, plan.resources.pids)
    }

    /// The same with another limit for host processes of the sandbox. A sandbox with a kernel of its own runs its
    /// processes there, so its process limit does not apply to those of the host.
    pub fn make_groups_for(&self, plan: &Plan, pids: u64) -> io::Result<()> {
        let limits = Limits { pids, ..limits_of(&plan.resources) };
        self.cgroups.make(plan.id.as_str(), &limits)
    }

    /// Opens a sandbox's groups for entering. After a reboot, or an interrupted create, they do not exist.
    pub fn entry(&self, plan: &Plan, place: GroupPlacement) -> io::Result<Entry> {
        match self.cgroups.entry(plan.id.as_str(), place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make_groups(plan)?;
                self.cgroups.entry(plan.id.as_str(), place)
            }
            opened => opened,
        }
    }

    /// Kills every process in the sandbox's own group, which ends all others, and waits until they are gone. Needs only
    /// the group: the sandbox's home may be gone.
    pub async fn kill(&self, id: &SandboxId, place: GroupPlacement) -> io::Result<()> {
        // If it was killed while starting, another process may have started in the group.
        while let Some(pid) = self.cgroups.pids(id.as_str(), place)?.first().copied() {
            let Ok(pidfd) = pidfd::open(pid) else { continue };
            // The pid may have been reused: the group decides.
            if !self.cgroups.pids(id.as_str(), place)?.contains(&pid) {
                continue;
            }
            end(pidfd, || self.cgroups.thaw(id.as_str())).await?;
        }
        Ok(())
    }
}

/// Kills a process and waits until it is gone. A frozen process dies only when thawed.
pub async fn end(process: OwnedFd, thaw: impl Fn() -> io::Result<()>) -> io::Result<()> {
    pidfd::kill(&process)?;
    let gone = reactor::watch(process, Interest::READABLE)?;
    loop {
        thaw()?;
        if tokio::time::timeout(limits::KILL_LOOK_AGAIN, gone.readable()).await.is_ok() {
            return Ok(());
        }
    }
}

/// A sandbox's limits, as cgroup limits.
pub fn limits_of(resources: &Resources) -> Limits {
    Limits {
        memory_bytes: resources.memory_mb * limits::MIB,
        cpus: resources.cpus,
        pids: resources.pids,
    }
}

/// The first id of a process's user namespace; `None` if the process is gone. A process that has not entered its own
/// namespace yet has the host's whole map, whose base is not a range of ours.
fn id_base_of(pid: u32) -> io::Result<Option<u32>> {
    match std::fs::read_to_string(format!("/proc/{pid}/uid_map")) {
        Ok(map) => Ok(map.split_whitespace().nth(1).and_then(|base| base.parse().ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}
