//! A runtime that cannot be used on this machine: it is listed with the reason and refuses everything, so that nobody
//! silently gets another one.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Capabilities, Death, Files, FoundSandbox, Plan, Runtime, RuntimeError, Stats, Usable};
use sandkeep_core::SandboxId;
use sandkeep_guestlink::Guest;

pub struct MissingRuntime {
    name: &'static str,
    reason: String,
}

impl MissingRuntime {
    pub fn listed(name: &'static str, reason: &impl ToString) -> Arc<dyn Runtime> {
        Arc::new(Self { name, reason: reason.to_string() })
    }

    fn refuse<T>(&self, what: &'static str) -> Result<T, RuntimeError> {
        Err(RuntimeError::Unsupported { runtime: self.name, what })
    }
}

#[async_trait]
impl Runtime for MissingRuntime {
    fn name(&self) -> &'static str {
        self.name
    }

    fn usable(&self) -> Usable {
        Usable::No { reason: self.reason.clone() }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn files(&self) -> Files {
        Files::OnStorage(&[])
    }

    async fn create(&self, _: &Plan) -> Result<(), RuntimeError> {
        self.refuse("create")
    }

    async fn start(&self, _: &Plan) -> Result<(), RuntimeError> {
        self.refuse("start")
    }

    async fn stop(&self, _: &SandboxId, _: Duration) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn destroy(&self, _: &SandboxId) -> Result<(), RuntimeError> {
        // A sandbox that an earlier daemon left with a missing runtime cannot be reached from here; reporting it as
        // removed would be a lie.
        self.refuse("destroy")
    }

    async fn wait(&self, _: &SandboxId) -> Death {
        Death { reason: format!("runtime {} is not usable here: {}", self.name, self.reason) }
    }

    async fn list(&self) -> Result<Vec<FoundSandbox>, RuntimeError> {
        Ok(Vec::new())
    }

    async fn stats(&self, _: &SandboxId) -> Result<Stats, RuntimeError> {
        self.refuse("read usage")
    }

    async fn connect(&self, _: &SandboxId) -> Result<Arc<dyn Guest>, RuntimeError> {
        self.refuse("connect")
    }
}
