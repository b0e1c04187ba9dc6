//! The row of a codebase in the store.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::error::Error;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::api::CodebaseState;
use sandkeep_core::{CodebaseId, CodebaseName, Owner, SnapshotId};
use sandkeep_store::{Key, Prefix, StateStore, StoreError};

const ROWS: &str = "codebases";
const VERSION: u32 = 1;

/// Everything about a codebase besides its files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    version: u32,
    /// The node that has its volume.
    node: Option<String>,
    pub id: CodebaseId,
    pub name: CodebaseName,
    pub owner: Owner,
    pub disk_mb: Option<u64>,
    pub created_at: Timestamp,
    /// The snapshot of what its source brought, with which it is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<SnapshotId>,
    pub state: CodebaseState,
    /// It is to go, and could not be removed yet.
    #[serde(skip)]
    pub failed_to_go: bool,
}

impl Row {
    pub fn new(shared: &Shared, name: CodebaseName, owner: Owner, disk_mb: Option<u64>) -> Self {
        Self {
            version: VERSION,
            node: shared.node(),
            id: CodebaseId::random(),
            name,
            owner,
            disk_mb,
            created_at: shared.clock.wall(),
            base: None,
            state: CodebaseState::Creating,
            failed_to_go: false,
        }
    }

    pub fn read(value: &[u8]) -> Option<Self> {
        match serde_json::from_slice::<Self>(value) {
            Ok(row) if row.version == VERSION => Some(row),
            Ok(row) => {
                warn!(version = row.version, id = %row.id, "a codebase is of another version of sandkeep");
                None
            }
            Err(error) => {
                warn!(%error, "the row of a codebase cannot be read");
                None
            }
        }
    }

    pub fn in_state(self, state: CodebaseState) -> Self {
        Self { state, ..self }
    }

    /// Whether both have the same name and owner.
    pub fn is_namesake(&self, other: &Self) -> bool {
        (&self.name, &self.owner) == (&other.name, &other.owner)
    }

    pub fn check_ready(&self) -> Result<(), Error> {
        let doing = match self.state {
            CodebaseState::Ready => return Ok(()),
            CodebaseState::Creating => "created",
            CodebaseState::Deleting => "deleted",
        };
        Err(Error::CodebaseBusy { name: self.name.clone(), doing })
    }

    pub fn key(&self) -> Key {
        let Owner { organization, user, project } = &self.owner;
        Key::new([ROWS, organization, user, project, self.name.as_str()])
    }

    fn value(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a row holds strings and numbers")
    }

    /// Writes it for the first time, if no other node has made one of this name meanwhile.
    pub async fn create(&self, shared: &Shared) -> Result<(), Error> {
        match rows::put(shared.store.as_ref(), &self.key(), self.value(), None).await {
            Err(StoreError::Exists { .. }) => {
                let entry = shared.store.get(&self.key()).await?;
                let holder = entry.and_then(|entry| Self::read(&entry.value));
                let holder = holder.map_or_else(|| self.id.clone(), |row| row.id);
                Err(Error::CodebaseExists { name: self.name.clone(), holder })
            }
            written => Ok(written.map(drop)?),
        }
    }

    pub async fn write(&self, shared: &Shared) -> Result<(), Error> {
        rows::replace(shared.store.as_ref(), &self.key(), self.value()).await?;
        Ok(())
    }
}

pub fn prefix() -> Prefix {
    Prefix::new([ROWS])
}

/// Those of this node.
pub async fn all(shared: &Arc<Shared>) -> Result<Vec<Row>, Error> {
    let entries = shared.store.list(&prefix()).await?.entries;
    let read = entries.iter().filter_map(|entry| Row::read(&entry.value));
    Ok(read.filter(|row| !shared.is_elsewhere(row.node.as_deref())).collect())
}
