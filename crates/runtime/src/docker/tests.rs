//! The conformance suite on a real Docker.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Docker;
use crate::HostResources;
use crate::conformance::{Setuid, keeps_above_layers, run_at_once};
use crate::engine::EngineRuntime;
use crate::engine::bench::{EngineBench, Kind, WIDTH};

fn docker(
    host: String,
    host_resources: Arc<HostResources>,
) -> BoxFuture<'static, anyhow::Result<Arc<EngineRuntime<Docker>>>> {
    async move { Docker::runtime(Some(&host), host_resources).await.map_err(anyhow::Error::msg) }
        .boxed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_keeps_every_promise() {
    let Some(bench) = EngineBench::new(Kind::Docker, docker).await else { return };
    let broken = run_at_once(&bench, WIDTH).await;
    let broken: Vec<String> = broken.iter().map(ToString::to_string).collect();
    assert!(broken.is_empty(), "{} promises broken:\n{}", broken.len(), broken.join("\n"));
    let kept = keeps_above_layers(&bench, Setuid::Works).await;
    kept.unwrap_or_else(|broken| panic!("{broken}"));
    bench.assert_nothing_left();
}
