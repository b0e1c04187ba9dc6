//! The registry: one row per sandbox in the directory, written by its supervisor alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::directory::{
    Directory, DirectoryError, FoundRow, NewRow, Phase as Placing, Share, row_id, rows_prefix,
};
use crate::error::Error;
use crate::policy::Quotas;
use crate::policy::quota::{self, Standing};
use sandkeep_core::{
    Labels, Moment, Owner, SandboxId, SlotName, Spec, State, Status, Terms, limits,
};
use sandkeep_home::{
    Meta, Phase,
    layout::{self, Unread, VERSION},
};
use sandkeep_store::{Revision, SqliteStore, StoreError};

/// What a row says beside the placement.
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

fn encode(meta: &Meta, status: &Status) -> Map<String, Value> {
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
    let encoded = serde_json::to_value(&record);
    match encoded.expect("a row holds only strings, numbers and maps of strings") {
        Value::Object(fields) => fields,
        other => unreachable!("a row is written as {other}"),
    }
}

/// How long the first record of a sandbox is.
pub(crate) fn row_len(meta: &Meta) -> usize {
    Value::Object(encode(meta, &Status::creating())).to_string().len()
}

/// Why a row says nothing to this node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnreadableRow {
    #[error("its row cannot be read: {0}")]
    Unread(#[from] Unread),
    #[error("node {node} has it")]
    Elsewhere { node: String },
}

/// One row, or why it says nothing.
pub(crate) struct Row {
    pub revision: Revision,
    pub record: Result<Record, UnreadableRow>,
}

impl Row {
    pub fn is_elsewhere(&self) -> bool {
        matches!(self.record, Err(UnreadableRow::Elsewhere { .. }))
    }
}

#[derive(Clone)]
pub(crate) struct Registry {
    directory: Arc<dyn Directory>,
}

impl Registry {
    pub fn new(directory: Arc<dyn Directory>) -> Self {
        Self { directory }
    }

    /// Writes the row. The supervisor is the only writer.
    pub async fn put(
        &self,
        meta: &Meta,
        status: &Status,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError> {
        let row = new_row(&meta.id, &meta.owner, meta.slot.as_ref(), &meta.spec, status);
        let row = NewRow { record: encode(meta, status), ..row };
        self.directory.put_row(row, known).await
    }

    /// Removes the row. `Ok` if there is none.
    pub async fn delete(
        &self,
        owner: &Owner,
        id: &SandboxId,
        known: Option<Revision>,
    ) -> Result<(), DirectoryError> {
        self.directory.remove_row(owner, id, known).await
    }

    /// The other node that has this sandbox; `None` if it is here, or gone.
    pub async fn elsewhere(
        &self,
        owner: &Owner,
        id: &SandboxId,
    ) -> Result<Option<String>, DirectoryError> {
        Ok(self.directory.row(owner, id).await?.and_then(|row| self.other_node(&row)))
    }

    /// All rows, of all nodes.
    pub async fn rows(&self) -> Result<Vec<(SandboxId, Row)>, DirectoryError> {
        let read = |found: FoundRow| {
            let record = match self.other_node(&found) {
                Some(node) => Err(UnreadableRow::Elsewhere { node }),
                None => layout::read(&found.value).map_err(UnreadableRow::from),
            };
            (found.id, Row { revision: found.revision, record })
        };
        Ok(self.directory.rows(None).await?.rows.into_iter().map(read).collect())
    }

    /// The sandboxes that have a row on any node.
    pub async fn ids(&self) -> Result<BTreeSet<SandboxId>, DirectoryError> {
        let rows = self.directory.rows(None).await?.rows;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    fn other_node(&self, row: &FoundRow) -> Option<String> {
        let node = &row.placement.as_ref()?.at.node;
        (*node != self.directory.node().node).then(|| node.clone())
    }

    /// Takes over the rows of versions that knew one node only: this is it. What cannot be read stays as it is.
    pub async fn adopt_earlier(&self) -> Result<(), DirectoryError> {
        for old in self.directory.rows(None).await?.rows {
            if old.placement.is_some() && old.owner.is_some() {
                continue;
            }
            let Ok(record) = layout::read::<Record>(&old.value) else { continue };
            let Ok(Value::Object(value)) = serde_json::from_slice(&old.value) else { continue };
            let Record { owner, slot, spec, status, .. } = &record;
            let row = new_row(&old.id, owner, slot.as_ref(), spec, status);
            self.directory.adopt_row(&old, NewRow { record: value, ..row }).await?;
            info!(id = %old.id, "took over the row of an earlier version");
        }
        Ok(())
    }

    /// Waits until it is certain that a sandbox whose row says `placing`, at this revision, is within the quotas of
    /// its owner. Those ahead of it decide, on whichever node they are.
    pub async fn within_quotas(
        &self,
        meta: &Meta,
        revision: Revision,
        quotas: &Quotas,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + limits::QUOTA_DECISION;
        let (organization, share) = (&meta.owner.organization, Share::of(meta.spec.resources()));
        loop {
            let listed = self.directory.rows(Some(organization)).await?;
            match quota::standing(quotas, &listed.rows, &meta.owner, share, revision) {
                Standing::Within => return Ok(()),
                Standing::Over(refused) => return Err(refused),
                Standing::Undecided(refused) => {
                    let changes = self.directory.row_changes(organization, listed.revision);
                    match timeout_at(deadline, changes).await {
                        Ok(changed) => changed?,
                        Err(_elapsed) => return Err(refused),
                    }
                }
            }
        }
    }
}

/// All but the record.
fn new_row<'a>(
    id: &'a SandboxId,
    owner: &'a Owner,
    slot: Option<&'a SlotName>,
    spec: &Spec,
    status: &Status,
) -> NewRow<'a> {
    let phase = match status.state() {
        State::Creating => Placing::Placing,
        State::Running | State::Paused | State::Stopped | State::Failed => Placing::Placed,
        State::Destroying => Placing::Destroying,
    };
    NewRow { owner, id, phase, slot, share: Share::of(spec.resources()), record: Map::new() }
}

/// The sandboxes with a row in the registry at `path`, for somebody who only looks; none if there is
/// no registry.
pub fn registered(path: &Path) -> Result<Vec<SandboxId>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &rows_prefix())?;
    Ok(listing.entries.into_iter().filter_map(row_id).collect())
}
