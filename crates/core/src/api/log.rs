//! What happened to a sandbox.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::event::{Event, EventKind, SnapshotMade};
use crate::{ExecId, SandboxId, SnapshotId, SnapshotName};

/// One thing that happened, as the log of a sandbox shows it.
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
    /// Files were to become what they were at a snapshot, and only some did, or none.
    RevertFailed {
        reason: String,
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

impl Happening {
    /// What an event means in the log of one of the sandboxes that it concerns; `None` if it is not for there. Execs
    /// have journals, which say more.
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
            EventKind::SandboxDestroyed { .. }
            | EventKind::ExecStarted { .. }
            | EventKind::ExecEnded { .. }
            | EventKind::TemplateCreated { .. }
            | EventKind::TemplateRemoved { .. }
            | EventKind::KeyCreated { .. }
            | EventKind::KeyRevoked { .. }
            | EventKind::PolicyRefused { .. }
            | EventKind::WebhookCreated { .. }
            | EventKind::WebhookDeleted { .. }
            | EventKind::WebhookDisabled { .. } => return None,
        })
    }
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
