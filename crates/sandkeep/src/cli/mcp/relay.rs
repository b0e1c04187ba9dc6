//! Forwards calls to a remote daemon. The caller is the owner of the client's API key.

use std::sync::{Arc, PoisonError};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use rmcp::model::Extensions;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::cli::failure;
use sandkeep_client::{Client, Error};
use sandkeep_core::api::{FilePath, ToolEvent};
use sandkeep_core::{SandboxId, SandboxName, SpecDraft, State};
use sandkeep_doors::mcp::{Backend, Call, Failure, Given, Telling, ToolCall, ToolEvents};

pub struct Relay {
    client: Client,
    default: Arc<DefaultSandbox>,
}

/// The sandbox for calls that name none.
pub struct DefaultSandbox {
    /// What it is made as.
    spec: SpecDraft,
    /// If it has a name, it may be there already, and it stays.
    name: Option<SandboxName>,
    /// Once it was needed. Calls that come at once must not make several.
    known: Mutex<Option<SandboxId>>,
    own: std::sync::Mutex<Option<SandboxId>>,
}

impl DefaultSandbox {
    pub fn new(spec: SpecDraft, name: Option<SandboxName>) -> Self {
        let spec = SpecDraft { name: name.clone(), ..spec };
        Self { spec, name, known: Mutex::new(None), own: std::sync::Mutex::new(None) }
    }

    /// The sandbox that ends with the session.
    pub fn to_destroy(&self) -> Option<SandboxId> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn made(&self, client: &Client) -> Result<SandboxId, Error> {
        if let Some(name) = &self.name {
            match client.resolve(name.as_str()).await {
                Ok(id) => return awake(client, id).await,
                Err(error) if error.code() == Some("not_found") => {}
                Err(error) => return Err(error),
            }
        }
        let id = client.create(&self.spec).await?.id;
        if self.name.is_none() {
            *self.own.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
        }
        Ok(id)
    }
}

/// Starts or resumes a sandbox that does not run.
async fn awake(client: &Client, id: SandboxId) -> Result<SandboxId, Error> {
    match client.sandbox(&id).await?.state {
        State::Stopped | State::Failed => drop(client.start(&id).await?),
        State::Paused => drop(client.resume(&id).await?),
        State::Running | State::Creating | State::Destroying => {}
    }
    Ok(id)
}

impl Relay {
    pub fn new(client: Client, default: Arc<DefaultSandbox>) -> Self {
        Self { client, default }
    }

    /// Whether a sandbox can be used as it is.
    async fn is_running(&self, id: &SandboxId) -> Result<bool, Failure> {
        match self.client().sandbox(id).await {
            Ok(sandbox) => Ok(sandbox.state == State::Running && sandbox.operation.is_none()),
            Err(Error::Refused(_)) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    /// Requests are steps of the trace of the call at hand.
    fn client(&self) -> Client {
        self.client.traced(sandkeep_traces::current())
    }

    async fn carry_out(&self, call: Call) -> Result<Value, Error> {
        let client = &self.client();
        match call {
            Call::CreateSandbox(spec) => json(client.create(&spec).await?),
            Call::ListSandboxes(asked) => json(client.sandbox_page(&asked).await?),
            Call::GetSandbox(id) => json(client.sandbox(&id).await?),
            Call::DestroySandbox(id) => json(client.destroy(&id).await?),
            Call::PauseSandbox(id, asked) => json(client.pause(&id, &asked).await?),
            Call::ResumeSandbox(id) => json(client.resume(&id).await?),
            Call::StartSandbox(id) => json(client.start(&id).await?),
            Call::StopSandbox(id) => json(client.stop(&id).await?),
            Call::StatFile(id, file) => client.stat_file(&id, &file).await,
            Call::ListFiles(id, asked) => client.list_files(&id, &asked).await,
            Call::MakeDirectory(id, asked) => client.make_directory(&id, &asked).await,
            Call::MoveFile(id, asked) => client.move_file(&id, &asked).await,
            Call::DeleteFile(id, asked) => json(client.delete_file(&id, &asked).await?),
            Call::StartProcess(id, asked) => json(client.start_process(&id, &asked).await?),
            Call::ListProcesses(id) => json(client.processes(&id).await?),
            Call::ReadLogs(id, process, asked) => {
                let said = client.process_logs(&id, &process, &asked).await?;
                json(String::from_utf8_lossy(&said))
            }
            Call::EndProcess(id, process) => json(client.end_process(&id, &process).await?),
            Call::ListPorts(id) => json(client.ports(&id).await?),
            Call::SignPortUrl(id, port, asked) => {
                json(client.sign_port_url(&id, port, &asked).await?)
            }
            Call::ListenPort(id, port) => json(client.listen_port(&id, port).await?),
            Call::CreateSnapshot(id, asked) => json(client.snapshot(&id, &asked).await?),
            Call::ListSnapshots(id) => json(client.snapshots(&id).await?),
            Call::DeleteSnapshot(id, name) => json(client.delete_snapshot(&id, &name).await?),
            Call::SealTurn(id, asked) => json(client.seal_turn(&id, &asked).await?),
            Call::Rollback(id, asked) => json(client.rollback(&id, &asked).await?),
            Call::Fork(id, asked) => json(client.fork(&id, &asked).await?),
            Call::Race(id, asked) => json(client.race(&id, &asked).await?),
            Call::Diff(id, asked) => client.diff(&id, &asked).await,
            Call::Revert(id, asked) => json(client.revert(&id, &asked).await?),
            Call::AskForNetwork(id, asked) => json(client.ask_for_network(&id, &asked).await?),
        }
    }
}

#[async_trait]
impl Backend for Relay {
    async fn default_sandbox(&self, _: &Extensions) -> Result<SandboxId, Failure> {
        let mut known = self.default.known.lock().await;
        if let Some(id) = known.as_ref() {
            if self.is_running(id).await? {
                return Ok(id.clone());
            }
            match awake(&self.client(), id.clone()).await {
                Ok(id) => return Ok(id),
                // It is gone, and there is a new one.
                Err(error) if error.code() == Some("not_found") => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let id = self.default.made(&self.client()).await.map_err(failed)?;
        *known = Some(id.clone());
        Ok(id)
    }

    async fn named(&self, name: &str, _: &Extensions) -> Result<SandboxId, Failure> {
        self.client().resolve(name).await.map_err(failed)
    }

    async fn call(&self, call: Call, _: &Extensions) -> Result<Value, Failure> {
        self.carry_out(call).await.map_err(failed)
    }

    async fn tool(
        &self,
        call: ToolCall,
        telling: Telling,
        _: &Extensions,
    ) -> Result<ToolEvents, Failure> {
        let ToolCall { sandbox, name, arguments: Given(arguments) } = call;
        let (client, name) = (&self.client(), name.as_str());
        match telling {
            Telling::AtTheEnd => {
                let answer = client.tool(&sandbox, name, &arguments).await.map_err(failed)?;
                Ok(stream::iter([Ok(ToolEvent::Result(answer))]).boxed())
            }
            Telling::AsItGoes => {
                let lines = client.tool_events(&sandbox, name, &arguments).await.map_err(failed)?;
                let events = stream::try_unfold(lines, |mut lines| async move {
                    let event: ToolEvent = lines.next().await.map_err(failed)?;
                    Ok(Some((event, lines)))
                });
                Ok(events.boxed())
            }
        }
    }

    async fn read_file(
        &self,
        sandbox: &SandboxId,
        path: &str,
        _: &Extensions,
    ) -> Result<Vec<u8>, Failure> {
        let file = FilePath { path: path.to_owned() };
        self.client().read_file(sandbox, &file).await.map_err(failed)
    }
}

fn json(answer: impl Serialize) -> Result<Value, Error> {
    Ok(serde_json::to_value(answer).expect("answers hold only strings, numbers and maps"))
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Refused(problem) => Failure::Refused(problem),
        other => Failure::Unreachable { problem: failure::Failure::from(other).line() },
    }
}
