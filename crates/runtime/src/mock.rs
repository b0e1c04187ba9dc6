//! A runtime without isolation, processes and files: sandboxes are entries of a map, and commands are a few built-in
//! words. It exists for tests of the broker and the protocols above it, and only with `--enable-mock`; its capabilities
//! declare nothing.

mod guest;
mod shell;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Capabilities, Death, Files, FoundSandbox, Plan, Runtime, RuntimeError, Stats};
use guest::{MockGuest, Shutdown};
use sandkeep_core::{Labels, SandboxId};
use sandkeep_guestlink::Guest;
use sandkeep_tree::RootKind;

const NAME: &str = "mock";

/// The sandboxes of one instance in a world that several instances may share.
#[derive(Clone)]
pub struct MockRuntime {
    instance: String,
    files: Files,
    world: Arc<Mutex<HashMap<SandboxId, Machine>>>,
}

struct Machine {
    labels: Labels,
    life: watch::Sender<Life>,
}

#[derive(Clone)]
enum Life {
    Down(Death),
    Up(Arc<MockGuest>),
}

impl MockRuntime {
    pub const NAME: &str = NAME;

    pub fn new(instance: impl Into<String>) -> Self {
        let files = Files::OnStorage(&[RootKind::Dir, RootKind::Shifted, RootKind::Overlay]);
        Self { instance: instance.into(), files, world: Arc::default() }
    }

    fn world(&self) -> MutexGuard<'_, HashMap<SandboxId, Machine>> {
        // No code panics between two changes that belong together.
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a running sandbox; `how` is what its commands notice.
    fn bring_down(machine: &Machine, how: Shutdown, reason: &str) {
        let down = Life::Down(Death { reason: reason.to_owned() });
        machine.life.send_if_modified(|life| match life {
            Life::Up(guest) => {
                guest.shut_down(how);
                *life = down;
                true
            }
            Life::Down(_) => false,
        });
    }

    fn not_found(id: &SandboxId) -> RuntimeError {
        RuntimeError::NotFound { runtime: NAME, id: id.clone() }
    }
}

#[cfg(any(test, feature = "in-tests"))]
impl MockRuntime {
    /// Another instance in the same world.
    pub fn neighbour(&self, instance: impl Into<String>) -> Self {
        Self { instance: instance.into(), ..self.clone() }
    }

    /// The same world, with another way of storing files.
    pub fn keeping(&self, files: Files) -> Self {
        Self { files, ..self.clone() }
    }

    /// Kills a sandbox as an outside process would, without telling anybody.
    pub fn kill(&self, id: &SandboxId) {
        if let Some(machine) = self.world().get(id) {
            Self::bring_down(machine, Shutdown::Killed, "guest killed by signal 9");
        }
    }
}

#[async_trait]
impl Runtime for MockRuntime {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { any_user: true, ..Capabilities::default() }
    }

    fn files(&self) -> Files {
        self.files
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        plan.check(self)?;
        self.world().entry(plan.id.clone()).or_insert_with(|| Machine {
            labels: plan.labels.clone(),
            life: watch::Sender::new(Life::Down(Death { reason: "never started".to_owned() })),
        });
        Ok(())
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        let world = self.world();
        let machine = world.get(&plan.id).ok_or_else(|| Self::not_found(&plan.id))?;
        machine.life.send_if_modified(|life| match life {
            Life::Down(_) => {
                *life = Life::Up(Arc::new(MockGuest::new(plan.id.to_string())));
                true
            }
            Life::Up(_) => false,
        });
        Ok(())
    }

    async fn stop(&self, id: &SandboxId, _grace: Duration) -> Result<(), RuntimeError> {
        if let Some(machine) = self.world().get(id) {
            Self::bring_down(machine, Shutdown::Terminated, "stopped");
        }
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        if let Some(machine) = self.world().remove(id) {
            Self::bring_down(&machine, Shutdown::Killed, "destroyed");
        }
        Ok(())
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        let life = self.world().get(id).map(|machine| machine.life.subscribe());
        let unknown = || Death { reason: "there is no such sandbox".to_owned() };
        let Some(mut life) = life else { return unknown() };
        match life.wait_for(|life| matches!(life, Life::Down(_))).await.as_deref() {
            Ok(Life::Down(death)) => death.clone(),
            Ok(Life::Up(_)) | Err(_) => unknown(),
        }
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        let world = self.world();
        let ours = world.iter().filter(|(_, machine)| machine.labels.instance == self.instance);
        Ok(ours
            .map(|(id, machine)| FoundSandbox {
                id: id.clone(),
                labels: machine.labels.clone(),
                running: matches!(*machine.life.borrow(), Life::Up(_)),
            })
            .collect())
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        if self.world().contains_key(id) { Ok(Stats::default()) } else { Err(Self::not_found(id)) }
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        let world = self.world();
        let machine = world.get(id).ok_or_else(|| Self::not_found(id))?;
        match &*machine.life.borrow() {
            Life::Up(guest) => Ok(Arc::clone(guest) as Arc<dyn Guest>),
            Life::Down(_) => Err(RuntimeError::NotRunning { id: id.clone() }),
        }
    }
}
