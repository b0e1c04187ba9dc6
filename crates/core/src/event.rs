//! Events: one record for everything that changed, in the order in which it changed.
//!
//! A kind is `thing.past_tense`. An event says what happened to whom and never carries the contents: no values of
//! environment variables, no output, no contents of files, no credentials, and command lines only if the setting
//! `events.commands` says so.

mod cloud;
mod pattern;
mod schema;

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::ExecStatus;
use crate::network::Choice;
use crate::{
    CodebaseId, CodebaseName, ExecId, KeyId, Operation, Owner, SandboxId, Scope, SnapshotId,
    SnapshotName, State, Status, TraceParent, WebhookId,
};

pub use cloud::CloudEvent;
pub use pattern::{KindPattern, Kinds, UnknownKind};
pub use schema::{KindSchema, schemas};

/// The position of an event in the log of its node. A later event has a higher number. A missing number means that
/// events may be missing: the disk was full, or the machine lost power.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(transparent)]
#[schema(value_type = u64)]
pub struct EventSeq(u64);

impl EventSeq {
    /// The position before the first event.
    pub const START: Self = Self(0);

    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    pub const fn get(self) -> u64 {
        self.0
    }

    /// So many positions later.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0.saturating_add(count))
    }
}

impl std::str::FromStr for EventSeq {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for EventSeq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub seq: EventSeq,
    /// When it was recorded. Clocks can be set, so only `seq` tells the order.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(flatten)]
    pub kind: EventKind,
    /// The W3C trace context of the request that led to it, if its caller sent one or its trace is exported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub traceparent: Option<TraceParent>,
}

/// Whom an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = EventSubject)]
pub struct Subject {
    pub owner: Owner,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
}

/// What happened, with its data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", content = "data")]
pub enum EventKind {
    /// A sandbox was made and runs.
    #[serde(rename = "sandbox.created")]
    SandboxCreated {
        runtime: String,
        template: String,
        /// Those of its labels that consumers of events need.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
    },
    /// A stopped or failed sandbox runs again.
    #[serde(rename = "sandbox.started")]
    SandboxStarted {},
    /// All processes of a sandbox have ended. `reason` is set if nobody asked for it.
    #[serde(rename = "sandbox.stopped")]
    SandboxStopped {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// All processes of a sandbox are frozen. `reason` is set if nobody asked for it.
    #[serde(rename = "sandbox.paused")]
    SandboxPaused {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A paused sandbox runs again.
    #[serde(rename = "sandbox.resumed")]
    SandboxResumed {},
    /// A sandbox died, or a verb failed and left it unusable until it is started, rolled back or destroyed.
    #[serde(rename = "sandbox.failed")]
    SandboxFailed {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime: Option<String>,
        /// As in `sandbox.created`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
    },
    /// The files of a sandbox are as they were at a snapshot. `state` is the state that it is in now.
    #[serde(rename = "sandbox.rolled_back")]
    SandboxRolledBack { name: SnapshotName, state: State },
    /// Some files of a sandbox are as they were at a snapshot. `paths` has the first of `count`.
    #[serde(rename = "sandbox.reverted")]
    SandboxReverted {
        name: SnapshotName,
        paths: Vec<String>,
        count: u64,
        /// The user who asked for it.
        by: String,
    },
    /// A file of a sandbox was changed from outside, or by a tool that works on files. Commands are execs, and what
    /// they change is not in here.
    #[serde(rename = "file.changed")]
    FileChanged(FileChanged),
    /// Files were to become what they were at a snapshot, and only some did, or none.
    #[serde(rename = "sandbox.revert_failed")]
    SandboxRevertFailed { reason: String },
    /// New sandboxes were made from the files of this one: as they were at a snapshot, or at the moment.
    #[serde(rename = "sandbox.forked")]
    SandboxForked {
        sandboxes: Vec<SandboxId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        snapshot: Option<SnapshotName>,
    },
    /// A sandbox and everything it held is gone. `reason` is why it was last in a state that nobody asked for.
    #[serde(rename = "sandbox.destroyed")]
    SandboxDestroyed {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        runtime: Option<String>,
        /// As in `sandbox.created`.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        labels: BTreeMap<String, String>,
    },
    /// A snapshot was made.
    #[serde(rename = "snapshot.created")]
    SnapshotCreated(SnapshotMade),
    /// Somebody deleted a snapshot.
    #[serde(rename = "snapshot.deleted")]
    SnapshotDeleted { name: SnapshotName },
    /// A later turn took its place.
    #[serde(rename = "snapshot.pruned")]
    SnapshotPruned { name: SnapshotName },
    /// A turn was sealed by its snapshot. There is no `snapshot.created` beside it.
    #[serde(rename = "turn.completed")]
    TurnCompleted {
        turn: u64,
        #[serde(flatten)]
        snapshot: SnapshotMade,
    },
    /// A command runs in a sandbox. `command` is present only if the setting `events.commands` is on.
    #[serde(rename = "exec.started")]
    ExecStarted {
        exec: ExecId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        command: Option<Vec<String>>,
    },
    /// A command has ended, or it cannot be known what became of it (`lost`).
    #[serde(rename = "exec.ended")]
    ExecEnded {
        exec: ExecId,
        status: ExecStatus,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
        duration_ms: u64,
    },
    /// A template was imported, built or captured, in place of one of the same name.
    #[serde(rename = "template.created")]
    TemplateCreated { name: String, digest: String, shared: bool },
    /// A template was deleted.
    #[serde(rename = "template.removed")]
    TemplateRemoved { name: String, shared: bool },
    /// A codebase was made, with what was to be in it.
    #[serde(rename = "codebase.created")]
    CodebaseCreated { codebase: CodebaseId, name: CodebaseName },
    /// A codebase and everything in it is gone.
    #[serde(rename = "codebase.deleted")]
    CodebaseDeleted { codebase: CodebaseId, name: CodebaseName },
    /// The rules of a sandbox's codebase refused something inside. Equal refusals of some seconds are one event; `count` is
    /// how many there were. A path `*` stands for further paths. A server that leaves opens to the kernel (`fuse`) is
    /// not asked about them, so most refused opens have no event there.
    #[serde(rename = "codebase.refused")]
    CodebaseRefused {
        codebase: CodebaseId,
        /// Relative to the root of the codebase.
        path: String,
        /// `open`, `read`, `write`, `create`, `remove`, `rename`, `link`, or `attributes`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        action: Option<String>,
        /// The rule that decided; without one, none matches.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rule: Option<String>,
        count: u64,
    },
    /// An API key was made. The owner is the one it acts for.
    #[serde(rename = "key.created")]
    KeyCreated { key: KeyId, scopes: Vec<Scope> },
    /// An API key was revoked.
    #[serde(rename = "key.revoked")]
    KeyRevoked { key: KeyId },
    /// A request was refused by a quota, a rate or a missing permission. `code` is the error's. Refusals that repeat
    /// within a moment are one event; `count` is how many there were since the one before.
    #[serde(rename = "policy.refused")]
    PolicyRefused { code: String, count: u64 },
    /// The policy of a sandbox, or its secrets, were changed.
    #[serde(rename = "network.changed")]
    NetworkChanged {},
    /// A sandbox wanted to reach a destination that its policy refuses. Refusals of one destination within a minute are
    /// one event; `count` is how many there were since the one before. A host `*` stands for further destinations.
    #[serde(rename = "network.denied")]
    NetworkDenied {
        host: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        reason: String,
        count: u64,
    },
    /// A connection waits for a decision of the owner, or an agent asks for a destination and says why.
    #[serde(rename = "network.requested")]
    NetworkRequested {
        request: u64,
        host: String,
        port: u16,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The owner decided about a request.
    #[serde(rename = "network.decided")]
    NetworkDecided { request: u64, host: String, port: u16, choice: Choice },
    /// A webhook was registered.
    #[serde(rename = "webhook.created")]
    WebhookCreated { webhook: WebhookId },
    /// A webhook was deleted.
    #[serde(rename = "webhook.deleted")]
    WebhookDeleted { webhook: WebhookId },
    /// Deliveries to a webhook stopped, because they failed for too long or the receiver answered 410.
    #[serde(rename = "webhook.disabled")]
    WebhookDisabled { webhook: WebhookId, reason: String },
}

/// A change of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChanged {
    pub change: FileChangeKind,
    /// As it was named; a long one is cut off.
    pub path: String,
    /// The new path of what was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The user who asked for it.
    pub by: String,
    /// The tool that did it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

/// What was done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    Written,
    Deleted,
    DirectoryMade,
    Moved,
    ModeChanged,
    /// An archive was unpacked into this directory.
    Unpacked,
}

impl FileChangeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Deleted => "deleted",
            Self::DirectoryMade => "directory made",
            Self::Moved => "moved",
            Self::ModeChanged => "mode changed",
            Self::Unpacked => "unpacked",
        }
    }
}

/// A snapshot that was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotMade {
    pub snapshot: SnapshotId,
    pub name: SnapshotName,
    pub bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl EventKind {
    /// The name of every kind.
    pub const NAMES: [&'static str; 33] = [
        "sandbox.created",
        "sandbox.started",
        "sandbox.stopped",
        "sandbox.paused",
        "sandbox.resumed",
        "sandbox.failed",
        "sandbox.rolled_back",
        "sandbox.reverted",
        "file.changed",
        "sandbox.revert_failed",
        "sandbox.forked",
        "sandbox.destroyed",
        "snapshot.created",
        "snapshot.deleted",
        "snapshot.pruned",
        "turn.completed",
        "exec.started",
        "exec.ended",
        "template.created",
        "template.removed",
        "codebase.created",
        "codebase.deleted",
        "codebase.refused",
        "key.created",
        "key.revoked",
        "policy.refused",
        "network.changed",
        "network.denied",
        "network.requested",
        "network.decided",
        "webhook.created",
        "webhook.deleted",
        "webhook.disabled",
    ];

    /// The name of this kind.
    pub fn name(&self) -> &'static str {
        match self {
            Self::SandboxCreated { .. } => "sandbox.created",
            Self::SandboxStarted { .. } => "sandbox.started",
            Self::SandboxStopped { .. } => "sandbox.stopped",
            Self::SandboxPaused { .. } => "sandbox.paused",
            Self::SandboxResumed { .. } => "sandbox.resumed",
            Self::SandboxFailed { .. } => "sandbox.failed",
            Self::SandboxRolledBack { .. } => "sandbox.rolled_back",
            Self::SandboxReverted { .. } => "sandbox.reverted",
            Self::FileChanged(_) => "file.changed",
            Self::SandboxRevertFailed { .. } => "sandbox.revert_failed",
            Self::SandboxForked { .. } => "sandbox.forked",
            Self::SandboxDestroyed { .. } => "sandbox.destroyed",
            Self::SnapshotCreated(_) => "snapshot.created",
            Self::SnapshotDeleted { .. } => "snapshot.deleted",
            Self::SnapshotPruned { .. } => "snapshot.pruned",
            Self::TurnCompleted { .. } => "turn.completed",
            Self::ExecStarted { .. } => "exec.started",
            Self::ExecEnded { .. } => "exec.ended",
            Self::TemplateCreated { .. } => "template.created",
            Self::TemplateRemoved { .. } => "template.removed",
            Self::CodebaseCreated { .. } => "codebase.created",
            Self::CodebaseDeleted { .. } => "codebase.deleted",
            Self::CodebaseRefused { .. } => "codebase.refused",
            Self::KeyCreated { .. } => "key.created",
            Self::KeyRevoked { .. } => "key.revoked",
            Self::PolicyRefused { .. } => "policy.refused",
            Self::NetworkChanged {} => "network.changed",
            Self::NetworkDenied { .. } => "network.denied",
            Self::NetworkRequested { .. } => "network.requested",
            Self::NetworkDecided { .. } => "network.decided",
            Self::WebhookCreated { .. } => "webhook.created",
            Self::WebhookDeleted { .. } => "webhook.deleted",
            Self::WebhookDisabled { .. } => "webhook.disabled",
        }
    }

    /// What a new status of a sandbox means to those who were last told that it `was` in another state; `before` is the
    /// status that it replaces. `None` for an operation that has only begun or that changed nothing, and for rollbacks,
    /// which say more than a status knows.
    pub fn of_status(was: State, before: &Status, after: &Status) -> Option<Self> {
        let (is, ended) = (after.state(), before.operation());
        if after.operation().is_some() {
            return None;
        }
        let reason = || after.reason().map(ToString::to_string);
        // A start that fails again may fail for the same reason.
        let failed_again = ended == Some(Operation::Start) || before.reason() != after.reason();
        match is {
            State::Failed if was != is || failed_again => {
                let reason = reason().unwrap_or_default();
                Some(Self::SandboxFailed { reason, runtime: None, labels: BTreeMap::new() })
            }
            _ if was == is || ended == Some(Operation::Rollback) => None,
            State::Stopped => Some(Self::SandboxStopped { reason: reason() }),
            State::Paused => Some(Self::SandboxPaused { reason: reason() }),
            State::Running if was == State::Paused => Some(Self::SandboxResumed {}),
            State::Running => Some(Self::SandboxStarted {}),
            State::Failed | State::Creating | State::Destroying => None,
        }
    }

    /// The state that a sandbox is in after this; `None` if it says nothing about that.
    pub fn state(&self) -> Option<State> {
        match self {
            Self::SandboxCreated { .. } | Self::SandboxStarted {} | Self::SandboxResumed {} => {
                Some(State::Running)
            }
            Self::SandboxStopped { .. } => Some(State::Stopped),
            Self::SandboxPaused { .. } => Some(State::Paused),
            Self::SandboxFailed { .. } => Some(State::Failed),
            Self::SandboxRolledBack { state, .. } => Some(*state),
            Self::SandboxForked { .. }
            | Self::SandboxReverted { .. }
            | Self::FileChanged(_)
            | Self::SandboxRevertFailed { .. }
            | Self::SandboxDestroyed { .. }
            | Self::SnapshotCreated(_)
            | Self::SnapshotDeleted { .. }
            | Self::SnapshotPruned { .. }
            | Self::TurnCompleted { .. }
            | Self::ExecStarted { .. }
            | Self::ExecEnded { .. }
            | Self::TemplateCreated { .. }
            | Self::TemplateRemoved { .. }
            | Self::CodebaseCreated { .. }
            | Self::CodebaseDeleted { .. }
            | Self::CodebaseRefused { .. }
            | Self::KeyCreated { .. }
            | Self::KeyRevoked { .. }
            | Self::PolicyRefused { .. }
            | Self::NetworkChanged {}
            | Self::NetworkDenied { .. }
            | Self::NetworkRequested { .. }
            | Self::NetworkDecided { .. }
            | Self::WebhookCreated { .. }
            | Self::WebhookDeleted { .. }
            | Self::WebhookDisabled { .. } => None,
        }
    }
}
