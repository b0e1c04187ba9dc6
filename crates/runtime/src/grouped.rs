//! Runtimes whose sandboxes live in our own cgroups, or in a substitute if the daemon may not create any.
//!
//! The state is read from the cgroups, not from a file: the processes in a sandbox's group are the sandbox. So a
//! restarted daemon finds exactly what exists, and a pid is never trusted after its process may have ended. Limits,
//! pausing, accounting, killing and the leaves of execs are the same for every technology; only creating the namespaces
//! is up to a [`Starter`].

mod host_resources;
mod id_ranges;
mod leaves;
mod live;
mod networks;
mod parts;

#[cfg(test)]
pub(crate) mod bench;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Capabilities, Death, Files, FoundSandbox, Plan, Runtime, RuntimeError, Stats};
use sandkeep_core::{Resources, SandboxId};
use sandkeep_guestlink::{
    Guest, GuestClient,
    leaf::{LeafKind, LeafPool, NoLeaves},
};
use sandkeep_home::HomeState;
use sandkeep_sys::{
    cgroup::{Controllers, GroupPlacement},
    egress::Sockets,
    launcher::LauncherRights,
    pidfd,
};
use sandkeep_tree::RootKind;

pub use host_resources::{HostResources, IdRange, NoHostResources, end, limits_of};
pub use leaves::Leaves;
pub use live::Live;
pub use networks::Networks;
pub use parts::{Host, Parts, pieces, privilege, shm_bytes};

/// A guest that was just started.
pub struct Started {
    /// The process whose end ends the sandbox.
    pub pidfd: OwnedFd,
    /// Its own range of ids, if any.
    pub ids: Option<IdRange>,
}

/// A technology that starts a guest in a sandbox's cgroups.
#[async_trait]
pub trait Starter: Send + Sync {
    fn name(&self) -> &'static str;

    /// Its capabilities, given the limits that the cgroups can enforce.
    fn capabilities(&self, limits: Controllers) -> Capabilities;

    fn networks(&self) -> &Networks;

    /// Which of the sandbox's groups its processes are in.
    fn place(&self) -> GroupPlacement {
        GroupPlacement::Beside
    }

    /// Starts the guest of a sandbox that is not running, in the groups created for it. When this returns, the guest's
    /// socket accepts connections. After an error, or if dropped, the caller kills everything in the groups and calls
    /// [`Starter::clear`].
    async fn start(
        &self,
        host_resources: &Arc<HostResources>,
        plan: &Plan,
    ) -> Result<Started, RuntimeError>;

    /// Which process in the sandbox's own group is the one whose end ends it, for a daemon that did not start it.
    /// `None` while that process does not exist yet.
    fn guest_among(&self, pids: &[u32]) -> Option<u32> {
        pids.first().copied()
    }

    /// Connects to the guest of a running sandbox.
    fn client(
        &self,
        host_resources: &HostResources,
        id: &SandboxId,
        leaves: Arc<dyn LeafPool>,
    ) -> io::Result<GuestClient> {
        GuestClient::new(open_dir(host_resources.home(id).path())?, leaves)
    }

    /// Removes what the technology stores of a sandbox whose processes are gone, besides cgroups. Idempotent; the
    /// sandbox may be unknown.
    async fn clear(
        &self,
        host_resources: &HostResources,
        id: &SandboxId,
    ) -> Result<(), RuntimeError> {
        let _ = (host_resources, id);
        Ok(())
    }
}

pub struct GroupedRuntime<S> {
    host_resources: Arc<HostResources>,
    starter: S,
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
    /// Whose groups were made by `reserve`, until `create`.
    reserved: Mutex<HashSet<SandboxId>>,
}

impl<S: Starter> GroupedRuntime<S> {
    pub fn new(host_resources: Arc<HostResources>, starter: S) -> Self {
        Self { host_resources, starter, live: Mutex::default(), reserved: Mutex::default() }
    }

    #[cfg(test)]
    pub(crate) fn starter(&self) -> &S {
        &self.starter
    }

    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError + use<S> {
        let runtime = self.starter.name();
        move |source| RuntimeError::Io { runtime, what: what.to_owned(), source }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<Live>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserved(&self) -> MutexGuard<'_, HashSet<SandboxId>> {
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox if it is running, whoever started it.
    fn live(&self, id: &SandboxId) -> Result<Option<Arc<Live>>, RuntimeError> {
        let mut all = self.all();
        if let Some(live) = all.get(id).filter(|live| !live.is_dead()) {
            return Ok(Some(Arc::clone(live)));
        }
        let found = self.adopt(id).map_err(self.failed("find its guest"))?;
        if let Some(live) = &found {
            all.insert(id.clone(), Arc::clone(live));
        }
        Ok(found)
    }

    fn running(&self, id: &SandboxId) -> Result<Arc<Live>, RuntimeError> {
        self.live(id)?.ok_or_else(|| RuntimeError::NotRunning { id: id.clone() })
    }

    pub(crate) fn guest_pid(&self, id: &SandboxId) -> io::Result<Option<u32>> {
        let pids = self.host_resources.cgroups().pids(id.as_str(), self.starter.place())?;
        Ok(self.starter.guest_among(&pids))
    }

    /// Takes over a guest that an earlier daemon started. `None` if there is none, or it has ended meanwhile.
    fn adopt(&self, id: &SandboxId) -> io::Result<Option<Arc<Live>>> {
        let Some(pid) = self.guest_pid(id)? else { return Ok(None) };
        let Ok(pidfd) = pidfd::open(pid) else { return Ok(None) };
        // The process may have ended and its pid been reused: the group decides.
        if self.guest_pid(id)? != Some(pid) {
            return Ok(None);
        }
        let ids = self.host_resources.adopt_ids(pid)?;
        self.watch(id, Started { pidfd, ids }).map(Some)
    }

    fn watch(&self, id: &SandboxId, started: Started) -> io::Result<Arc<Live>> {
        let cgroups = self.host_resources.cgroups();
        let leaves: Arc<dyn LeafPool> = match cgroups.kind() {
            LeafKind::V1 | LeafKind::V2 => Leaves::open(Arc::clone(cgroups), id.to_string())?,
            LeafKind::None => Arc::new(NoLeaves),
        };
        let guest = self.starter.client(&self.host_resources, id, leaves)?;
        Ok(Arc::new(Live::new(started.pidfd, guest, started.ids)?))
    }

    /// Kills every process, and removes what the technology stores of a running sandbox.
    async fn kill(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let killed = self.host_resources.kill(id, self.starter.place()).await;
        killed.map_err(self.failed("kill its guest"))?;
        // Releases a dead guest and its range of ids.
        let known = self.all().remove(id);
        if let Some(live) = known {
            live.kill().await.map_err(self.failed("kill its guest"))?;
        }
        self.starter.clear(&self.host_resources, id).await
    }

    fn can_pause(&self) -> Result<(), RuntimeError> {
        if self.capabilities().pause {
            Ok(())
        } else {
            Err(RuntimeError::Unsupported { runtime: self.starter.name(), what: "pause" })
        }
    }

    async fn start_new(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let started = self.starter.start(&self.host_resources, plan).await?;
        let live = self.watch(&plan.id, started).map_err(self.failed("watch its guest"))?;
        self.all().insert(plan.id.clone(), live);
        Ok(())
    }
}

#[async_trait]
impl<S: Starter> Runtime for GroupedRuntime<S> {
    fn name(&self) -> &'static str {
        self.starter.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            network: self.check_network().is_ok(),
            ..self.starter.capabilities(self.host_resources.cgroups().controllers())
        }
    }

    fn check_network(&self) -> Result<(), RuntimeError> {
        self.starter.networks().check(self.starter.name())
    }

    fn files(&self) -> Files {
        Files::OnStorage(&[RootKind::Dir, RootKind::Shifted, RootKind::Overlay])
    }

    /// Its groups, and the leaf of its first exec.
    async fn reserve(&self, id: &SandboxId, resources: &Resources) -> Result<(), RuntimeError> {
        let cgroups = Arc::clone(self.host_resources.cgroups());
        // A tool within the limits has no leaves, and makes its groups with limits of its own.
        if cgroups.kind() == LeafKind::None || self.starter.place() == GroupPlacement::Within {
            return Ok(());
        }
        let (name, limits) = (id.to_string(), limits_of(resources));
        let make = move || {
            cgroups.make(&name, &limits)?;
            Leaves::make_first(cgroups.as_ref(), &name)
        };
        let made = tokio::task::spawn_blocking(make).await;
        let made = made.unwrap_or_else(|error| Err(error.into()));
        made.map_err(self.failed("make its control groups"))?;
        self.reserved().insert(id.clone());
        Ok(())
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        plan.check(self)?;
        if self.reserved().remove(&plan.id) {
            return Ok(());
        }
        self.host_resources.make_groups(plan).map_err(self.failed("make its control groups"))
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        if self.live(&plan.id)?.is_some() {
            return Ok(());
        }
        let started = self.start_new(plan).await;
        if started.is_err() {
            self.kill(&plan.id).await?;
        }
        started
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        if let Some(live) = self.live(id)? {
            // Frozen processes could not use the grace period.
            self.host_resources.cgroups().thaw(id.as_str()).map_err(self.failed("thaw it"))?;
            if let Err(error) = live.guest().terminate(grace).await {
                tracing::debug!(sandbox = %id, %error, "the guest could not end its processes");
            }
        }
        self.kill(id).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.can_pause()?;
        self.running(id)?;
        let (cgroups, name) = (Arc::clone(self.host_resources.cgroups()), id.to_string());
        // It may have to wait for a process that waits for a CPU.
        let frozen = tokio::task::spawn_blocking(move || cgroups.freeze(&name)).await;
        frozen.unwrap_or_else(|error| Err(error.into())).map_err(self.failed("freeze it"))
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.can_pause()?;
        self.running(id)?;
        self.host_resources.cgroups().thaw(id.as_str()).map_err(self.failed("thaw it"))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.reserved().remove(id);
        self.kill(id).await?;
        let removed = self.host_resources.cgroups().remove(id.as_str());
        removed.map_err(self.failed("remove its control groups"))
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        match self.live(id) {
            Ok(Some(live)) => live.died().await,
            Ok(None) => {
                let seen = self.all().get(id).and_then(|live| live.death());
                seen.unwrap_or_else(|| Death { reason: "it is not running".to_owned() })
            }
            Err(error) => Death { reason: error.to_string() },
        }
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        let names = self.host_resources.cgroups().sandboxes();
        let mut found = Vec::new();
        for name in names.map_err(self.failed("list control groups"))? {
            let Ok(id) = name.parse::<SandboxId>() else { continue };
            // Without its labels its owner is unknown; reconcile handles such remains.
            let HomeState::Known(meta) = self.host_resources.home(&id).read() else { continue };
            if meta.spec.runtime() != self.starter.name() {
                continue;
            }
            let running = self.live(&id)?.is_some();
            found.push(FoundSandbox { id, labels: meta.labels(), running });
        }
        Ok(found)
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.running(id)?;
        let used = self.host_resources.cgroups().used(id.as_str());
        let used = used.map_err(self.failed("read its usage"))?;
        Ok(Stats { memory_bytes: used.memory_bytes, cpu_micros: used.cpu_micros, pids: used.pids })
    }

    async fn network(&self, id: &SandboxId) -> Result<Sockets, RuntimeError> {
        self.check_network()?;
        let process = self.running(id)?.process().map_err(self.failed("find its network"))?;
        let caught = self.starter.networks().catch(process).await;
        caught.map_err(self.failed("catch what it sends out"))
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        Ok(self.running(id)?.guest())
    }
}

/// The capabilities of every technology whose guest is PID 1 of its own namespaces, in its own range of ids.
pub fn capabilities(limits: Controllers) -> Capabilities {
    Capabilities {
        isolation: true,
        own_id_range: true,
        any_user: true,
        memory_limit: limits.memory,
        oom_per_exec: limits.memory,
        cpu_limit: limits.cpu,
        pids_limit: limits.pids,
        exec_limits: limits.hold_any(),
        pause: limits.freezer,
        terminals: true,
        shells: true,
        ports: true,
        survives_daemon: true,
        network: false,
        mounts: false,
    }
}

/// The same for a daemon of this standing: a non-root daemon has only a single id to give.
pub fn capabilities_of(standing: LauncherRights, limits: Controllers) -> Capabilities {
    Capabilities {
        own_id_range: standing == LauncherRights::Root,
        any_user: standing == LauncherRights::Root,
        ..capabilities(limits)
    }
}

/// A directory for resolving names, not for reading.
pub fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::empty())?)
}
