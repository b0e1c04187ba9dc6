//! A destroy queued behind a stop whose processes use the whole grace period.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::world::{LONG, World, create, me};
use crate::Broker;
use sandkeep_core::{Operation, SandboxId};
use sandkeep_guestlink::Guest;
use sandkeep_runtime::{
    Capabilities, Death, Files, FoundSandbox, MockRuntime, Plan, Runtime, RuntimeError, Stats,
};

/// The mock, with processes that ignore SIGTERM and an endless grace period.
struct Stubborn(MockRuntime);

#[async_trait]
impl Runtime for Stubborn {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn files(&self) -> Files {
        self.0.files()
    }

    async fn create(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.0.create(plan).await
    }

    async fn start(&self, plan: &Plan) -> Result<(), RuntimeError> {
        self.0.start(plan).await
    }

    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), RuntimeError> {
        match grace {
            Duration::ZERO => self.0.stop(id, grace).await,
            _ => std::future::pending().await,
        }
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        self.0.destroy(id).await
    }

    async fn wait(&self, id: &SandboxId) -> Death {
        self.0.wait(id).await
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        self.0.list().await
    }

    async fn stats(&self, id: &SandboxId) -> Result<Stats, RuntimeError> {
        self.0.stats(id).await
    }

    async fn connect(&self, id: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        self.0.connect(id).await
    }
}

#[tokio::test]
async fn a_destroy_does_not_wait_for_the_grace_of_a_stop() {
    let world = World::new();
    let mut parts = world.parts();
    parts.runtimes = vec![Arc::new(Stubborn(world.runtime.clone()))];
    let broker = Broker::open(parts).await.expect("a broker");
    let id = create(&broker).await.id;
    let handle = broker.shared.find(&me(), &id).expect("it is there");
    let mut published = handle.published.clone();
    // Polled once: the stop is asked for, and nobody waits for it.
    assert!(broker.stop(&me(), &id).now_or_never().is_none());
    let begun = published.wait_for(|now| now.status.operation() == Some(Operation::Stop));
    drop(tokio::time::timeout(LONG, begun).await.expect("it begins").expect("supervised"));
    let gone = tokio::time::timeout(LONG, broker.destroy(&me(), &id)).await;
    gone.expect("it does not wait").expect("goes");
    assert_eq!(world.remains().await, [""; 0]);
}
