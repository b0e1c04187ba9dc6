//! The registry: one row per sandbox in the directory, written by its supervisor alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};
use tracing::info;

use super::directory::{
    Directory, DirectoryError, FoundRow, NewRow, Phase as Placing, Share, row_id, rows_prefix,
};
use crate::error::Error;
use crate::policy::Quotas;
use crate::policy::quota::{self, QuotaStanding};
use sandkeep_core::{Owner, SandboxId, State, Status, limits};
use sandkeep_home::{
    Meta, Phase,
    layout::{self, Unread},
};
use sandkeep_store::{Revision, SqliteStore, StoreError};

/// The content of a row besides the placement: the metadata, and what they leave out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record<M = Meta> {
    #[serde(flatten)]
    pub meta: M,
    pub status: Status,
}

fn encode(meta: &Meta, status: &Status) -> Map<String, Value> {
    let encoded = serde_json::to_value(Record { meta, status: status.clone() });
    match encoded.expect("a row holds only strings, numbers and maps of strings") {
        Value::Object(fields) => fields,
        other => unreachable!("a row is written as {other}"),
    }
}

/// Decodes a row. Earlier versions stored some fields outside of the metadata.
fn decode(row: &FoundRow, instance: &str) -> Result<Record, Unread> {
    let mut fields: Map<String, Value> = serde_json::from_slice(&row.value)?;
    fields.entry("id").or_insert_with(|| row.id.as_str().into());
    fields.entry("instance").or_insert_with(|| instance.into());
    fields.entry("phase").or_insert_with(|| json!(Phase::Creating));
    layout::read_value(Value::Object(fields))
}

/// The length of a sandbox's first record.
pub(crate) fn row_len(meta: &Meta) -> usize {
    Value::Object(encode(meta, &Status::creating())).to_string().len()
}

/// Why this node cannot use a row.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnreadableRow {
    #[error("its row cannot be read: {0}")]
    Unread(#[from] Unread),
    #[error("node {node} has it")]
    Elsewhere { node: String },
}

/// A row, or why it cannot be used.
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

    /// Writes the row. The supervisor is its only writer.
    pub async fn put(
        &self,
        meta: &Meta,
        status: &Status,
        known: Option<Revision>,
    ) -> Result<Revision, DirectoryError> {
        self.directory.put_row(new_row(meta, status), known).await
    }

    /// Removes the row. `Ok` if it does not exist.
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
                None => decode(&found, &self.directory.node().node).map_err(UnreadableRow::from),
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

    /// Migrates the rows of versions that knew only one node to this node. Unreadable ones are not changed.
    pub async fn adopt_earlier(&self) -> Result<(), DirectoryError> {
        for old in self.directory.rows(None).await?.rows {
            if old.placement.is_some() && old.owner.is_some() {
                continue;
            }
            let Ok(record) = decode(&old, &self.directory.node().node) else { continue };
            self.directory.adopt_row(&old, new_row(&record.meta, &record.status)).await?;
            info!(id = %old.id, "took over the row of an earlier version");
        }
        Ok(())
    }

    /// Refuses a request that already exceeds its owner's quotas, before anything is written for it.
    pub async fn refuse_over(
        &self,
        owner: &Owner,
        more: Share,
        quotas: &Quotas,
    ) -> Result<(), Error> {
        if !quotas.count_sandboxes() {
            return Ok(());
        }
        let listed = self.directory.rows(Some(&owner.organization)).await?;
        match quota::standing(quotas, &listed.rows, owner, more, Revision(u64::MAX)) {
            QuotaStanding::Over(refused) => Err(refused),
            QuotaStanding::Within | QuotaStanding::Undecided(_) => Ok(()),
        }
    }

    /// Waits until it is certain that a sandbox with a row `placing`, at this revision, is within its owner's quotas.
    /// The rows ahead of it decide, on whichever node they are.
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
                QuotaStanding::Within => return Ok(()),
                QuotaStanding::Over(refused) => return Err(refused),
                QuotaStanding::Undecided(refused) => {
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

fn new_row<'a>(meta: &'a Meta, status: &Status) -> NewRow<'a> {
    let phase = match status.state() {
        State::Creating => Placing::Placing,
        State::Running | State::Paused | State::Stopped | State::Failed => Placing::Placed,
        State::Destroying => Placing::Destroying,
    };
    NewRow {
        owner: &meta.owner,
        id: &meta.id,
        phase,
        slot: meta.slot.as_ref(),
        names: meta.name.iter().chain(&meta.renaming).cloned().collect(),
        share: Share::of(meta.spec.resources()),
        record: encode(meta, status),
    }
}

/// The sandboxes with a row in the registry at `path`, for a read-only caller; none if there is no registry.
pub fn registered(path: &Path) -> Result<Vec<SandboxId>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &rows_prefix())?;
    Ok(listing.entries.into_iter().filter_map(row_id).collect())
}
