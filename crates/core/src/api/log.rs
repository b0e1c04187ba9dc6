//! What happened to a sandbox.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ExecId, SandboxId, SnapshotId, SnapshotName};

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happening {
    Created {
        runtime: String,
        template: String,
    },
    /// It began with the files of another one.
    ForkedFrom {
        sandbox: SandboxId,
        /// Left out if it was as that one was at the moment.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotName>,
    },
    Started,
    Stopped {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Paused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    Resumed,
    Failed {
        reason: String,
    },
    Snapshot {
        snapshot: SnapshotId,
        name: SnapshotName,
        bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    Turn {
        snapshot: SnapshotId,
        name: SnapshotName,
        turn: u64,
        bytes: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
    },
    SnapshotDeleted {
        name: SnapshotName,
    },
    /// A later turn took its place.
    SnapshotPruned {
        name: SnapshotName,
    },
    RolledBack {
        name: SnapshotName,
    },
    Forked {
        sandboxes: Vec<SandboxId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotName>,
    },
    Exec {
        exec_id: ExecId,
        argv: Vec<String>,
        /// `running`, or how it ended.
        status: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
}

/// An event of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogEntry {
    /// RFC 3339; of an exec its begin.
    #[schema(value_type = String)]
    pub at: Timestamp,
    #[serde(flatten)]
    pub what: Happening,
}
