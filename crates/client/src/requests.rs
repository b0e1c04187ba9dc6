//! The common requests, typed on both sides.

use std::collections::BTreeMap;

use sandkeep_core::api::{Exec, ExecAnswer, Process, Sandbox, Shell, Snapshot, Template};
use sandkeep_core::{ExecId, SandboxId, SnapshotName, SpecDraft};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{Client, Error, ExecEvents, Items};

/// A command to run. What is left out is the template's.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ExecRequest {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

impl ExecRequest {
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }
}

const SANDBOXES: &str = "/api/v1/sandboxes";

fn path(id: &SandboxId) -> String {
    format!("{SANDBOXES}/{id}")
}

impl Client {
    pub async fn create(&self, spec: &SpecDraft) -> Result<Sandbox, Error> {
        self.post(SANDBOXES, spec).await
    }

    pub async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.get(&path(id)).await
    }

    /// All sandboxes that the filter leaves, the oldest first unless `sort` is `-created_at`: `label=name=value` and
    /// `state`, each maybe several times, and `project`.
    pub async fn sandboxes(&self, filter: &[(&str, String)]) -> Result<Vec<Sandbox>, Error> {
        self.list(SANDBOXES, filter, None).await
    }

    pub async fn start(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.post(&format!("{}/start", path(id)), &json!({})).await
    }

    pub async fn stop(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.post(&format!("{}/stop", path(id)), &json!({})).await
    }

    pub async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.delete(&path(id)).await
    }

    /// Runs a command and waits for its end.
    pub async fn exec(&self, id: &SandboxId, request: &ExecRequest) -> Result<ExecAnswer, Error> {
        self.post(&format!("{}/execs", path(id)), request).await
    }

    /// Runs a command and reads what it says as it says it.
    pub async fn exec_events(
        &self,
        id: &SandboxId,
        request: &ExecRequest,
    ) -> Result<ExecEvents, Error> {
        let response = self.post_live(&format!("{}/execs", path(id)), request).await?;
        Ok(ExecEvents::of(self, response))
    }

    /// All execs that run or are kept, the oldest first.
    pub async fn execs(&self, id: &SandboxId) -> Result<Vec<Exec>, Error> {
        self.list(&format!("{}/execs", path(id)), &[], None).await
    }

    /// Ends an exec and everything it started.
    pub async fn cancel(&self, id: &SandboxId, exec: &ExecId) -> Result<(), Error> {
        self.delete(&format!("{}/execs/{exec}", path(id))).await
    }

    pub async fn snapshot(
        &self,
        id: &SandboxId,
        name: Option<&SnapshotName>,
    ) -> Result<Snapshot, Error> {
        let body: Value = name.map_or_else(|| json!({}), |name| json!({ "name": name }));
        self.post(&format!("{}/snapshots", path(id)), &body).await
    }

    pub async fn snapshots(&self, id: &SandboxId) -> Result<Vec<Snapshot>, Error> {
        self.items(&format!("{}/snapshots", path(id))).await
    }

    pub async fn rollback(&self, id: &SandboxId, name: &SnapshotName) -> Result<Sandbox, Error> {
        self.post(&format!("{}/rollback", path(id)), &json!({ "snapshot": name })).await
    }

    pub async fn shells(&self, id: &SandboxId) -> Result<Vec<Shell>, Error> {
        self.items(&format!("{}/shells", path(id))).await
    }

    pub async fn processes(&self, id: &SandboxId) -> Result<Vec<Process>, Error> {
        self.items(&format!("{}/processes", path(id))).await
    }

    pub async fn templates(&self) -> Result<Vec<Template>, Error> {
        self.items("/api/v1/templates").await
    }

    async fn items<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Error> {
        Ok(self.get::<Items<T>>(path).await?.items)
    }
}
