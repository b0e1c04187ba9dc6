//! The conformance suite's bench for container engines: a real engine, started for it, with two instances.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Engine, EngineRuntime, container};
use crate::conformance::{Bench, Instance, PROMISE_MAX, discard, unless_skipped};
use crate::{HostResources, Plan, Runtime};
use sandkeep_core::{Resources, SandboxId};
use sandkeep_sys::{cgroup, pidfd};

#[path = "../../../sandkeep/tests/it/support/engines.rs"]
mod engines;
#[path = "../../../sandkeep/tests/it/support/wait.rs"]
mod wait;
pub(crate) use engines::{Engine as RealEngine, Kind};
use wait::{Patience, until, until_some};

/// Concurrent promises: an engine takes most of a second to start a container.
pub(crate) const WIDTH: usize = 4;

/// Creates a runtime for the API at an address.
pub(crate) type Make<E> =
    fn(String, Arc<HostResources>) -> BoxFuture<'static, anyhow::Result<Arc<EngineRuntime<E>>>>;

pub(crate) struct EngineBench<E> {
    pub ours: Instance<EngineRuntime<E>>,
    theirs: Instance<EngineRuntime<E>>,
    /// Dropped after both.
    real: RealEngine,
}

impl<E: Engine> EngineBench<E> {
    /// `None`, with the reason printed, if this machine cannot run it.
    pub async fn new(kind: Kind, make: Make<E>) -> Option<Self> {
        let real = RealEngine::start(kind).map_err(|reason| anyhow::Error::msg(reason.0));
        let host = real.as_ref().map(RealEngine::host).unwrap_or_default();
        let start =
            || Instance::start(|_, name| Ok(cgroup::open(name)?), |on| make(host.clone(), on));
        let (real, (ours, theirs)) = match real {
            Ok(real) => (real, unless_skipped(tokio::join!(start(), start()))?),
            Err(reason) => {
                let skipped: (anyhow::Result<()>, anyhow::Result<()>) = (Err(reason), Ok(()));
                unless_skipped(skipped);
                return None;
            }
        };
        Some(Self { ours, theirs, real })
    }

    /// The engine itself has no container left; its list may lag behind its answers.
    pub fn assert_nothing_left(&self) {
        until("no container is left", Patience::Short, || self.real.containers() == 0);
    }
}

#[async_trait]
impl<E: Engine> Bench for EngineBench<E> {
    fn runtime(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.ours.runtime) as _
    }

    fn neighbour(&self) -> Arc<dyn Runtime> {
        Arc::clone(&self.theirs.runtime) as _
    }

    async fn plan(&self, resources: Resources) -> Plan {
        self.ours.plan(resources).await
    }

    async fn neighbour_plan(&self, resources: Resources) -> Plan {
        self.theirs.plan(resources).await
    }

    async fn kill_from_outside(&self, id: &SandboxId) {
        let inspected = self.ours.runtime.shared.engine.inspect(&container::name(id)).await;
        let pid = inspected.expect("the engine answers").and_then(|inspected| inspected.pid);
        let pidfd = pidfd::open(pid.expect("it runs")).expect("it runs");
        pidfd::kill(pidfd).expect("root may kill it");
    }

    async fn discard(&self, plan: &Plan) {
        discard(plan);
    }

    fn patience(&self) -> Duration {
        // A promise may start twenty containers, concurrently with others.
        PROMISE_MAX * 3
    }
}
