//! Matches the records and the storage's snapshots that an earlier daemon left.
//!
//! | record | storage | |
//! |---|---|---|
//! | yes | yes | kept |
//! | yes | no | the record is removed, with a warning |
//! | no | yes | the snapshot is removed: its caller never got an answer |
//!
//! If a sandbox is adopted without its row, the rows of its snapshots are lost as well. Then the copy in its home
//! applies, and snapshots that only the storage has are kept under their ids.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{info, warn};

use super::record::{self, Record};
use crate::error::Error;
use crate::lifecycle::request::Command;
use crate::lifecycle::supervisor::Supervisor;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId};

/// The storage's snapshots, as far as it can list them.
pub struct InStorage(Option<BTreeSet<(SandboxId, SnapshotId)>>);

impl InStorage {
    pub async fn look(shared: &Shared) -> Self {
        if !shared.storage.capabilities().snapshots {
            return Self(None);
        }
        match shared.storage.snapshots().await {
            Ok(all) => Self(Some(all.into_iter().collect())),
            Err(error) => {
                warn!(%error, "cannot list snapshots; all that are recorded are kept");
                Self(None)
            }
        }
    }

    fn of(&self, sandbox: &SandboxId) -> Option<BTreeSet<SnapshotId>> {
        let all = self.0.as_ref()?.iter();
        Some(all.filter(|(of, _)| of == sandbox).map(|(_, id)| id.clone()).collect())
    }
}

impl Supervisor {
    /// Restores the snapshots of a sandbox that an earlier daemon left.
    pub(crate) async fn restore_snapshots(&mut self, found: &InStorage) -> Result<(), Error> {
        let id = self.id().clone();
        let mut records = self.shared.snapshots.of(&id).await?;
        let adopted = self.revision.is_none();
        let found = found.of(&id);
        if adopted {
            self.add_what_is_not_recorded(&mut records, found.as_ref()).await?;
        }
        if let Some(found) = &found {
            for gone in records.extract_if(.., |record| !found.contains(&record.id)) {
                warn!(%id, snapshot = %gone.name, "a snapshot is gone; so is its record now");
                self.shared.snapshots.remove(&id, &gone.id).await?;
            }
        }
        let last_turn = records.iter().filter_map(|record| record.kind.turn()).max();
        let turn = self.meta.turn.max(last_turn.unwrap_or(0));
        self.meta_mut().turn = turn;
        let placed = record::put_in_order(&mut records);
        for record in if adopted { &records } else { &placed } {
            self.shared.snapshots.replace(&id, record).await?;
        }
        self.snapshots.restore(records);
        self.publish(self.status());
        Ok(())
    }

    async fn add_what_is_not_recorded(
        &self,
        records: &mut Vec<Record>,
        found: Option<&BTreeSet<SnapshotId>>,
    ) -> Result<(), Error> {
        let home = self.home.clone();
        let copy = self.shared.blocking(move |_| Ok(home.snapshots_copy())).await?;
        let copied = copy.map(|copy| record::from_copy(&copy)).unwrap_or_default();
        let at = self.shared.clock.wall();
        let only_found = found.into_iter().flatten().map(|id| Record::found(id.clone(), at));
        for record in copied.into_iter().chain(only_found) {
            if !records.iter().any(|known| known.id == record.id) {
                records.push(record);
            }
        }
        Ok(())
    }
}

/// Removes snapshots without a record, of supervised sandboxes only: for others it is not known what they have.
pub async fn sweep(shared: &Arc<Shared>) -> Result<(), Error> {
    if !shared.storage.capabilities().snapshots {
        return Ok(());
    }
    for (sandbox, id) in shared.storage.snapshots().await? {
        let Some(handle) = shared.supervised(&sandbox) else { continue };
        if handle.snapshots.knows(&id) {
            continue;
        }
        info!(id = %sandbox, snapshot = %id, "removing a snapshot that nobody has recorded");
        // If the queue is full, this is retried later; a sandbox that is removed takes its snapshots with it.
        if let Ok(deleted) = handle.enqueue(|reply| Command::DeleteSnapshot(id, reply))
            && let Ok(Err(error)) = deleted.await
        {
            warn!(id = %sandbox, %error, "cannot remove a snapshot that nobody has recorded");
        }
    }
    Ok(())
}

/// Removes the rows of sandboxes that are gone. Runs before any new sandbox can be created.
pub async fn sweep_rows(shared: &Arc<Shared>) -> Result<(), Error> {
    let recorded = shared.snapshots.sandboxes().await?;
    // Listed last, so that it includes all their sandboxes: a row exists before any snapshot does.
    let rows = shared.registry.ids().await?;
    for sandbox in recorded {
        if !shared.knows(&sandbox) && !rows.contains(&sandbox) {
            shared.snapshots.remove_all(&sandbox).await?;
            info!(id = %sandbox, "removed the records of snapshots whose sandbox is gone");
        }
    }
    Ok(())
}
