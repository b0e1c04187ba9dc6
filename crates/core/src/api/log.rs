//! The history of a sandbox.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::{Event, EventKind, FileChanged, SnapshotMade};
use crate::network::Choice;
use crate::{ExecId, SandboxId, SnapshotId, SnapshotName};

/// One entry in the history of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Happening {
    Created {
        runtime: String,
        template: String,
    },
    /// It was created with the files of another sandbox.
    ForkedFrom {
        sandbox: SandboxId,
        /// Absent if it was forked from the present state.
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
    /// Removed in favour of a later turn.
    SnapshotPruned {
        name: SnapshotName,
    },
    RolledBack {
        name: SnapshotName,
    },
    /// Some files were restored from a snapshot.
    Reverted {
        name: SnapshotName,
        /// The first of them.
        paths: Vec<String>,
        count: u64,
        /// The user who asked for it.
        by: String,
    },
    /// A file was changed from outside, or by a tool that works on files.
    FileChanged(FileChanged),
    /// A revert failed; some of the files may have been restored.
    RevertFailed {
        reason: String,
    },
    Forked {
        sandboxes: Vec<SandboxId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotName>,
    },
    NetworkChanged,
    /// It wanted to reach what its policy refuses.
    NetworkDenied {
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        reason: String,
        count: u64,
    },
    NetworkDecided {
        host: String,
        port: u16,
        choice: Choice,
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

impl Happening {
    /// The history entry of an event for one of the sandboxes that it concerns; `None` if it has none. Execs are left
    /// out, because their journals say more.
    pub fn of_event(event: &Event, sandbox: &SandboxId) -> Option<Self> {
        let made = |snapshot: &SnapshotMade| {
            let SnapshotMade { snapshot, name, bytes, note } = snapshot.clone();
            (snapshot, name, bytes, note)
        };
        Some(match &event.kind {
            EventKind::SandboxCreated { runtime, template, .. } => {
                Self::Created { runtime: runtime.clone(), template: template.clone() }
            }
            EventKind::SandboxStarted {} => Self::Started,
            EventKind::SandboxStopped { reason } => Self::Stopped { reason: reason.clone() },
            EventKind::SandboxPaused { reason } => Self::Paused { reason: reason.clone() },
            EventKind::SandboxResumed {} => Self::Resumed,
            EventKind::SandboxFailed { reason, .. } => Self::Failed { reason: reason.clone() },
            EventKind::SandboxRolledBack { name, .. } => Self::RolledBack { name: name.clone() },
            EventKind::SandboxReverted { name, paths, count, by } => Self::Reverted {
                name: name.clone(),
                paths: paths.clone(),
                count: *count,
                by: by.clone(),
            },
            EventKind::FileChanged(change) => Self::FileChanged(change.clone()),
            EventKind::SandboxRevertFailed { reason } => {
                Self::RevertFailed { reason: reason.clone() }
            }
            EventKind::SandboxForked { sandboxes, snapshot } => {
                let snapshot = snapshot.clone();
                match &event.subject.sandbox {
                    Some(source) if source != sandbox => {
                        Self::ForkedFrom { sandbox: source.clone(), snapshot }
                    }
                    Some(_) | None => Self::Forked { sandboxes: sandboxes.clone(), snapshot },
                }
            }
            EventKind::SnapshotCreated(snapshot) => {
                let (snapshot, name, bytes, note) = made(snapshot);
                Self::Snapshot { snapshot, name, bytes, note }
            }
            EventKind::TurnCompleted { turn, snapshot } => {
                let (snapshot, name, bytes, note) = made(snapshot);
                Self::Turn { snapshot, name, turn: *turn, bytes, note }
            }
            EventKind::SnapshotDeleted { name } => Self::SnapshotDeleted { name: name.clone() },
            EventKind::SnapshotPruned { name } => Self::SnapshotPruned { name: name.clone() },
            EventKind::NetworkChanged {} => Self::NetworkChanged,
            EventKind::NetworkDenied { host, port, reason, count } => Self::NetworkDenied {
                host: host.clone(),
                port: *port,
                reason: reason.clone(),
                count: *count,
            },
            EventKind::NetworkDecided { host, port, choice, .. } => {
                Self::NetworkDecided { host: host.clone(), port: *port, choice: *choice }
            }
            EventKind::SandboxDestroyed { .. }
            | EventKind::NetworkRequested { .. }
            | EventKind::ExecStarted { .. }
            | EventKind::ExecEnded { .. }
            | EventKind::TemplateCreated { .. }
            | EventKind::TemplateRemoved { .. }
            | EventKind::KeyCreated { .. }
            | EventKind::KeyRevoked { .. }
            | EventKind::PolicyRefused { .. }
            | EventKind::WebhookCreated { .. }
            | EventKind::WebhookDeleted { .. }
            | EventKind::WebhookDisabled { .. }
            | EventKind::CodebaseCreated { .. }
            | EventKind::CodebaseDeleted { .. }
            | EventKind::CodebaseRefused { .. } => return None,
        })
    }
}

/// An event of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LogEntry)]
pub struct LogEntry {
    /// RFC 3339; for an exec, its start.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[serde(flatten)]
    pub what: Happening,
}
