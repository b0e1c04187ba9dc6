//! The conformance suite on the real runsc.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Gvisor;
use crate::conformance::{Setuid, keeps_above_layers, promise_tests, runtime_conformance};
use crate::grouped::bench::{GroupedBench, Version};
use crate::grouped::{GroupedRuntime, HostResources};
use sandkeep_sys::stage::{Stage, before_main};

fn gvisor(
    host_resources: Arc<HostResources>,
) -> BoxFuture<'static, anyhow::Result<Arc<GroupedRuntime<Gvisor>>>> {
    async {
        let us = std::env::current_exe()?.into_os_string();
        let stage = Stage::new(vec![us, before_main::ARGUMENT.into()]);
        Ok(Gvisor::runtime(host_resources, stage).await?)
    }
    .boxed()
}

runtime_conformance!(GroupedBench::new(Version::V1, gvisor));

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_stands_on_layers() {
    let Some(bench) = GroupedBench::new(Version::V1, gvisor).await else { return };
    keeps_above_layers(&bench, Setuid::Untold).await.unwrap_or_else(|broken| panic!("{broken}"));
}
