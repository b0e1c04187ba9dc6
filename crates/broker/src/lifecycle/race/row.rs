//! The row of a race, `races/<first fork>`, and what the next daemon makes of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{info, warn};

use super::{clear, keep};
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_store::{Key, Prefix, StateStore};

/// The first segment of every row's key.
const RACES: &str = "races";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The sandbox that gets the winner's files.
    pub sandbox: SandboxId,
    pub racers: Vec<SandboxId>,
    /// The node that runs it.
    node: Option<String>,
    pub phase: Phase,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    Racing,
    /// The winner's files become the sandbox's.
    Keeping(Keeping),
    /// They are the sandbox's, and their turn is being sealed.
    Sealing(Keeping),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Keeping {
    pub winner: SandboxId,
    /// The winner's snapshot of its files.
    pub snapshot: SnapshotId,
    /// The sandbox's own of the moment before.
    pub before: SnapshotId,
    /// The turn's.
    pub note: String,
}

impl Row {
    pub fn begin(sandbox: &SandboxId, racers: Vec<SandboxId>, node: Option<String>) -> Self {
        Self { sandbox: sandbox.clone(), racers, node, phase: Phase::Racing }
    }

    fn key(&self) -> Key {
        Key::new([RACES, self.racers.first().map_or("", SandboxId::as_str)])
    }

    /// Only the race itself writes it.
    pub async fn write(&self, shared: &Shared) -> Result<(), Error> {
        let value = serde_json::to_vec(self).expect("a row holds only strings");
        rows::replace(&*shared.store, &self.key(), value).await?;
        Ok(())
    }

    pub async fn over(&self, shared: &Shared) -> Result<(), Error> {
        Ok(rows::remove(&*shared.store, &self.key(), None).await?)
    }

    fn handles(&self, shared: &Shared) -> Vec<Arc<Handle>> {
        self.racers.iter().filter_map(|id| shared.supervised(id)).collect()
    }
}

/// Ends the races of an earlier daemon: removes their forks, after the files of a winner that was being kept have
/// become its sandbox's. All sandboxes are supervised by now.
pub(crate) async fn sweep(shared: &Arc<Shared>) -> Result<(), Error> {
    for entry in shared.store.list(&Prefix::new([RACES])).await?.entries {
        let Ok(row) = serde_json::from_slice::<Row>(&entry.value) else {
            warn!(key = ?entry.key, "the record of a race is unreadable; its forks stay");
            rows::remove_as_read(&*shared.store, &entry.key, entry.revision).await?;
            continue;
        };
        if shared.is_elsewhere(row.node.as_deref()) {
            continue;
        }
        match &row.phase {
            Phase::Racing => {
                info!(id = %row.sandbox, "removing the forks of a race that nobody waits for");
                clear(shared, &row, &row.handles(shared)).await;
            }
            Phase::Keeping(_) | Phase::Sealing(_) => {
                let all = Arc::clone(shared);
                shared.tasks.spawn(finish(all, row));
            }
        }
    }
    Ok(())
}

async fn finish(shared: Arc<Shared>, mut row: Row) {
    let mut handles = row.handles(&shared);
    match keep::finish(&shared, &mut row).await {
        keep::KeepOutcome::Turn(_) => {
            info!(id = %row.sandbox, "kept the winner of an earlier race")
        }
        // The next daemon tries again.
        keep::KeepOutcome::Fork(Error::ShuttingDown)
        | keep::KeepOutcome::Unsealed(Error::ShuttingDown) => return,
        keep::KeepOutcome::Unsealed(error) => {
            warn!(id = %row.sandbox, %error, "kept the winner of an earlier race, but not as a turn")
        }
        keep::KeepOutcome::Fork(error) => {
            let (Phase::Keeping(Keeping { winner, .. }) | Phase::Sealing(Keeping { winner, .. })) =
                &row.phase
            else {
                return;
            };
            warn!(id = %row.sandbox, %winner, %error, "the winner of an earlier race stays a fork");
            handles.retain(|handle| handle.id != *winner);
        }
    }
    clear(&shared, &row, &handles).await;
}
