//! What the REST API answers, for those who write it and those who read it.

pub mod data;
mod exec;
mod key;
mod log;
mod process;
mod sandbox;
mod shell;
mod template;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use exec::{
    Ending, Exec, ExecAnswer, ExecEvent, ExecStatus, OutputStream, StderrFields, StdinSource,
    StdoutFields,
};
pub use key::{KeyDraft, KeyInfo, NewKey};
pub use log::{Happening, LogEntry};
pub use process::{PortInfo, Ports, Process, ProcessStatus, ProcessView};
pub use sandbox::{Sandbox, Snapshot};
pub use shell::{Shell, ShellFate, ShellProgram, ShellState};
pub use template::{Template, TemplateConfig};

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// Names the kind of problem, for ever; `docs/errors.md` explains it.
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
