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
    /// It is over, however it ended: see `outcome`.
    Exited,
}

/// A process as the API shows it, but for where its port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessView {
    pub id: ProcessId,
    pub status: ProcessStatus,
    /// Its id inside the sandbox, while it runs; left out where the runtime does not tell.
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
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub exited_at: Option<Timestamp>,
    /// `exited`, `signaled`, `canceled`, `oom_killed` or `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub outcome: Option<ExecStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it could not be started, or why its outcome is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The same as an exec: its output is there too.
    pub exec_id: ExecId,
    /// Number of bytes it printed, whether or not all of them are kept.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// A process, and where its port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    #[serde(flatten)]
    pub process: ProcessView,
    /// The raw `host:port` on this machine that leads to its port.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
    /// Its port for browsers and other clients of HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The last it said, if it ended before it was ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_output: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Processes {
    /// The oldest first.
    pub items: Vec<Process>,
}

/// A port on which something listens, inside or on the host's side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Port)]
pub struct PortInfo {
    #[schema(value_type = u16)]
    pub port: Port,
    /// Whether something inside listens there now.
    pub open: bool,
    /// Where it is for browsers.
    pub url: String,
    /// The raw socket of the host that leads there, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<SocketAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ports {
    pub items: Vec<PortInfo>,
    /// Where any port is: put its number for `{port}`.
    pub url_template: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortUrl {
    /// Lets anybody who has it reach the port.
    pub url: String,
    /// RFC 3339.
    pub expires_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PortListener {
    #[schema(value_type = u16)]
    pub port: Port,
    /// `host:port` on this machine, for anything that speaks TCP.
    #[schema(value_type = String)]
    pub address: SocketAddr,
}
