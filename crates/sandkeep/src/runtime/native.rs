//! The native runtime: namespaces, control groups, seccomp and Landlock, made by our own launcher.
//!
//! It keeps nothing on disk. What runs is read from the control groups: the guest of a sandbox is
//! the one process in the sandbox's own group, so a restarted daemon finds exactly what is there,
//! and a process id is never trusted after the process may have ended.

mod id_ranges;
mod leaves;
mod live;
mod start;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::Interest;

use super::{Capabilities, Death, Found, Plan, Runtime, RuntimeError, Stats, Usable};
use crate::guest::Guest;
use crate::home::{Home, HomeState};
use crate::limits;
use crate::sandbox::SandboxId;
use crate::sys::cgroup::{self, Hierarchy};
use crate::sys::launcher::Launcher;
use crate::sys::{pidfd, reactor};
use id_ranges::IdRanges;
use live::Live;

pub struct NativeOptions {
    pub data_dir: PathBuf,
    /// The data directory's own id.
    pub instance: String,
    /// How to execute the launcher: this program with the arguments that make it one.
    pub launcher: Vec<OsString>,
}

pub struct NativeRuntime {
    data_dir: PathBuf,
    instance: String,
    cgroups: Arc<dyn Hierarchy>,
    launcher: Arc<Launcher>,
    lifeline: live::Lifeline,
    id_ranges: Arc<Mutex<IdRanges>>,
    live: Mutex<HashMap<SandboxId, Arc<Live>>>,
}

/// Why the native runtime cannot be used on this machine.
#[derive(Debug, thiserror::Error)]
pub enum NativeUnusable {
    #[error("it needs root (uid 0) to make control groups and mounts")]
    NotRoot,
    #[error(transparent)]
    Cgroups(#[from] cgroup::Unusable),
    #[error("the launcher does not start: {0}")]
    Launcher(#[source] io::Error),
    #[error("the ids in use cannot be read: {0}")]
    IdRanges(#[source] io::Error),
    #[error("no pipe for the lifeline: {0}")]
    Lifeline(#[source] io::Error),
}

impl NativeRuntime {
    pub const NAME: &str = "native";

    /// Finds out what this machine offers and starts the launcher.
    pub async fn start(options: NativeOptions) -> Result<Arc<Self>, NativeUnusable> {
        if !rustix::process::geteuid().is_root() {
            return Err(NativeUnusable::NotRoot);
        }
        let cgroups = cgroup::open(&options.instance)?;
        Self::start_in(options, cgroups).await
    }

    /// The same in a given hierarchy of control groups.
    async fn start_in(
        options: NativeOptions,
        cgroups: Box<dyn Hierarchy>,
    ) -> Result<Arc<Self>, NativeUnusable> {
        let launcher = Launcher::start(options.launcher).await.map_err(NativeUnusable::Launcher)?;
        let id_ranges = IdRanges::new(&options.instance).map_err(NativeUnusable::IdRanges)?;
        let lifeline = live::Lifeline::new().map_err(NativeUnusable::Lifeline)?;
        Ok(Arc::new(Self {
            data_dir: options.data_dir,
            instance: options.instance,
            cgroups: Arc::from(cgroups),
            launcher,
            lifeline,
            id_ranges: Arc::new(Mutex::new(id_ranges)),
            live: Mutex::new(HashMap::new()),
        }))
    }

    fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> RuntimeError {
        let what = what.into();
        move |source| RuntimeError::Io { runtime: Self::NAME, what, source }
    }

    fn home(&self, id: &SandboxId) -> Home {
        Home::new(&self.data_dir, id.clone(), self.instance.clone())
    }

    /// The sandbox if it runs, whoever started it.
    fn live(&self, id: &SandboxId) -> Result<Option<Arc<Live>>, RuntimeError> {
        let mut all = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = all.get(id).filter(|live| !live.is_dead()) {
            return Ok(Some(Arc::clone(live)));
        }
        let found = self
            .cgroups
            .guest_pid(id.as_str())
            .and_then(|pid| pid.map(|pid| self.adopt(id, pid)).transpose())
            .map_err(Self::failed("find its guest"))?
            .flatten();
        if let Some(live) = &found {
            all.insert(id.clone(), Arc::clone(live));
        }
        Ok(found)
    }

    fn running(&self, id: &SandboxId) -> Result<Arc<Live>, RuntimeError> {
        self.live(id)?.ok_or_else(|| RuntimeError::NotRunning { id: id.clone() })
    }

    /// Lets go of a guest that is dead, and of its range of ids.
    async fn forget(&self, id: &SandboxId) {
        let known = self.live.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        if let Some(live) = known {
            live.died().await;
        }
    }

    /// Kills the guest, and with it every process of its namespace, and waits for the end. It needs
    /// nothing but the control group: the sandbox's home may be gone.
    async fn kill(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let failed = || Self::failed("kill its guest");
        // One that was killed while it started may be followed by another that starts.
        while let Some(pid) = self.cgroups.guest_pid(id.as_str()).map_err(failed())? {
            let Ok(pidfd) = pidfd::open(pid) else { continue };
            // The number may be another's by now: the group tells.
            if self.cgroups.guest_pid(id.as_str()).map_err(failed())? != Some(pid) {
                continue;
            }
            pidfd::kill(&pidfd).map_err(failed())?;
            let gone = reactor::watch(pidfd, Interest::READABLE).map_err(failed())?;
            loop {
                // A frozen process dies only when it is thawed.
                self.cgroups.thaw(id.as_str()).map_err(Self::failed("thaw it"))?;
                let gone = tokio::time::timeout(limits::KILL_LOOK_AGAIN, gone.readable()).await;
                if gone.is_ok() {
                    break;
                }
            }
        }
        self.forget(id).await;
        Ok(())
    }
}

#[async_trait]
impl Runtime for NativeRuntime {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn usable(&self) -> Usable {
        Usable::Yes
    }

    fn capabilities(&self) -> Capabilities {
        let controllers = self.cgroups.controllers();
        Capabilities {
            isolation: true,
            own_id_range: true,
            memory_limit: controllers.memory,
            cpu_limit: controllers.cpu,
            pids_limit: controllers.pids,
            pause: true,
            terminals: true,
            shells: true,
            ports: true,
            survives_daemon: true,
        }
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.make_groups(plan)
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.start_guest(plan).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        if let Some(live) = self.live(id)? {
            // Frozen processes could not use their grace.
            self.cgroups.thaw(id.as_str()).map_err(Self::failed("thaw it"))?;
            if let Err(error) = live.guest().terminate(grace).await {
                tracing::debug!(sandbox = %id, %error, "the guest could not end its processes");
            }
        }
        self.kill(id).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.running(id)?;
        self.cgroups.freeze(id.as_str()).map_err(Self::failed("freeze it"))
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.running(id)?;
        self.cgroups.thaw(id.as_str()).map_err(Self::failed("thaw it"))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.kill(id).await?;
        self.cgroups.remove(id.as_str()).map_err(Self::failed("remove its control groups"))
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        match self.live(id) {
            Ok(Some(live)) => live.died().await,
            Ok(None) => self.last_death(id),
            Err(error) => Death { reason: error.to_string() },
        }
    }

    async fn list(&self) -> Result<Vec<Found>, RuntimeError> {
        let mut found = Vec::new();
        for name in self.cgroups.sandboxes().map_err(Self::failed("list control groups"))? {
            let Ok(id) = name.parse::<SandboxId>() else { continue };
            // Without its labels nobody could say whose it is; reconcile deals with such remains.
            let HomeState::Known(meta) = self.home(&id).read() else { continue };
            let running = self.live(&id)?.is_some();
            found.push(Found { id, labels: meta.labels(), running });
        }
        Ok(found)
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.running(id)?;
        let used = self.cgroups.used(id.as_str()).map_err(Self::failed("read its usage"))?;
        Ok(Stats { memory_bytes: used.memory_bytes, cpu_micros: used.cpu_micros, pids: used.pids })
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        Ok(self.running(id)?.guest())
    }
}
