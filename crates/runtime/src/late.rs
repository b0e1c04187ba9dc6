//! A runtime whose technology may become available while the daemon runs, such as a container engine that is started
//! later. Until then it is a [`MissingRuntime`] with the last reason; afterwards it is the real one.

use std::fmt::Display;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tracing::info;

use super::{
    Capabilities, Death, Files, FoundSandbox, MissingRuntime, Plan, Runtime, RuntimeError, Stats,
    Usable,
};
use sandkeep_core::{Resources, SandboxId};
use sandkeep_guestlink::Guest;
use sandkeep_sys::egress::Sockets;

pub struct LateRuntime {
    name: &'static str,
    find: Box<dyn Fn() -> BoxFuture<'static, Arc<dyn Runtime>> + Send + Sync>,
    present: RwLock<Arc<dyn Runtime>>,
    /// One search at a time.
    searching: Mutex<()>,
}

impl LateRuntime {
    /// Tries to detect it; if that fails, [`Runtime::look_again`] tries again.
    pub async fn sought<R, E, F>(
        name: &'static str,
        find: impl Fn() -> F + Send + Sync + 'static,
    ) -> Arc<dyn Runtime>
    where
        R: Runtime + 'static,
        E: Display,
        F: Future<Output = Result<Arc<R>, E>> + Send + 'static,
    {
        let find = Box::new(move || {
            let found = find();
            Box::pin(async move {
                match found.await {
                    Ok(runtime) => runtime as Arc<dyn Runtime>,
                    Err(reason) => MissingRuntime::listed(name, &reason),
                }
            }) as BoxFuture<'static, Arc<dyn Runtime>>
        });
        let present = RwLock::new(find().await);
        Arc::new(Self { name, find, present, searching: Mutex::default() })
    }

    fn present(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.present.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Runtime for LateRuntime {
    fn name(&self) -> &'static str {
        self.name
    }

    fn usable(&self) -> Usable {
        self.present().usable()
    }

    fn capabilities(&self) -> Capabilities {
        self.present().capabilities()
    }

    fn files(&self) -> Files {
        self.present().files()
    }

    async fn look_again(&self) {
        let _one = self.searching.lock().await;
        if self.usable() == Usable::Yes {
            return;
        }
        let present = (self.find)().await;
        if present.usable() == Usable::Yes {
            info!(runtime = self.name, "a runtime can be used now");
        }
        *self.present.write().unwrap_or_else(PoisonError::into_inner) = present;
    }

    fn check_network(&self) -> Result<(), RuntimeError> {
        self.present().check_network()
    }

    async fn reserve(&self, id: &SandboxId, resources: &Resources) -> Result<(), RuntimeError> {
        self.present().reserve(id, resources).await
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.present().create(plan).await
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.present().start(plan).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        self.present().stop(id, grace).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.present().freeze(id).await
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.present().thaw(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.present().destroy(id).await
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        self.present().wait(id).await
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        self.present().list().await
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.present().stats(id).await
    }

    async fn network(&self, id: &SandboxId) -> Result<Sockets, RuntimeError> {
        self.present().network(id).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        self.present().connect(id).await
    }
}
