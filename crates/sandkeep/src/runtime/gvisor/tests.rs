//! The conformance suite on the real runsc.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::Gvisor;
use crate::runtime::conformance::{promise_tests, runtime_conformance};
use crate::runtime::grouped::bench::{GroupedBench, Version};
use crate::runtime::grouped::{GroupedRuntime, Premises};
use crate::sys::stage::{Stage, before_main};

fn gvisor(
    premises: Arc<Premises>,
) -> BoxFuture<'static, anyhow::Result<Arc<GroupedRuntime<Gvisor>>>> {
    async {
        let us = std::env::current_exe()?.into_os_string();
        let stage = Stage::new(vec![us, before_main::ARGUMENT.into()]);
        Ok(Gvisor::runtime(premises, stage).await?)
    }
    .boxed()
}

runtime_conformance!(GroupedBench::new(Version::V1, gvisor));
