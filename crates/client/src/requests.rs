//! The common requests, with typed parameters and answers.

use std::collections::BTreeMap;

use reqwest::Method;
use sandkeep_core::api::{
    CreateProcess, CreateSnapshot, CreateWebhook, DeleteFile, DiffSandbox, Ensured, Exec,
    ExecAnswer, FilePath, ForkSandbox, Forks, ListFiles, ListSandboxes, MakeDirectory, MoveFile,
    NewWebhook, PauseSandbox, PortListener, PortUrl, Ports, Process, Processes, RaceResult,
    RaceSandbox, ReadOutput, ReadUsage, ReplayWebhook, Revert, Reverted, RollbackSandbox, Sandbox,
    Sandboxes, SealTurn, Shell, SignPortUrl, Snapshot, Snapshots, Template, ToolAnswer, Usage,
    Webhook, WebhookTest, Webhooks,
};
use sandkeep_core::event::EventSeq;
use sandkeep_core::{ExecId, Port, ProcessId, SandboxId, SnapshotName, SpecDraft, WebhookId};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{Client, Error, ExecEvents, Items, Lines};

/// A command to run. Omitted values are the template's.
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

const WEBHOOKS: &str = "/api/v1/webhooks";

impl Client {
    /// Registers a webhook. The answer has its secret, which is not shown again.
    pub async fn create_webhook(&self, draft: &CreateWebhook) -> Result<NewWebhook, Error> {
        self.post(WEBHOOKS, draft).await
    }

    pub async fn webhooks(&self) -> Result<Vec<Webhook>, Error> {
        Ok(self.get::<Webhooks>(WEBHOOKS).await?.items)
    }

    pub async fn delete_webhook(&self, id: &WebhookId) -> Result<(), Error> {
        self.delete(&format!("{WEBHOOKS}/{id}")).await
    }

    /// Sends a test message to a webhook.
    pub async fn test_webhook(&self, id: &WebhookId) -> Result<WebhookTest, Error> {
        self.post(&format!("{WEBHOOKS}/{id}/test"), &json!({})).await
    }

    pub async fn enable_webhook(&self, id: &WebhookId) -> Result<Webhook, Error> {
        self.post(&format!("{WEBHOOKS}/{id}/enable"), &json!({})).await
    }

    /// Delivers the events after this one again.
    pub async fn replay_webhook(&self, id: &WebhookId, after: EventSeq) -> Result<Webhook, Error> {
        self.post(&format!("{WEBHOOKS}/{id}/replay"), &ReplayWebhook { after }).await
    }

    pub async fn create(&self, spec: &SpecDraft) -> Result<Sandbox, Error> {
        self.post(SANDBOXES, spec).await
    }

    /// Changes the name, the labels and the timeouts of a sandbox; the patch is a JSON merge patch.
    pub async fn amend(&self, id: &SandboxId, patch: &Value) -> Result<Sandbox, Error> {
        self.patch(&path(id), patch).await
    }

    pub async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.get(&path(id)).await
    }

    /// All sandboxes that match the filter, oldest first unless `sort` is `-created_at`: `label=name=value` and
    /// `state`, each possibly several times, and `project`.
    pub async fn sandboxes(&self, filter: &[(&str, String)]) -> Result<Vec<Sandbox>, Error> {
        self.list(SANDBOXES, filter, None).await
    }

    /// One page of them.
    pub async fn sandbox_page(&self, request: &ListSandboxes) -> Result<Sandboxes, Error> {
        let ListSandboxes { label, state, project, sort, limit, cursor } = request;
        let mut query: Vec<_> = label.iter().map(|label| ("label", label.clone())).collect();
        query.extend(state.iter().map(|state| ("state", state.to_string())));
        query.push(("sort", sort.as_str().to_owned()));
        query.extend(project.clone().map(|project| ("project", project)));
        query.extend(limit.map(|limit| ("limit", limit.to_string())));
        query.extend(cursor.clone().map(|cursor| ("cursor", cursor)));
        self.get_query(SANDBOXES, &query).await
    }

    /// The healthy sandbox of a slot, or a new one.
    pub async fn ensure(&self, spec: &SpecDraft) -> Result<Ensured, Error> {
        self.post(&format!("{SANDBOXES}/ensure"), spec).await
    }

    pub async fn pause(&self, id: &SandboxId, request: &PauseSandbox) -> Result<Sandbox, Error> {
        self.post(&format!("{}/pause", path(id)), request).await
    }

    pub async fn resume(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        self.post(&format!("{}/resume", path(id)), &json!({})).await
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

    /// Runs a command and reads its output live.
    pub async fn exec_events(
        &self,
        id: &SandboxId,
        request: &ExecRequest,
    ) -> Result<ExecEvents, Error> {
        let response = self.post_live(&format!("{}/execs", path(id)), request).await?;
        Ok(ExecEvents::of(self, response))
    }

    /// All running and kept execs, oldest first.
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
        request: &CreateSnapshot,
    ) -> Result<Snapshot, Error> {
        self.post(&format!("{}/snapshots", path(id)), request).await
    }

    pub async fn seal_turn(&self, id: &SandboxId, request: &SealTurn) -> Result<Snapshot, Error> {
        self.post(&format!("{}/turns", path(id)), request).await
    }

    pub async fn snapshots(&self, id: &SandboxId) -> Result<Snapshots, Error> {
        self.get(&format!("{}/snapshots", path(id))).await
    }

    pub async fn delete_snapshot(&self, id: &SandboxId, name: &SnapshotName) -> Result<(), Error> {
        self.delete(&format!("{}/snapshots/{name}", path(id))).await
    }

    pub async fn rollback(
        &self,
        id: &SandboxId,
        request: &RollbackSandbox,
    ) -> Result<Sandbox, Error> {
        self.post(&format!("{}/rollback", path(id)), request).await
    }

    pub async fn fork(&self, id: &SandboxId, request: &ForkSandbox) -> Result<Forks, Error> {
        self.post(&format!("{}/fork", path(id)), request).await
    }

    /// Runs a race to its end.
    pub async fn race(&self, id: &SandboxId, request: &RaceSandbox) -> Result<RaceResult, Error> {
        self.post(&format!("{}/race", path(id)), request).await
    }

    /// Runs a race and reads its progress live, each line a [`sandkeep_core::api::RaceEvent`]. Dropping it ends the
    /// race.
    pub async fn race_events(&self, id: &SandboxId, request: &RaceSandbox) -> Result<Lines, Error> {
        let response = self.post_live(&format!("{}/race", path(id)), request).await?;
        Ok(Lines::of(self, response))
    }

    /// The changes, as raw JSON, so that fields unknown to this client are shown.
    pub async fn diff(&self, id: &SandboxId, request: &DiffSandbox) -> Result<Value, Error> {
        self.get_query(&format!("{}/diff", path(id)), request).await
    }

    /// What owners have used in a period.
    pub async fn usage(&self, request: &ReadUsage) -> Result<Usage, Error> {
        self.get_query("/api/v1/usage", request).await
    }

    /// Starts reading a plan for `apply`, and its files, as an archive.
    pub async fn apply_plan(
        &self,
        id: &SandboxId,
        request: &(impl Serialize + ?Sized),
    ) -> Result<reqwest::Response, Error> {
        let plan = self.request(Method::POST, &format!("{}/apply/plan", path(id))).json(request);
        self.send(plan.query(&[("format", "tar")]).header("accept", "application/x-tar")).await
    }

    pub async fn revert(&self, id: &SandboxId, request: &Revert) -> Result<Reverted, Error> {
        self.post(&format!("{}/revert", path(id)), request).await
    }

    /// The content of a file.
    pub async fn read_file(&self, id: &SandboxId, file: &FilePath) -> Result<Vec<u8>, Error> {
        let response = self.get_live(&format!("{}/files", path(id)), file).await?;
        self.bytes(response).await
    }

    pub async fn stat_file(&self, id: &SandboxId, file: &FilePath) -> Result<Value, Error> {
        self.get_query(&format!("{}/files/stat", path(id)), file).await
    }

    pub async fn list_files(&self, id: &SandboxId, request: &ListFiles) -> Result<Value, Error> {
        self.get_query(&format!("{}/files/list", path(id)), request).await
    }

    pub async fn make_directory(
        &self,
        id: &SandboxId,
        request: &MakeDirectory,
    ) -> Result<Value, Error> {
        self.post(&format!("{}/files/mkdir", path(id)), request).await
    }

    pub async fn move_file(&self, id: &SandboxId, request: &MoveFile) -> Result<Value, Error> {
        self.post(&format!("{}/files/move", path(id)), request).await
    }

    pub async fn delete_file(&self, id: &SandboxId, request: &DeleteFile) -> Result<(), Error> {
        self.delete_query(&format!("{}/files", path(id)), request).await
    }

    pub async fn start_process(
        &self,
        id: &SandboxId,
        request: &CreateProcess,
    ) -> Result<Process, Error> {
        self.post(&format!("{}/processes", path(id)), request).await
    }

    pub async fn processes(&self, id: &SandboxId) -> Result<Processes, Error> {
        self.get(&format!("{}/processes", path(id))).await
    }

    /// The output of a process: one event per line.
    pub async fn process_logs(
        &self,
        id: &SandboxId,
        process: &ProcessId,
        request: &ReadOutput,
    ) -> Result<Vec<u8>, Error> {
        let path = format!("{}/processes/{process}/logs", path(id));
        let response = self.get_live(&path, request).await?;
        self.bytes(response).await
    }

    pub async fn end_process(&self, id: &SandboxId, process: &ProcessId) -> Result<(), Error> {
        self.delete(&format!("{}/processes/{process}", path(id))).await
    }

    pub async fn ports(&self, id: &SandboxId) -> Result<Ports, Error> {
        self.get(&format!("{}/ports", path(id))).await
    }

    /// A URL that gives anybody access to a port.
    pub async fn sign_port_url(
        &self,
        id: &SandboxId,
        port: Port,
        request: &SignPortUrl,
    ) -> Result<PortUrl, Error> {
        self.post(&format!("{}/ports/{port}/url", path(id)), request).await
    }

    pub async fn listen_port(&self, id: &SandboxId, port: Port) -> Result<PortListener, Error> {
        self.post(&format!("{}/ports/{port}/listen", path(id)), &json!({})).await
    }

    /// Calls a tool for agents and waits for its end.
    pub async fn tool(
        &self,
        id: &SandboxId,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<ToolAnswer, Error> {
        self.post(&format!("{}/tools/{name}", path(id)), arguments).await
    }

    /// Calls a tool and reads its progress live, each line a [`sandkeep_core::api::ToolEvent`].
    pub async fn tool_events(
        &self,
        id: &SandboxId,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Lines, Error> {
        let response = self.post_live(&format!("{}/tools/{name}", path(id)), arguments).await?;
        Ok(Lines::of(self, response))
    }

    pub async fn shells(&self, id: &SandboxId) -> Result<Vec<Shell>, Error> {
        self.items(&format!("{}/shells", path(id))).await
    }

    pub async fn templates(&self) -> Result<Vec<Template>, Error> {
        self.items("/api/v1/templates").await
    }

    async fn items<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, Error> {
        Ok(self.get::<Items<T>>(path).await?.items)
    }
}
