//! Makes the files of a race's winner those of the sandbox, by the machinery of [`super::super::revert`]: only what
//! differs is changed, and processes in the sandbox keep running. Files that identify a machine stay the sandbox's own.

use std::sync::Arc;

use tracing::warn;

use super::row::{Keeping, Phase, Row};
use crate::error::Error;
use crate::health;
use crate::lifecycle::diff::{hidden, own_identity};
use crate::lifecycle::handle::Handle;
use crate::lifecycle::request::Command;
use crate::lifecycle::revert::RevertRequest;
use crate::lifecycle::snapshot::{Record, What};
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId, Verb, failpoint};
use sandkeep_tree::TreePath;

/// How it went.
pub(super) enum KeepOutcome {
    /// The turn that holds the winner's files.
    Turn(Arc<Record>),
    /// The files are the winner's, but no turn could be sealed.
    Unsealed(Error),
    /// The sandbox is as it was, as far as that could be restored; the winner stays.
    Fork(Error),
}

/// Everything that must exist before the first file is changed. Returns the turn that holds what the sandbox was.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    row: &mut Row,
    winner: &Handle,
    note: String,
) -> Result<Arc<Record>, Error> {
    health::refuse_when_full(shared).await?;
    let parent = parent(shared, row)?;
    let before = turn(shared, &parent, format!("before {note}")).await?;
    failpoint!("race.after_before");
    // Recorded, so that it is still there for the next daemon.
    let snapshot = turn(shared, winner, note.clone()).await?.id.clone();
    failpoint!("race.after_winner");
    let keeping = Keeping { winner: winner.id.clone(), snapshot, before: before.id.clone(), note };
    row.phase = Phase::Keeping(keeping);
    row.write(shared).await?;
    failpoint!("race.after_keeping");
    Ok(before)
}

/// The rest, which the next daemon repeats if this one ends.
pub(super) async fn finish(shared: &Shared, row: &mut Row) -> KeepOutcome {
    let parent = match parent(shared, row) {
        Ok(parent) => parent,
        Err(error) => return KeepOutcome::Fork(error),
    };
    if let Phase::Keeping(keeping) = &row.phase {
        let keeping = keeping.clone();
        let of = Some(keeping.winner.clone());
        if let Err(error) = become_like(shared, &parent, of, &keeping.snapshot).await {
            if !matches!(error, Error::ShuttingDown) {
                give_back(shared, &parent, &keeping).await;
            }
            return KeepOutcome::Fork(error);
        }
        failpoint!("race.after_files");
        row.phase = Phase::Sealing(keeping);
        if let Err(error) = row.write(shared).await {
            return KeepOutcome::Unsealed(error);
        }
        failpoint!("race.after_sealing");
    }
    let Phase::Sealing(keeping) = &row.phase else {
        unreachable!("a race that decided keeps or seals")
    };
    if let Some(sealed) = sealed(&parent, keeping) {
        return KeepOutcome::Turn(sealed);
    }
    let sealed = turn(shared, &parent, keeping.note.clone()).await;
    failpoint!("race.after_turn");
    sealed.map_or_else(KeepOutcome::Unsealed, KeepOutcome::Turn)
}

fn parent(shared: &Shared, row: &Row) -> Result<Arc<Handle>, Error> {
    shared.supervised(&row.sandbox).ok_or_else(|| Error::NotFound { id: row.sandbox.clone() })
}

async fn turn(shared: &Shared, handle: &Handle, note: String) -> Result<Arc<Record>, Error> {
    let sealed = handle.snapshot(shared, SnapshotId::random(), What::Turn, Some(note)).await?;
    Ok(sealed.expect("only a transient snapshot has no record"))
}

/// The turn, if an earlier daemon sealed it and did not live to say so.
fn sealed(parent: &Handle, keeping: &Keeping) -> Option<Arc<Record>> {
    let all = parent.snapshots.all();
    let before = all.iter().find(|record| record.id == keeping.before)?.place;
    let is_it = |record: &&Arc<Record>| {
        record.place > before && record.note.as_deref() == Some(&keeping.note)
    };
    all.iter().find(is_it).cloned()
}

/// Makes all files what they are in a snapshot of this sandbox or another.
async fn become_like(
    shared: &Shared,
    handle: &Handle,
    of: Option<SandboxId>,
    snapshot: &SnapshotId,
) -> Result<(), Error> {
    let mut hidden = hidden(shared, handle)?;
    hidden.extend(own_identity());
    let request = RevertRequest {
        snapshot: snapshot.clone(),
        of,
        paths: vec![TreePath::default()],
        hidden,
        woken: false,
        attempts: 0,
        _slot: None,
    };
    let revert = |reply| Command::Revert(Box::new(request), reply);
    handle.ask(shared, Verb::Revert, revert).await.map(drop)
}

/// Half of the winner's files are of no use.
async fn give_back(shared: &Shared, parent: &Handle, keeping: &Keeping) {
    if let Err(error) = become_like(shared, parent, None, &keeping.before).await {
        let (id, before) = (&parent.id, &keeping.before);
        warn!(%id, %before, %error, "cannot restore a sandbox that a winner was not kept in");
    }
}
