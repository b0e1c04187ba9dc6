//! The directory: which node has a sandbox, which sandbox has a slot, what was created under an idempotency key, how
//! much an owner uses, which API keys exist. It is the one truth that several nodes share; what only the node of a
//! sandbox needs (snapshots, journals, intents) is stored elsewhere.
//!
//! The broker and the key ring use it through [`Directory`] alone, and do not know whether it is this machine's own
//! store ([`LocalDirectory`]) or shared by many. It is part of the broker because it deals with slots, quotas and
//! idempotency; a store knows only keys and values.
//!
//! ```text
//!   create    row `placing` ─▶ rank ─▶ idempotency record ─▶ slot ─▶ launch ─▶ row `placed`
//!   destroy   row `destroying` ─▶ stopped ─▶ slot deleted ─▶ row deleted
//! ```
//!
//! The row is written first and removed last. So everything else that names a sandbox without a row was left by a
//! crash, and any node may remove it, at the revision at which it was read: ids are never reused.
//!
//! A row has two parts: its placement, which all nodes must see, and its record, which only the sandbox's node needs.
//! On one machine both are one value, and each change is one commit.

mod local;

#[cfg(test)]
mod conformance;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;
use sandkeep_core::{
    IdempotencyKey, KeyId, Owner, Principal, Resources, SandboxId, SandboxName, SlotName,
};
use sandkeep_store::{Key, Revision, StoreError};

pub use local::LocalDirectory;
pub(crate) use local::{row_id, rows_prefix};

/// A node, and how often it rejoined after it was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub node: String,
    pub epoch: u64,
}

/// The progress of a sandbox, as far as other nodes need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It may still fail. A row in this phase is not rewritten until it leaves it: its revision is its rank.
    Placing,
    Placed,
    Destroying,
}

/// An amount of the counted resources. Processors are counted in thousandths, so that sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub sandboxes: u64,
    pub millicpus: u64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

impl Share {
    /// The share of one sandbox.
    pub fn of(resources: &Resources) -> Self {
        Self {
            sandboxes: 1,
            millicpus: millicpus(resources.cpus),
            memory_mb: resources.memory_mb,
            disk_mb: resources.disk_mb.unwrap_or_default(),
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
            millicpus: self.millicpus.saturating_add(other.millicpus),
            memory_mb: self.memory_mb.saturating_add(other.memory_mb),
            disk_mb: self.disk_mb.saturating_add(other.disk_mb),
        }
    }

    /// The share of this many equal sandboxes.
    pub fn times(self, count: u64) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_mul(count),
            millicpus: self.millicpus.saturating_mul(count),
            memory_mb: self.memory_mb.saturating_mul(count),
            disk_mb: self.disk_mb.saturating_mul(count),
        }
    }
}

/// Large enough for every machine; NaN counts as 0.
pub(crate) fn millicpus(cpus: f64) -> u64 {
    (cpus * 1000.0).round() as u64
}

/// The part of a row that all nodes need.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub phase: Phase,
    /// The node that has the sandbox.
    #[serde(flatten)]
    pub at: Node,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    /// Its chosen name, and the one that it is about to get instead. A name leads here only while it is among these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<SandboxName>,
    pub share: Share,
    /// The process that wrote this: it recognizes its own write if the answer was lost.
    pub writer: String,
}

/// A row to be written. The directory adds the owner.
pub struct NewRow<'a> {
    pub owner: &'a Owner,
    pub id: &'a SandboxId,
    pub phase: Phase,
    pub slot: Option<&'a SlotName>,
    pub names: Vec<SandboxName>,
    pub share: Share,
    pub record: Map<String, Value>,
}

/// A row as read.
pub struct FoundRow {
    pub id: SandboxId,
    /// `None`: its key is from an earlier version.
    pub owner: Option<Owner>,
    pub revision: Revision,
    /// `None`: it is unreadable, or from a version that knew only one node.
    pub placement: Option<Placement>,
    /// The whole value: the record, with the placement as one more field.
    pub value: Vec<u8>,
}

/// Rows, all read at one instant.
pub struct Rows {
    pub rows: Vec<FoundRow>,
    pub revision: Revision,
}

/// The record of a request with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Covers the request, so that a different request under the same key is detected.
    pub fingerprint: String,
    pub sandbox: SandboxId,
    /// The further sandboxes, for a request that creates several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<SandboxId>,
    pub phase: RequestPhase,
    pub at: jiff::Timestamp,
    /// The node that carries it out; `None` in rows of an earlier version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPhase {
    Pending,
    Made,
}

/// The record of a request, with its revision. An unreadable one counts as missing, and may be replaced.
pub struct FoundRequest {
    pub record: Option<RequestRecord>,
    pub revision: Revision,
}

/// The name of an idempotency key: different users' keys never collide.
pub(crate) fn request_name(key: &IdempotencyKey, who: &Principal) -> Key {
    Key::new([local::REQUESTS, &who.organization, &who.user, key.as_str()])
}

/// The name of a slot: different owners' slots never collide, whatever their strings contain.
pub(crate) fn slot_name(owner: &Owner, slot: &SlotName) -> Key {
    let Owner { organization, user, project } = owner;
    Key::new([local::SLOTS, organization, user, project, slot.as_str()])
}

/// The key of a chosen name.
fn name_key(owner: &Owner, name: &SandboxName) -> Key {
    let Owner { organization, user, project } = owner;
    Key::new([local::NAMES, organization, user, project, name.as_str()])
}

#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// Another process has written a row of the caller's. Nothing was changed.
    #[error("{what} was changed concurrently")]
    Fenced { what: String },
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<DirectoryError> for Error {
    fn from(error: DirectoryError) -> Self {
        match error {
            DirectoryError::Fenced { what } => Self::Fenced { what },
            DirectoryError::Store(error) => Self::Store(error),
        }
    }
}

/// # Behavior
/// - After `Ok` a change is durable, and every later reader sees it.
/// - `Fenced` changed nothing. After any other error, or a dropped future, the write may or may not have happened: it
///   can be repeated, and recognizes its own earlier write.
/// - No method touches what another node has, unless stated.
#[async_trait]
pub trait Directory: Send + Sync {
    /// The node that this directory acts for.
    fn node(&self) -> &Node;

    /// Writes the row of a sandbox of this node: for the first time (`known` is `None`) or over its current revision.
    /// To *accept* a sandbox is to write `placed` over the revision of `placing`.
    ///
    /// Requires: this process alone writes the row. Repeated: the same. A crash leaves the row unchanged or written;
    /// the node's next start finishes or removes what it names.
    async fn put_row(
        &self,
        row: NewRow<'_>,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError>;

    /// Removes the row of a sandbox of this node. `Ok` if there is none.
    ///
    /// Requires: nothing is left of the sandbox, and its slot is free. A crash leaves a row `placing` or `destroying`,
    /// which the node's next start removes.
    async fn remove_row(
        &self,
        owner: &Owner,
        id: &SandboxId,
        known: Option<Revision>,
    ) -> Result<(), DirectoryError>;

    /// The row of a sandbox, whichever node has it.
    async fn row(&self, owner: &Owner, id: &SandboxId) -> Result<Option<FoundRow>, DirectoryError>;

    /// All rows, of all nodes, optionally of one organization.
    async fn rows(&self, organization: Option<&str>) -> Result<Rows, DirectoryError>;

    /// Moves a row of an earlier version to its current key, and assigns it to this node. A crash leaves both the old
    /// and the new one, and the next call removes the old.
    async fn adopt_row(&self, old: &FoundRow, row: NewRow<'_>) -> Result<(), DirectoryError>;

    /// Resolves when a row of the organization was written after that revision.
    async fn row_changes(&self, organization: &str, after: Revision) -> Result<(), DirectoryError>;

    /// Takes a slot for a sandbox; `Some` is the sandbox that has it instead. Of several concurrent callers exactly one
    /// gets it. A slot whose sandbox has no row is free.
    ///
    /// Requires: the sandbox has a row. Repeated: the same. A crash leaves a slot whose row its node removes, after the
    /// slot.
    async fn claim_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// The sandbox that last claimed the slot.
    async fn slot_holder(
        &self,
        owner: &Owner,
        slot: &SlotName,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// Releases a slot, if this sandbox holds it. Requires: the sandbox does not run any more.
    async fn free_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<(), DirectoryError>;

    /// Takes a name for a sandbox; `Some` is the sandbox that has it instead. Of many exactly one gets it. A name is free
    /// if its sandbox has no row, or a row that does not list it.
    ///
    /// Needs: the sandbox has a row that lists the name. Repeated: the same. A crash leaves a name that its sandbox's
    /// node settles: a create is undone with its row, a rename by taking the name off the row.
    async fn claim_name(
        &self,
        owner: &Owner,
        name: &SandboxName,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// The sandbox that has the name.
    async fn name_holder(
        &self,
        owner: &Owner,
        name: &SandboxName,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// Gives a name back, if it is this sandbox's.
    async fn free_name(
        &self,
        owner: &Owner,
        name: &SandboxName,
        id: &SandboxId,
    ) -> Result<(), DirectoryError>;

    /// Frees the slots and names that this node claimed for sandboxes that have no row, and the names that their rows
    /// do not list.
    async fn sweep_claims(&self) -> Result<(), DirectoryError>;

    /// The record of an idempotency key (see `request_name`).
    async fn request(&self, name: &Key) -> Result<Option<FoundRequest>, DirectoryError>;

    /// Records a request, replacing the record that was read. Of several callers that read the same record one wins,
    /// the others are `Fenced`. Repeated: the same.
    ///
    /// Requires: the sandboxes it names have rows, or will have none. A crash leaves `pending`: it refers to its
    /// sandbox while that has a row, and otherwise may be replaced.
    async fn put_request(
        &self,
        name: &Key,
        record: &RequestRecord,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError>;

    /// Removes a request's record, if it still has that revision.
    async fn remove_request(&self, name: &Key, known: Revision) -> Result<(), DirectoryError>;

    /// Removes this node's expired records, and the oldest of those beyond the maximum.
    async fn sweep_requests(&self, now: jiff::Timestamp) -> Result<(), DirectoryError>;

    /// The value of an API key.
    async fn api_key(&self, id: &KeyId) -> Result<Option<Vec<u8>>, DirectoryError>;

    async fn api_keys(&self) -> Result<Vec<Vec<u8>>, DirectoryError>;

    /// Adds a new key. All nodes accept it from the next request on.
    async fn add_api_key(&self, id: &KeyId, value: Vec<u8>) -> Result<(), DirectoryError>;

    /// `false`: it does not exist.
    async fn remove_api_key(&self, id: &KeyId) -> Result<bool, DirectoryError>;
}
