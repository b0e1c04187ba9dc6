//! What the tests of all staged runtimes need: their own test binary as the stage.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Staged, StagedRuntime, Technique};
use crate::runtime::grouped::Premises;
use crate::sys::stage::{Stage, before_main};

pub(crate) fn staged<T: Technique + Default + 'static>(
    premises: Arc<Premises>,
) -> BoxFuture<'static, anyhow::Result<Arc<StagedRuntime<T>>>> {
    async {
        let us = std::env::current_exe()?.into_os_string();
        let stage = Stage::new(vec![us, before_main::ARGUMENT.into()]);
        Ok(Staged::runtime(T::default(), premises, stage).await?)
    }
    .boxed()
}
