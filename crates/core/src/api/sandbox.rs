//! Sandboxes and their snapshots.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::{
    OnTimeout, Operation, Owner, Privilege, Resources, SandboxId, SandboxName, SlotName,
    SnapshotId, SnapshotName, Source, State,
};

/// A sandbox as the API shows it, without the values of its environment.
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
    /// Digest of the image that it was created from, even if its template's name refers to another one now.
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
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When `timeout_secs` will have passed, by the current wall clock. An idle timeout may come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codebase: Option<super::MountedCodebase>,
    /// The last time that something started or stopped using it. A running command counts as continuous activity. After
    /// a crash of the daemon the value may be half a minute too early.
    #[schema(value_type = String, format = DateTime)]
    pub last_activity_at: Timestamp,
    /// Number of turns.
    pub turn_count: u64,
    pub snapshot_count: u64,
    /// Maximum number of its snapshots, if it asked for fewer than the daemon allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_snapshots: Option<usize>,
    /// Whether a snapshot is taken after each tool call that may have changed files.
    pub snapshot_tool_calls: bool,
    /// Bytes in its volume, as last measured: a few seconds ago if the storage counts them, otherwise when its stats
    /// were last requested. `null`: not measured yet.
    pub space_used_bytes: Option<u64>,
    /// The same as `space_used_bytes`, under its former name.
    #[schema(deprecated)]
    pub space_used: Option<u64>,
}

impl Sandbox {
    /// The names of its fields.
    pub fn fields() -> Vec<String> {
        match <Self as PartialSchema>::schema() {
            RefOr::T(Schema::Object(object)) => object.properties.into_keys().collect(),
            _ => Vec::new(),
        }
    }
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
    /// Unique in this sandbox; the id, if it was given none.
    pub name: SnapshotName,
    /// The turn that it seals.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Size when it was taken, as counted by the storage.
    pub bytes: u64,
}

/// One page of sandboxes, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sandboxes {
    pub items: Vec<Sandbox>,
    /// Pass it as `cursor` to get the next page; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The answer to ensure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ensured {
    pub sandbox: Sandbox,
    /// Whether this request created it.
    pub created: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Forks {
    pub items: Vec<Sandbox>,
    /// The same as `items`, under their former name.
    #[schema(deprecated)]
    pub sandboxes: Vec<Sandbox>,
}

impl From<Vec<Sandbox>> for Forks {
    fn from(items: Vec<Sandbox>) -> Self {
        Self { sandboxes: items.clone(), items }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshots {
    /// Oldest first.
    pub items: Vec<Snapshot>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reverted {
    /// The paths that differed from the snapshot, and were restored.
    pub reverted: Vec<String>,
}
