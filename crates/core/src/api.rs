//! Request and answer types of the REST API, shared by the server and its clients.

mod codebase;
pub mod data;
mod event;
mod exec;
mod key;
mod log;
mod network;
mod process;
mod race;
mod request;
mod sandbox;
mod shell;
mod template;
mod tool;
mod usage;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use codebase::{
    CheckRules, CheckedPath, CheckedRules, Codebase, CodebaseSize, CodebaseState, Codebases,
    CreateCodebase, DiffCodebase, MountedCodebase, ReplaceRules, Revoke, RulesEffect, SandboxRules,
    ServedBy,
};
pub use event::{
    CreateWebhook, EventFormat, EventGap, EventItem, EventLine, EventNotice, Events, NewWebhook,
    ReplayWebhook, Webhook, WebhookState, WebhookTest, Webhooks,
};
pub use exec::{
    Ending, Exec, ExecAnswer, ExecEvent, ExecLimits, ExecStatus, OutputStream, StderrFields,
    StdinSource, StdoutFields,
};
pub use key::{KeyDraft, KeyInfo, NewKey};
pub use log::{Happening, LogEntry};
pub use network::{
    AskForNetwork, CertificateState, DecideNetworkRequest, EntryMeaning, GatewayState, Handling,
    NetworkLog, NetworkPresets, NetworkRequests, ReadNetworkLog, SandboxNetwork, SecretHosts,
};
pub use process::{
    PortInfo, PortListener, PortUrl, Ports, Process, ProcessStatus, ProcessView, Processes,
};
pub use race::{RaceEvent, RaceResult, RaceSandbox, Racer, RacerState};
pub use request::{
    CreateProcess, CreateSnapshot, DeleteFile, DiffFormat, DiffSandbox, FilePath, ForkSandbox,
    ListFiles, ListSandboxes, MakeDirectory, MoveFile, Order, PauseSandbox, PlanFormat,
    ProcessReady, ReadOutput, Revert, RollbackSandbox, SealTurn, SignPortUrl, Sorting,
};
pub use sandbox::{Ensured, ForkPoint, Forks, Reverted, Sandbox, Sandboxes, Snapshot, Snapshots};
pub use shell::{Shell, ShellFate, ShellProgram, ShellState};
pub use template::{BUILD_SAID_LAST, Template, TemplateConfig};
pub use tool::{ToolAnswer, ToolBlock, ToolEvent};
pub use usage::{OwnerUsage, ReadUsage, Usage};

/// The body of every error answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Identifies the kind of problem, permanently; `docs/reference/errors.md` explains it.
    pub r#type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: String,
    pub remediation: String,
    pub retryable: bool,
    /// The path of the request.
    pub instance: String,
}
