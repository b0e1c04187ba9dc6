//! Sandboxes and their snapshots.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    OnTimeout, Operation, Owner, Privilege, Resources, SandboxId, SandboxName, SlotName,
    SnapshotId, SnapshotName, Source, State,
};

/// A sandbox as the API shows it. Environment values are never in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub id: SandboxId,
    /// Usable wherever the id is. It was chosen, or it is derived from the id.
    pub name: SandboxName,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<Operation>,
    /// Why it is `failed` or `stopped`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub runtime: String,
    pub template: String,
    /// Of the image it was made from, whatever its template's name means now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    pub owner: Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    pub labels: BTreeMap<String, String>,
    pub resources: Resources,
    pub privilege: Privilege,
    /// RFC 3339.
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    /// When `timeout_secs` will have passed, by the wall clock as it goes now. An idle timeout may
    /// come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_secs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_secs: Option<u64>,
    pub on_timeout: OnTimeout,
    /// Where commands run that name no directory.
    pub workdir: String,
    /// The sandbox it is a fork of. Snapshots of that sandbox can be named in a diff as long as it exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forked_from: Option<ForkPoint>,
    /// The workspace that it was made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// When something last began or ended to use it. A command that runs is activity all the while.
    /// After a crash of the daemon it may be told half a minute too early.
    #[schema(value_type = String)]
    pub last_activity_at: Timestamp,
    /// Number of turns.
    pub turn_count: u64,
    pub snapshot_count: u64,
    /// How many it may have at once, if it asked for fewer than the daemon allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_snapshots: Option<usize>,
    /// Whether there is a snapshot after each call of a tool that may have changed files.
    pub snapshot_tool_calls: bool,
    /// Bytes in its volume, as last measured: a few seconds ago where the storage counts them, else
    /// when its stats were last asked for. `null`: not yet.
    pub space_used: Option<u64>,
}

/// What a fork was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ForkPoint {
    pub sandbox: SandboxId,
    /// The snapshot that was named; without one, the fork started with the files of that moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotName>,
}

/// A snapshot as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub id: SnapshotId,
    /// Of this sandbox alone; the id, if it was given none.
    pub name: SnapshotName,
    /// The turn that it seals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// RFC 3339.
    #[schema(value_type = String)]
    pub created_at: Timestamp,
    /// Size when it was taken, as the storage counts it.
    pub bytes: u64,
}

/// One page of sandboxes, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandboxes {
    pub items: Vec<Sandbox>,
    /// Where the next page begins, if there is one: pass it as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The answer to ensure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ensured {
    pub sandbox: Sandbox,
    /// Whether it was made by this very request.
    pub created: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Forks {
    pub sandboxes: Vec<Sandbox>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshots {
    /// The oldest first.
    pub items: Vec<Snapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reverted {
    /// What was not as in the snapshot, and is now.
    pub reverted: Vec<String>,
}
