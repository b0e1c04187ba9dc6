//! Sandboxes as containers of a local engine, Docker or Podman.
//!
//! An engine cannot use a directory as a container's root without writing to it, and passes no descriptor into a
//! container. So the root of every container is empty and read-only, and contains:
//!
//! ```text
//! /volume          the sandbox's volume; the guest makes it its root and drops the way back
//!   usr, etc, …    the template's directories of the host, read-only
//!   proc, dev      the container's own, mounted here a second time (`sys::container`)
//! /sandkeep        read-only, from the sandbox's home
//!   guest          PID 1
//!   guest.sock     the guest dials this; other processes are refused by their process id
//! ```
//!
//! All of the sandbox's files are on its volume, and none in the engine's storage. The limits are the engine's; below
//! the cgroup that it created, leaves of execs, freezing and accounting work as in our own cgroups. So an exec needs no
//! call of the engine, which is used only to create, start, remove and list.
//!
//! The engine is never trusted about whether a container *runs*: that is decided by its first process, watched through
//! a descriptor. The container's labels identify its owner, and nothing else does.

mod container;
mod live;
pub mod socket;

#[cfg(test)]
pub(crate) mod bench;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OwnedMutexGuard;

use super::grouped::{self, HostResources, Networks};
use super::{
    Capabilities, Death, Files, FoundSandbox, Lifetime, Plan, Runtime, RuntimeError, Stats,
};
use container::labels;
pub use container::{Access, Bound, Container, seccomp};
use live::Contained;
use sandkeep_core::{SandboxId, limits};
use sandkeep_guestlink::Guest;
use sandkeep_home::HomeState;
use sandkeep_sys::{cgroup::Controllers, egress::Sockets};
use sandkeep_tree::RootKind;

/// A container, as its engine describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspected {
    /// The engine's id of it.
    pub id: String,
    pub labels: HashMap<String, String>,
    /// Its first process, if the engine considers it running.
    pub pid: Option<u32>,
}

/// A container in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub labels: HashMap<String, String>,
    /// Whether the engine considers it running.
    pub running: bool,
}

/// Why an engine cannot be used here, and what to do about it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoEngine(pub String);

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("its API does not answer: {0}")]
    Unreachable(#[source] io::Error),
    #[error("its API did not answer within {} s", after.as_secs())]
    TimedOut { after: Duration },
    #[error("its API answered {status}: {message}")]
    Refused { status: u16, message: String },
    #[error("its API gave an answer that cannot be understood: {0}")]
    Strange(String),
}

/// The operations of an engine. Each has a timeout.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Which limits it can enforce here.
    fn limits(&self) -> Controllers;

    /// Creates a container without starting it. The name must be unused.
    async fn create(&self, container: &Container) -> Result<(), EngineError>;

    /// Starts a container that is not running.
    async fn start(&self, name: &str) -> Result<(), EngineError>;

    /// `None` if no container has that name.
    async fn inspect(&self, name: &str) -> Result<Option<Inspected>, EngineError>;

    /// Removes a container, running or not. `Ok` if it does not exist, or is being removed already.
    async fn remove(&self, name: &str) -> Result<(), EngineError>;

    /// All containers with this label.
    async fn list(&self, label: &str, value: &str) -> Result<Vec<Listed>, EngineError>;
}

/// The state of one sandbox. Holding its lock gives exclusive access to its container.
type ContainerSlot = Option<Arc<Contained>>;

pub struct EngineRuntime<E> {
    shared: Arc<Shared<E>>,
}

struct Shared<E> {
    engine: E,
    host_resources: Arc<HostResources>,
    networks: Networks,
    /// The instance whose containers are ours.
    instance: String,
    places: Mutex<HashMap<SandboxId, Arc<tokio::sync::Mutex<ContainerSlot>>>>,
}

impl<E: Engine> EngineRuntime<E> {
    /// An error says why this is impossible.
    pub fn new(engine: E, host_resources: Arc<HostResources>) -> Result<Arc<Self>, NoEngine> {
        if !rustix::process::geteuid().is_root() {
            return Err(NoEngine("it needs root (uid 0) to look into containers".to_owned()));
        }
        container::write_guest(host_resources.data_dir()).map_err(|error| {
            NoEngine(format!("the guest cannot be put into the data directory: {error}"))
        })?;
        let instance = host_resources.instance().to_owned();
        let (networks, places) = (Networks::of_root(), Mutex::default());
        let shared = Shared { engine, host_resources, networks, instance, places };
        Ok(Arc::new(Self { shared: Arc::new(shared) }))
    }

    /// Runs an operation on a sandbox's container to its end, even if the caller stops waiting: an engine continues
    /// with its request, and the next operation must find it complete.
    async fn to_its_end<T, F>(
        &self,
        id: &SandboxId,
        work: impl FnOnce(Arc<Shared<E>>, OwnedMutexGuard<ContainerSlot>) -> F,
    ) -> Result<T, RuntimeError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RuntimeError>> + Send + 'static,
    {
        let place = self.shared.place(id).lock_owned().await;
        let work = tokio::spawn(work(Arc::clone(&self.shared), place));
        work.await
            .unwrap_or_else(|error| Err(self.shared.failed("finish")(io::Error::other(error))))
    }

    async fn running(&self, id: &SandboxId) -> Result<Arc<Contained>, RuntimeError> {
        let live = self.shared.live(id).await?;
        live.ok_or_else(|| RuntimeError::NotRunning { id: id.clone() })
    }
}

impl<E: Engine> Shared<E> {
    fn failed(&self, what: &'static str) -> impl FnOnce(io::Error) -> RuntimeError + use<E> {
        let runtime = self.engine.name();
        move |source| RuntimeError::Io { runtime, what: what.to_owned(), source }
    }

    fn refused(&self, what: &'static str) -> impl FnOnce(EngineError) -> RuntimeError + use<E> {
        let failed = self.failed(what);
        move |error| failed(io::Error::other(error))
    }

    fn place(&self, id: &SandboxId) -> Arc<tokio::sync::Mutex<ContainerSlot>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(places.entry(id.clone()).or_default())
    }

    fn forget(&self, id: &SandboxId) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The sandbox if it is running, whoever started it.
    async fn live(&self, id: &SandboxId) -> Result<ContainerSlot, RuntimeError> {
        let mut place = self.place(id).lock_owned().await;
        self.find(id, &mut place).await
    }

    /// Whether a container that the engine considers running is alive. One that cannot be taken over is not therefore
    /// dead.
    async fn seems_alive(&self, id: &SandboxId) -> bool {
        match self.live(id).await {
            Ok(live) => live.is_some(),
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a container cannot be taken over");
                true
            }
        }
    }

    async fn find(
        &self,
        id: &SandboxId,
        place: &mut ContainerSlot,
    ) -> Result<ContainerSlot, RuntimeError> {
        if let Some(known) = place.as_ref().filter(|known| !known.is_over()) {
            return Ok(Some(Arc::clone(known)));
        }
        let inspected = self.inspect(id).await?;
        let Some(pid) = inspected.as_ref().and_then(|inspected| inspected.pid) else {
            return Ok(None);
        };
        // Its labels identify its owner, but anybody can use a name.
        let Some(inspected) = inspected.filter(|it| self.is_ours(it, id)) else { return Ok(None) };
        let found = self.adopt(id, &inspected.id, pid).await;
        let found = found.map_err(self.failed("find its guest"))?;
        if found.is_some() {
            place.clone_from(&found);
        }
        Ok(found)
    }

    /// Takes over a container that an earlier daemon started, possibly in its last moment.
    async fn adopt(&self, id: &SandboxId, container: &str, pid: u32) -> io::Result<ContainerSlot> {
        let home = self.host_resources.home(id);
        let HomeState::Known(meta) = home.read() else {
            return Err(io::Error::other("its home does not say what it may use"));
        };
        let door = live::listen(home.path())?;
        // A guest that is still waiting for its root gives up by itself.
        let found = Contained::new(container, pid, meta.spec.resources(), door, None).await?;
        Ok(found.map(Arc::new))
    }

    async fn inspect(&self, id: &SandboxId) -> Result<Option<Inspected>, RuntimeError> {
        let inspected = self.engine.inspect(&container::name(id)).await;
        inspected.map_err(self.refused("look at its container"))
    }

    fn is_ours(&self, inspected: &Inspected, id: &SandboxId) -> bool {
        labels::read(&inspected.labels)
            .is_some_and(|(of, labels)| of == *id && labels.instance == self.instance)
    }

    /// Creates the container for the plan; one that was created for another plan is removed.
    async fn make(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let door = container::make_door(self.host_resources.data_dir(), &plan.home);
        door.map_err(self.failed("show it the guest"))?;
        let container = Container::of(plan).map_err(self.failed("find its volume"))?;
        if let Some(there) = self.inspect(&plan.id).await? {
            if there.labels.get(labels::PLAN) == container.labels.get(labels::PLAN) {
                return Ok(());
            }
            self.remove(&plan.id).await?;
        }
        self.engine.create(&container).await.map_err(self.refused("create its container"))
    }

    async fn start(&self, plan: &Plan, place: &mut ContainerSlot) -> Result<(), RuntimeError> {
        if self.find(&plan.id, place).await?.is_some() {
            return Ok(());
        }
        let started = self.start_new(plan).await;
        match started {
            Ok(live) => {
                *place = Some(Arc::new(live));
                Ok(())
            }
            Err(error) => {
                self.kill(&plan.id, place).await?;
                Err(error)
            }
        }
    }

    async fn start_new(&self, plan: &Plan) -> Result<Contained, RuntimeError> {
        // One that has just died may still be considered running, and would not be started.
        self.wait_until_it_rests(&plan.id).await?;
        self.make(plan).await?;
        let door = live::listen(&plan.home).map_err(self.failed("listen for its guest"))?;
        let overlay = plan.stored().and_then(|files| live::overlay(&files.root));
        let overlay = overlay.map_err(self.failed("open its root"))?;
        let name = container::name(&plan.id);
        self.engine.start(&name).await.map_err(self.refused("start its container"))?;
        let inspected = self.inspect(&plan.id).await?;
        let running = inspected.and_then(|there| Some((there.pid?, there.id)));
        let ended = || io::Error::other("its first process has ended at once");
        let (pid, id) = running.ok_or_else(ended).map_err(self.failed("start its container"))?;
        let live = Contained::new(&id, pid, &plan.resources, door, overlay).await;
        let live = live.map_err(self.failed("watch its guest"))?;
        live.ok_or_else(ended).map_err(self.failed("start its container"))
    }

    /// Waits until the engine no longer considers the container running. None of its processes is alive.
    async fn wait_until_it_rests(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.wait_until(|| async {
            let inspected = self.inspect(id).await?;
            Ok(inspected.is_none_or(|inspected| inspected.pid.is_none()))
        })
        .await
    }

    /// Removes the container and waits until the engine no longer lists it.
    async fn remove(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let name = container::name(id);
        self.wait_until(|| async {
            self.engine.remove(&name).await.map_err(self.refused("remove its container"))?;
            Ok(self.inspect(id).await?.is_none())
        })
        .await
    }

    async fn wait_until<F>(&self, mut done: impl FnMut() -> F) -> Result<(), RuntimeError>
    where
        F: Future<Output = Result<bool, RuntimeError>>,
    {
        let wait = async {
            while !done().await? {
                tokio::time::sleep(limits::ENGINE_LOOK_AGAIN).await;
            }
            Ok(())
        };
        let late =
            |_| self.refused("finish")(EngineError::TimedOut { after: limits::ENGINE_SETTLES });
        tokio::time::timeout(limits::ENGINE_SETTLES, wait).await.map_err(late)?
    }

    /// Kills every process. The container stays.
    async fn kill(&self, id: &SandboxId, place: &mut ContainerSlot) -> Result<(), RuntimeError> {
        if let Some(live) = self.find(id, place).await? {
            live.kill().await.map_err(self.failed("kill its guest"))?;
            self.wait_until_it_rests(id).await?;
        }
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId, place: &mut ContainerSlot) -> Result<(), RuntimeError> {
        match self.inspect(id).await? {
            Some(there) if self.is_ours(&there, id) => {}
            Some(_) | None => return Ok(()),
        }
        self.kill(id, place).await?;
        self.remove(id).await
    }
}

#[async_trait]
impl<E: Engine> Runtime for EngineRuntime<E> {
    fn name(&self) -> &'static str {
        self.shared.engine.name()
    }

    fn capabilities(&self) -> Capabilities {
        let limits = self.shared.engine.limits();
        Capabilities {
            own_id_range: false,
            pause: true,
            network: self.check_network().is_ok(),
            ..grouped::capabilities(limits)
        }
    }

    fn check_network(&self) -> Result<(), RuntimeError> {
        self.shared.networks.check(self.name())
    }

    /// An engine cannot map the ids of a volume, so it accepts no volume with shifted ids.
    fn files(&self) -> Files {
        Files::OnStorage(&[RootKind::Dir, RootKind::Overlay])
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        plan.check(self)?;
        if plan.lifetime == Lifetime::WithDaemon {
            let (runtime, what) = (self.name(), "end a sandbox with the program that made it");
            return Err(RuntimeError::Unsupported { runtime, what });
        }
        let plan = plan.clone();
        let id = plan.id.clone();
        self.to_its_end(&id, |shared, place| async move {
            let made = shared.make(&plan).await;
            // Held until here, because a destroy in between would not find the container.
            drop(place);
            made
        })
        .await
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let plan = plan.clone();
        let id = plan.id.clone();
        self.to_its_end(
            &id,
            |shared, mut place| async move { shared.start(&plan, &mut place).await },
        )
        .await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        if let Some(live) = self.shared.live(id).await? {
            // Frozen processes could not use the grace period.
            live.thaw().map_err(self.shared.failed("thaw it"))?;
            if let Err(error) = live.guest().terminate(grace).await {
                tracing::debug!(sandbox = %id, %error, "the guest could not end its processes");
            }
        }
        let sandbox = id.clone();
        self.to_its_end(id, |shared, mut place| async move {
            shared.kill(&sandbox, &mut place).await?;
            shared.wait_until_it_rests(&sandbox).await
        })
        .await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let live = self.running(id).await?;
        // It may have to wait for a process that waits for a CPU.
        let frozen = tokio::task::spawn_blocking(move || live.freeze()).await;
        frozen.unwrap_or_else(|error| Err(error.into())).map_err(self.shared.failed("freeze it"))
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.running(id).await?.thaw().map_err(self.shared.failed("thaw it"))
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let sandbox = id.clone();
        self.to_its_end(id, |shared, mut place| async move {
            shared.destroy(&sandbox, &mut place).await?;
            shared.forget(&sandbox);
            Ok(())
        })
        .await
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        match self.shared.live(id).await {
            Ok(Some(live)) => live.died().await,
            Ok(None) => {
                let seen = self.shared.place(id).lock().await.as_ref().and_then(|it| it.death());
                seen.unwrap_or_else(|| Death { reason: "it is not running".to_owned() })
            }
            Err(error) => Death { reason: error.to_string() },
        }
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        let listed = self.shared.engine.list(labels::INSTANCE, &self.shared.instance).await;
        let mut found = Vec::new();
        for container in listed.map_err(self.shared.refused("list containers"))? {
            // Without all of its labels its owner is unknown.
            let Some((id, labels)) = labels::read(&container.labels) else { continue };
            let running = container.running && self.shared.seems_alive(&id).await;
            found.push(FoundSandbox { id, labels, running });
        }
        Ok(found)
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.running(id).await?.stats().map_err(self.shared.failed("read its usage"))
    }

    async fn network(&self, id: &SandboxId) -> Result<Sockets, RuntimeError> {
        self.check_network()?;
        let live = self.running(id).await?;
        let process = live.process().map_err(self.shared.failed("find its network"))?;
        let caught = self.shared.networks.catch(process).await;
        caught.map_err(self.shared.failed("catch what it sends out"))
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        Ok(self.running(id).await?.guest())
    }
}
