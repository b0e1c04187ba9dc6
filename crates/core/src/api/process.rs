//! Processes and ports.

use std::net::SocketAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ExecStatus;
use crate::{ExecId, Port, ProcessId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    /// Its port does not answer yet.
    Starting,
    Running,
    /// It has ended: see `outcome`.
    Exited,
}

/// A process as the API shows it, without the URLs of its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    pub id: ProcessId,
    pub status: ProcessStatus,
    /// Its pid inside the sandbox, while it runs; absent if the runtime does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    pub port: Option<Port>,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub exited_at: Option<Timestamp>,
    /// How it ended, as for an exec.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<ExecStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it could not be started, or why its outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The process as an exec, which has its output.
    pub exec_id: ExecId,
    /// Number of bytes printed, whether or not all of them are kept.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// A process, with the URLs of its port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    #[serde(flatten)]
    pub process: ProcessView,
    /// The raw `host:port` on this machine that forwards to its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
    /// URL of its port for HTTP clients, such as browsers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The end of its output, if it ended before it was ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Processes {
    /// Oldest first.
    pub items: Vec<Process>,
}

/// A port on which a server listens, inside or on the host's side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Port)]
pub struct PortInfo {
    #[schema(value_type = u16)]
    pub port: Port,
    /// Whether a server inside listens on it now.
    pub open: bool,
    /// URL for browsers.
    pub url: String,
    /// The raw socket of the host that forwards to it, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ports {
    pub items: Vec<PortInfo>,
    /// URL of any port: replace `{port}` with its number.
    pub url_template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortUrl {
    /// Gives access to the port to anybody who has it.
    pub url: String,
    /// RFC 3339.
    #[schema(format = DateTime)]
    pub expires_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortListener {
    #[schema(value_type = u16)]
    pub port: Port,
    /// `host:port` on this machine, for any TCP client.
    #[schema(value_type = String)]
    pub address: SocketAddr,
}
