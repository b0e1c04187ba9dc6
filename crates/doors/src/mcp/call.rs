//! The calls besides the tools that work within a sandbox. A call is decoded once, into the types of the REST API, and
//! executed by the [`super::Backend`].

use rmcp::model::JsonObject;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::SANDBOX;
use crate::kit::Refusal;
use crate::kit::path::{Name, parse};
use sandkeep_core::api::{
    AskForNetwork, CreateProcess, CreateSnapshot, DeleteFile, DiffSandbox, FilePath, ForkSandbox,
    ListFiles, ListSandboxes, MakeDirectory, MoveFile, PauseSandbox, RaceSandbox, ReadOutput,
    Revert, RollbackSandbox, SealTurn, SignPortUrl,
};
use sandkeep_core::{Port, ProcessId, SandboxId, SnapshotName, SpecDraft};

/// A call whose arguments are valid, as far as this can be checked without the sandbox.
#[derive(Clone, Debug)]
pub enum Call {
    CreateSandbox(Box<SpecDraft>),
    ListSandboxes(ListSandboxes),
    GetSandbox(SandboxId),
    DestroySandbox(SandboxId),
    PauseSandbox(SandboxId, PauseSandbox),
    ResumeSandbox(SandboxId),
    StartSandbox(SandboxId),
    StopSandbox(SandboxId),
    StatFile(SandboxId, FilePath),
    ListFiles(SandboxId, ListFiles),
    MakeDirectory(SandboxId, MakeDirectory),
    MoveFile(SandboxId, MoveFile),
    DeleteFile(SandboxId, DeleteFile),
    StartProcess(SandboxId, CreateProcess),
    ListProcesses(SandboxId),
    ReadLogs(SandboxId, ProcessId, ReadOutput),
    EndProcess(SandboxId, ProcessId),
    ListPorts(SandboxId),
    SignPortUrl(SandboxId, Port, SignPortUrl),
    ListenPort(SandboxId, Port),
    CreateSnapshot(SandboxId, CreateSnapshot),
    ListSnapshots(SandboxId),
    DeleteSnapshot(SandboxId, SnapshotName),
    SealTurn(SandboxId, SealTurn),
    Rollback(SandboxId, RollbackSandbox),
    Fork(SandboxId, ForkSandbox),
    Race(SandboxId, Box<RaceSandbox>),
    Diff(SandboxId, DiffSandbox),
    Revert(SandboxId, Revert),
    AskForNetwork(SandboxId, AskForNetwork),
}

/// Arguments while a call is being decoded.
pub struct Given(pub JsonObject);

impl Given {
    pub fn sandbox(&mut self) -> Result<SandboxId, Refusal> {
        self.name(SANDBOX)
    }

    /// A malformed name refers to nothing, as in a path of the REST API.
    pub fn name<T: Name>(&mut self, field: &str) -> Result<T, Refusal> {
        match self.0.remove(field) {
            Some(Value::String(text)) => parse(&text),
            other => parse(&other.unwrap_or_default().to_string()),
        }
    }

    /// Parses the remaining arguments as the request.
    pub fn request<T: DeserializeOwned>(&mut self) -> Result<T, Refusal> {
        let request = Value::Object(std::mem::take(&mut self.0));
        serde_path_to_error::deserialize(request).map_err(|error| Refusal::BodyMalformed {
            field: Some(error.path().to_string()).filter(|path| path != "."),
            problem: error.into_inner().to_string(),
        })
    }
}
