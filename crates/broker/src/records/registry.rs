//! The registry: one row per sandbox in the state store, written by its supervisor alone.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::rows;
use sandkeep_core::{Labels, Moment, Owner, SandboxId, SlotName, Spec, Status, Terms};
use sandkeep_home::{
    Meta, Phase,
    layout::{self, Unread, VERSION},
};
use sandkeep_store::{Entry, Key, Prefix, Revision, SqliteStore, StateStore, StoreError};

/// The first segment of every row's key.
const ROWS: &str = "sandboxes";

/// What a row says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Record {
    spec: Spec,
    pub terms: Terms,
    pub began: Moment,
    owner: Owner,
    #[serde(default)]
    slot: Option<SlotName>,
    created_at: jiff::Timestamp,
    boot_id: String,
    turn: u64,
    pub status: Status,
}

impl Record {
    /// The metadata that belongs beside this row.
    pub fn into_meta(self, id: SandboxId, instance: &str, phase: Phase) -> (Meta, Status) {
        let labels = Labels { instance: instance.to_owned(), owner: self.owner };
        let mut meta = Meta::new(id, labels, self.spec, self.boot_id);
        meta.terms = self.terms;
        meta.began = self.began;
        meta.slot = self.slot;
        meta.created_at = self.created_at;
        meta.turn = self.turn;
        meta.phase = phase;
        (meta, self.status)
    }
}

/// A row as it is written, without a copy of all it holds.
#[derive(Serialize)]
struct RecordRef<'a> {
    version: u32,
    spec: &'a Spec,
    terms: &'a Terms,
    began: &'a Moment,
    owner: &'a Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<&'a SlotName>,
    created_at: jiff::Timestamp,
    boot_id: &'a str,
    turn: u64,
    status: &'a Status,
}

fn encode(meta: &Meta, status: &Status) -> Vec<u8> {
    let record = RecordRef {
        version: VERSION,
        spec: &meta.spec,
        terms: &meta.terms,
        began: &meta.began,
        owner: &meta.owner,
        slot: meta.slot.as_ref(),
        created_at: meta.created_at,
        boot_id: &meta.boot_id,
        turn: meta.turn,
        status,
    };
    serde_json::to_vec(&record).expect("a row holds only strings, numbers and maps of strings")
}

/// How long the first row of a sandbox is.
pub(crate) fn row_len(meta: &Meta) -> usize {
    encode(meta, &Status::creating()).len()
}

/// Why a row says nothing.
#[derive(Debug, thiserror::Error)]
#[error("its row cannot be read: {0}")]
pub(crate) struct UnreadableRow(#[from] Unread);

/// One row, or why it cannot be read.
pub(crate) struct Row {
    pub revision: Revision,
    pub record: Result<Record, UnreadableRow>,
}

#[derive(Clone)]
pub(crate) struct Registry {
    store: Arc<dyn StateStore>,
}

impl Registry {
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store }
    }

    /// Writes the row. The supervisor is the only writer.
    pub async fn put(
        &self,
        meta: &Meta,
        status: &Status,
        known: Option<Revision>,
    ) -> Result<Revision, StoreError> {
        rows::put(&*self.store, &key(&meta.id), encode(meta, status), known).await
    }

    /// Removes the row. `Ok` if there is none.
    pub async fn delete(&self, id: &SandboxId, known: Option<Revision>) -> Result<(), StoreError> {
        rows::remove(&*self.store, &key(id), known).await
    }

    /// Whether there is a row.
    pub async fn has(&self, id: &SandboxId) -> Result<bool, StoreError> {
        Ok(self.store.get(&key(id)).await?.is_some())
    }

    /// All rows. A key that names no sandbox is none of ours.
    pub async fn rows(&self) -> Result<Vec<(SandboxId, Row)>, StoreError> {
        let listing = self.store.list(&Prefix::new([ROWS])).await?;
        Ok(listing.entries.into_iter().filter_map(row).collect())
    }
}

fn key(id: &SandboxId) -> Key {
    Key::new([ROWS, id.as_str()])
}

fn row(entry: Entry) -> Option<(SandboxId, Row)> {
    let id = entry.key.segments().into_iter().nth(1)?.parse().ok()?;
    let record = layout::read(&entry.value).map_err(UnreadableRow::from);
    Some((id, Row { revision: entry.revision, record }))
}

/// The sandboxes with a row in the registry at `path`, for somebody who only looks; none if there is
/// no registry.
pub fn registered(path: &Path) -> Result<Vec<SandboxId>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &Prefix::new([ROWS]))?;
    Ok(listing.entries.into_iter().filter_map(row).map(|(id, _)| id).collect())
}
