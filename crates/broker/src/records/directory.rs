//! The directory: who has what. Which node has a sandbox, which sandbox has a slot, what was made under an
//! idempotency key, how much an owner has, which API keys there are. It is the one truth that several nodes share;
//! what only the node of a sandbox needs (snapshots, journals, intents) is not its affair.
//!
//! The broker and the key ring reach it through [`Directory`] alone, and do not know whether it is this machine's own
//! store ([`LocalDirectory`]) or one for many. It lives in the broker because it speaks of slots, quotas and
//! idempotency; a store knows keys and values only.
//!
//! ```text
//!   create    row `placing` ─▶ rank ─▶ idempotency record ─▶ slot ─▶ launch ─▶ row `placed`
//!   destroy   row `destroying` ─▶ stopped ─▶ slot deleted ─▶ row deleted
//! ```
//!
//! The row is first in and last out. So whatever else names a sandbox without a row is what a crash left, and
//! anybody may remove it, at the revision at which it was read: ids are never used twice.
//!
//! A row has two parts: its placement, which all nodes must see, and its record, which only the node that has the
//! sandbox needs. On one machine both are one value, and each change is one commit.

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

/// A node, and how often it came back after it was given up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    pub node: String,
    pub epoch: u64,
}

/// How far a sandbox has come, as far as other nodes care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It may come to nothing. A row in this phase is not written again until it leaves it: its revision is its
    /// rank.
    Placing,
    Placed,
    Destroying,
}

/// How much of what is counted. Processors are counted in thousandths, so that sums come out even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    pub sandboxes: u64,
    pub millicpus: u64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

impl Share {
    /// That of one sandbox.
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

    /// That of so many sandboxes alike.
    pub fn times(self, count: u64) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_mul(count),
            millicpus: self.millicpus.saturating_mul(count),
            memory_mb: self.memory_mb.saturating_mul(count),
            disk_mb: self.disk_mb.saturating_mul(count),
        }
    }
}

/// No machine has so many processors that this would not hold them; what is not a number is none.
pub(crate) fn millicpus(cpus: f64) -> u64 {
    (cpus * 1000.0).round() as u64
}

/// What all nodes must know of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub phase: Phase,
    /// Who has it.
    #[serde(flatten)]
    pub at: Node,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<SlotName>,
    /// Its chosen name, and the one that it is about to get instead. A name leads here only while it is among these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<SandboxName>,
    pub share: Share,
    /// The process that wrote this: it knows its own write again whose answer was lost.
    pub writer: String,
}

/// A row to be written. The directory adds whose it is.
pub struct NewRow<'a> {
    pub owner: &'a Owner,
    pub id: &'a SandboxId,
    pub phase: Phase,
    pub slot: Option<&'a SlotName>,
    pub names: Vec<SandboxName>,
    pub share: Share,
    pub record: Map<String, Value>,
}

/// A row as it was found.
pub struct FoundRow {
    pub id: SandboxId,
    /// `None`: its key is that of an earlier version.
    pub owner: Option<Owner>,
    pub revision: Revision,
    /// `None`: it cannot be read, or is of a version that knew one node only.
    pub placement: Option<Placement>,
    /// The whole value: the record, with the placement as one more field.
    pub value: Vec<u8>,
}

/// Rows, all as of one instant.
pub struct Rows {
    pub rows: Vec<FoundRow>,
    pub revision: Revision,
}

/// What is remembered of a request under an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Of what was asked for, so that something else under the same key is noticed.
    pub fingerprint: String,
    pub sandbox: SandboxId,
    /// The others, of a request that makes several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<SandboxId>,
    pub phase: RequestPhase,
    pub at: jiff::Timestamp,
    /// The node that carries it out; `None` in what an earlier version wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestPhase {
    Pending,
    Made,
}

/// A record of a request, where it stands. One that cannot be read is as good as none, and may be replaced.
pub struct FoundRequest {
    pub record: Option<RequestRecord>,
    pub revision: Revision,
}

/// The name of an idempotency key: one user's key is never another's.
pub(crate) fn request_name(key: &IdempotencyKey, who: &Principal) -> Key {
    Key::new([local::REQUESTS, &who.organization, &who.user, key.as_str()])
}

/// The name of a slot: whatever the strings hold, no two owners' can be the same.
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
    /// Somebody else has written what the caller took for its own. Nothing was changed.
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
/// - Whatever returned `Ok` is durable, and everybody who asks later sees it.
/// - `Fenced` changed nothing. Any other error, and a dropped future, leave the write undecided: it may be repeated,
///   and finds its own earlier write.
/// - No method touches what another node has, unless it says so.
#[async_trait]
pub trait Directory: Send + Sync {
    /// The node on whose behalf it is asked.
    fn node(&self) -> &Node;

    /// Writes the row of a sandbox that this node has: for the first time (`known` is `None`) or over the revision
    /// at which it stands. To *accept* a sandbox is to write `placed` over the revision of `placing`.
    ///
    /// Needs: this process alone writes the row. Repeated: the same. A crash leaves the row as before or as written;
    /// the node's next start finishes or removes what it names.
    async fn put_row(
        &self,
        row: NewRow<'_>,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError>;

    /// Removes the row of a sandbox that this node has. `Ok` if there is none.
    ///
    /// Needs: nothing is left of the sandbox, and its slot is free. A crash leaves a row `placing` or `destroying`,
    /// which the node's next start removes.
    async fn remove_row(
        &self,
        owner: &Owner,
        id: &SandboxId,
        known: Option<Revision>,
    ) -> Result<(), DirectoryError>;

    /// The row of a sandbox, whichever node has it.
    async fn row(&self, owner: &Owner, id: &SandboxId) -> Result<Option<FoundRow>, DirectoryError>;

    /// All rows, of all nodes and of one organization if it is named.
    async fn rows(&self, organization: Option<&str>) -> Result<Rows, DirectoryError>;

    /// Puts a row of an earlier version where it belongs, and says that this node has it. A crash leaves both the old
    /// and the new one, and the next call removes the old.
    async fn adopt_row(&self, old: &FoundRow, row: NewRow<'_>) -> Result<(), DirectoryError>;

    /// Resolves when a row of the organization was written after that revision.
    async fn row_changes(&self, organization: &str, after: Revision) -> Result<(), DirectoryError>;

    /// Takes a slot for a sandbox; `Some` is the sandbox that has it instead. Of many exactly one gets it. A slot
    /// whose sandbox has no row is free, whoever's it was.
    ///
    /// Needs: the sandbox has a row. Repeated: the same. A crash leaves a slot whose row its node removes, and the
    /// slot before it.
    async fn claim_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// The sandbox that the slot was last claimed for.
    async fn slot_holder(
        &self,
        owner: &Owner,
        slot: &SlotName,
    ) -> Result<Option<SandboxId>, DirectoryError>;

    /// Gives a slot back, if it is this sandbox's. Needs: the sandbox does not run any more.
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

    /// What is remembered under an idempotency key (see `request_name`).
    async fn request(&self, name: &Key) -> Result<Option<FoundRequest>, DirectoryError>;

    /// Remembers a request, in place of what was found there. Of many who found the same one wins, the others are
    /// `Fenced`. Repeated: the same.
    ///
    /// Needs: the sandboxes it names have rows, or will have none. A crash leaves `pending`: it leads to its
    /// sandbox while that has a row, and else may be replaced.
    async fn put_request(
        &self,
        name: &Key,
        record: &RequestRecord,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError>;

    /// Forgets a request, if it still stands at that revision.
    async fn remove_request(&self, name: &Key, known: Revision) -> Result<(), DirectoryError>;

    /// Forgets this node's requests that are too old, and the oldest of those that are too many.
    async fn sweep_requests(&self, now: jiff::Timestamp) -> Result<(), DirectoryError>;

    /// What was written of an API key.
    async fn api_key(&self, id: &KeyId) -> Result<Option<Vec<u8>>, DirectoryError>;

    async fn api_keys(&self) -> Result<Vec<Vec<u8>>, DirectoryError>;

    /// Writes down a new key. It holds for all nodes from the next request on.
    async fn add_api_key(&self, id: &KeyId, value: Vec<u8>) -> Result<(), DirectoryError>;

    /// `false`: there is none.
    async fn remove_api_key(&self, id: &KeyId) -> Result<bool, DirectoryError>;
}
