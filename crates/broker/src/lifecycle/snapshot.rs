//! Snapshots: points in time of a sandbox's volume, and turns, which are numbered snapshots.
//!
//! ```text
//!   row: operation `snapshot` ─▶ sync, freeze ─▶ storage ─▶ thaw ─▶ record ─▶ row: none
//!                                                                      │
//!                                        the oldest turns are pruned ◀─┘
//! ```
//!
//! The record is the outcome: before it is written no caller was promised a snapshot, and the storage's copy is removed
//! after a crash; afterwards nothing is lost. The number of a turn is therefore taken together with the record, then
//! written to the sandbox's row, and the next number is above both. A failed snapshot leaves no gap.

mod index;
mod record;
mod sweep;

use std::sync::Arc;

use tracing::warn;

use super::handle::Handle;
use super::request::Command;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use crate::health;
use crate::shared::Shared;
use sandkeep_core::event::EventKind;
use sandkeep_core::{
    Operation, Principal, SandboxId, SnapshotId, SnapshotKind, SnapshotName, State, Trigger, Verb,
    failpoint, limits, with_causes,
};
use sandkeep_home::Meta;
use sandkeep_traces::{step, within};

pub(crate) use index::SnapshotIndex;
pub use record::recorded as recorded_snapshots;
use record::{Content, copy};
pub(crate) use record::{Record, Records};
pub use sandkeep_core::api::Snapshot as SnapshotView;
pub(crate) use sweep::{InStorage, sweep, sweep_rows};

impl From<&Record> for SnapshotView {
    fn from(record: &Record) -> Self {
        Self {
            id: record.id.clone(),
            name: record.name.clone(),
            turn: record.kind.turn(),
            note: record.note.clone(),
            created_at: record.created_at,
            bytes: record.bytes,
        }
    }
}

impl Broker {
    /// Takes a snapshot, with a name if one is given.
    pub async fn snapshot(
        &self,
        who: &Principal,
        id: &SandboxId,
        name: Option<SnapshotName>,
        note: Option<String>,
    ) -> Result<SnapshotView, Error> {
        if let Some(name) = &name
            && name.is_taken(&self.shared.policy.turn_prefix)
        {
            let problem =
                format!("{name} is the name of a turn, an id or the present; choose another");
            return Err(Error::InvalidField { field: "name", problem });
        }
        self.make_snapshot(who, id, What::Asked(name), note).await
    }

    /// Seals a turn: the snapshot with the next number.
    pub async fn seal_turn(
        &self,
        who: &Principal,
        id: &SandboxId,
        note: Option<String>,
    ) -> Result<SnapshotView, Error> {
        self.make_snapshot(who, id, What::Turn, note).await
    }

    /// A snapshot after a tool call. It is pruned like those of turns.
    pub async fn snapshot_after_tool(
        &self,
        who: &Principal,
        id: &SandboxId,
        tool: &str,
    ) -> Result<SnapshotView, Error> {
        self.make_snapshot(who, id, What::Tool, Some(format!("after {tool}"))).await
    }

    async fn make_snapshot(
        &self,
        who: &Principal,
        id: &SandboxId,
        what: What,
        note: Option<String>,
    ) -> Result<SnapshotView, Error> {
        check_note(note.as_deref())?;
        let handle = self.shared.find(who, id)?;
        handle.volume.with_snapshots()?;
        health::refuse_when_full(&self.shared).await?;
        handle.activity.touch();
        let snapshot = SnapshotId::random();
        let record = handle.snapshot(&self.shared, snapshot, what, note).await?;
        Ok(record.expect("only a transient snapshot has no record").as_ref().into())
    }

    /// All snapshots of a sandbox, oldest first.
    pub fn snapshots(&self, who: &Principal, id: &SandboxId) -> Result<Vec<SnapshotView>, Error> {
        let handle = self.shared.find(who, id)?;
        Ok(handle.snapshots.all().iter().map(|record| record.as_ref().into()).collect())
    }

    /// One snapshot, by name or id.
    pub fn snapshot_view(
        &self,
        who: &Principal,
        id: &SandboxId,
        name: &SnapshotName,
    ) -> Result<SnapshotView, Error> {
        let handle = self.shared.find(who, id)?;
        Ok(handle.snapshot_named(name)?.as_ref().into())
    }

    /// Removes a snapshot. Nothing created from it depends on it.
    pub async fn delete_snapshot(
        &self,
        who: &Principal,
        id: &SandboxId,
        name: &SnapshotName,
    ) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        let record = handle.snapshot_named(name)?;
        handle.delete_snapshot(&self.shared, record.id.clone()).await
    }
}

impl Handle {
    /// The snapshot with this name or id.
    pub fn snapshot_named(&self, name: &SnapshotName) -> Result<Arc<Record>, Error> {
        self.snapshots.find(name).ok_or_else(|| not_found(&self.id, name))
    }

    pub(super) async fn snapshot(
        &self,
        shared: &Shared,
        id: SnapshotId,
        what: What,
        note: Option<String>,
    ) -> Result<Option<Arc<Record>>, Error> {
        let request = Box::new(SnapshotRequest { id, what, note });
        self.ask(shared, Verb::Snapshot, |reply| Command::Snapshot(request, reply)).await
    }

    /// A snapshot that its creator removes after use. It is not recorded; reconcile removes it after a crash.
    pub async fn transient_snapshot(&self, shared: &Shared) -> Result<SnapshotId, Error> {
        let id = SnapshotId::random();
        self.snapshot(shared, id.clone(), What::Transient, None).await?;
        Ok(id)
    }

    pub async fn delete_snapshot(&self, shared: &Shared, id: SnapshotId) -> Result<(), Error> {
        self.hand_over(shared, |reply| Command::DeleteSnapshot(id, reply)).await
    }
}

pub(crate) fn not_found(id: &SandboxId, name: &SnapshotName) -> Error {
    Error::SnapshotNotFound { id: id.clone(), name: name.clone() }
}

fn max_snapshots(shared: &Shared, meta: &Meta) -> usize {
    meta.terms.max_snapshots.unwrap_or(usize::MAX).min(shared.policy.max_snapshots)
}

/// Refuses a sandbox that could not seal a turn now.
pub(super) fn refuse_if_full(shared: &Shared, handle: &Handle) -> Result<(), Error> {
    let limit = max_snapshots(shared, &handle.meta());
    if handle.snapshots.count_asked() >= limit {
        Err(Error::SnapshotsFull { id: handle.id.clone(), limit })
    } else {
        Ok(())
    }
}

fn check_note(note: Option<&str>) -> Result<(), Error> {
    let max = limits::SNAPSHOT_NOTE_MAX_BYTES;
    match note {
        Some(note) if note.len() > max => {
            let problem = format!("{} bytes are more than {max}", note.len());
            Err(Error::InvalidField { field: "note", problem })
        }
        Some(_) | None => Ok(()),
    }
}

/// A snapshot request.
pub(crate) struct SnapshotRequest {
    pub id: SnapshotId,
    pub what: What,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Asked(Option<SnapshotName>),
    Turn,
    Tool,
    /// For a fork, which removes it when it is done. It is not recorded.
    Transient,
}

impl Supervisor {
    pub(crate) async fn snapshot(
        &mut self,
        request: SnapshotRequest,
    ) -> Result<Option<Arc<Record>>, Error> {
        let (status, _) = self.next(Trigger::Begin(Verb::Snapshot))?;
        self.volume.with_snapshots()?;
        self.can_quiesce()?;
        self.check_request(&request)?;
        self.write_back().await;
        self.record(status).await?;
        failpoint!("snapshot.after_intent");
        self.snapshots.expect(&request.id);
        let made = match self.copy_volume(&request.id).await {
            Ok(()) => self.write_down(&request).await,
            Err(error) => Err(error),
        };
        if let Err(cause) = &made {
            self.discard(&request.id).await;
            let status = self.after(Trigger::Failed(Operation::Snapshot, with_causes(cause)));
            self.settle(status).await;
        }
        let record = made?;
        // Published while the row still says that a snapshot is in progress: a daemon that finds it so publishes what
        // is missing.
        if let Some(record) = &record {
            self.tell_snapshot(record);
            failpoint!("snapshot.after_event");
        }
        let status = self.after(Trigger::Done(Operation::Snapshot));
        self.settle(status).await;
        failpoint!("snapshot.after_outcome");
        if record.is_some() {
            self.copy_records().await;
            self.prune().await;
        }
        Ok(record)
    }

    /// Records the files that a sandbox starts with as the snapshot `base`, where they are not those of its template
    /// alone. Nothing inside writes yet. A storage without snapshots has none.
    pub(crate) async fn seal_base(&self) -> Result<(), Error> {
        let Ok(volume) = self.volume.with_snapshots() else { return Ok(()) };
        let id = SnapshotId::random();
        self.snapshots.expect(&id);
        self.unless_destroyed(volume.snapshot(&id)).await?;
        failpoint!("fork.after_base_snapshot");
        let record = self.put_record(id, SnapshotName::base(), SnapshotKind::Base, None).await?;
        failpoint!("fork.after_base_record");
        self.snapshots.keep(record);
        self.copy_snapshot_records().await;
        Ok(())
    }

    /// What can be refused before anything is done.
    fn check_request(&self, request: &SnapshotRequest) -> Result<(), Error> {
        if let What::Asked(Some(name)) = &request.what
            && self.snapshots.find(name).is_some()
        {
            return Err(Error::SnapshotExists { id: self.id().clone(), name: name.clone() });
        }
        let limit = self.max_snapshots();
        let full = self.snapshots.count_asked() >= limit;
        if full && request.what != What::Transient {
            Err(Error::SnapshotsFull { id: self.id().clone(), limit })
        } else {
            Ok(())
        }
    }

    /// The maximum number of its snapshots.
    fn max_snapshots(&self) -> usize {
        max_snapshots(&self.shared, &self.meta)
    }

    async fn copy_volume(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        let volume = self.volume.with_snapshots()?;
        let quiesced = self.quiesce().await?;
        failpoint!("snapshot.after_freeze");
        let made = self.unless_destroyed(volume.snapshot(snapshot)).await;
        failpoint!("snapshot.after_snapshot");
        self.unquiesce(quiesced).await?;
        failpoint!("snapshot.after_thaw");
        made?;
        // Not while it is frozen: this may scan the whole tree.
        self.volume.tend().await;
        Ok(())
    }

    /// From here on it exists. `None` for a transient snapshot.
    async fn write_down(
        &mut self,
        request: &SnapshotRequest,
    ) -> Result<Option<Arc<Record>>, Error> {
        let id = request.id.clone();
        let (name, kind) = match &request.what {
            What::Transient => return Ok(None),
            What::Asked(name) => {
                let name = name.clone().unwrap_or_else(|| SnapshotName::of_id(&id));
                (name, SnapshotKind::Asked)
            }
            What::Tool => (SnapshotName::of_id(&id), SnapshotKind::Tool),
            What::Turn => {
                let (name, number) = self.next_turn();
                (name, SnapshotKind::Turn(number))
            }
        };
        let record = self.put_record(id, name, kind, request.note.clone()).await?;
        failpoint!("snapshot.after_record");
        if let Some(turn) = kind.turn() {
            self.meta_mut().turn = turn;
        }
        self.snapshots.keep(Arc::clone(&record));
        Ok(Some(record))
    }

    /// Writes the record of a snapshot that the storage has.
    async fn put_record(
        &self,
        id: SnapshotId,
        name: SnapshotName,
        kind: SnapshotKind,
        note: Option<String>,
    ) -> Result<Arc<Record>, Error> {
        let bytes = self.volume.with_snapshots()?.snapshot_bytes(&id).await?;
        let content = Content { id, name, kind, note, place: self.snapshots.next_place() };
        let record = Arc::new(Record::new(content, self.shared.clock.wall(), bytes));
        self.shared.snapshots.put(self.id(), &record).await?;
        Ok(record)
    }

    /// A number that was never used, and a name that is free: with an earlier prefix a user may have chosen a name that
    /// is a turn's name now.
    fn next_turn(&self) -> (SnapshotName, u64) {
        let prefix = &self.shared.policy.turn_prefix;
        let named = |number| (SnapshotName::of_turn(prefix, number), number);
        let mut turns = (self.meta.turn + 1..).map(named);
        turns
            .find(|(name, _)| self.snapshots.find(name).is_none())
            .expect("there are fewer snapshots than numbers")
    }

    /// Removes the storage's copy of a snapshot that failed. If that fails now, reconcile removes it.
    async fn discard(&self, snapshot: &SnapshotId) {
        if let Err(error) = self.delete_from_volume(snapshot).await {
            warn!(id = %self.id(), %error, "cannot remove what a failed snapshot left");
        }
        self.snapshots.forget(snapshot);
    }

    async fn delete_from_volume(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        self.volume.with_snapshots()?.delete_snapshot(snapshot).await
    }

    /// A new daemon finds that a snapshot was in progress: the sandbox may be frozen.
    pub(crate) async fn undo_snapshot(&mut self) -> Result<(), Error> {
        if self.status().state() == State::Running {
            within(step!("runtime.thaw"), self.runtime.thaw(self.id())).await?;
        }
        let status = self.after(Trigger::CalledOff(Operation::Snapshot));
        self.settle(status).await;
        Ok(())
    }

    /// Removes the oldest turns until the maximum is kept.
    async fn prune(&self) {
        while self.snapshots.counted() > self.max_snapshots() {
            let Some(oldest) = self.snapshots.oldest_pruned() else { return };
            if let Err(error) = self.remove_snapshot(&oldest).await {
                // It no longer counts; reconcile removes the rest of it.
                warn!(id = %self.id(), snapshot = %oldest.name, %error, "cannot prune a snapshot");
                return;
            }
            let name = oldest.name.clone();
            self.emit(&EventKind::SnapshotPruned { name });
        }
    }

    pub(crate) async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), Error> {
        self.next(Trigger::Begin(Verb::Snapshot))?;
        let Some(record) = self.snapshots.get(id) else {
            return self.remove_unrecorded(id).await;
        };
        self.remove_snapshot(&record).await?;
        self.emit(&EventKind::SnapshotDeleted { name: record.name.clone() });
        Ok(())
    }

    /// Removes a snapshot that a fork has finished with, that a crash left, or that is gone already.
    async fn remove_unrecorded(&self, id: &SnapshotId) -> Result<(), Error> {
        self.snapshots.forget(id);
        let _nobody_reads = self.snapshots.removing().await;
        self.delete_from_volume(id).await
    }

    /// The record first: a snapshot without a record is removed eventually, but a record without its snapshot would
    /// promise something that does not exist.
    async fn remove_snapshot(&self, record: &Record) -> Result<(), Error> {
        self.shared.snapshots.remove(self.id(), &record.id).await?;
        failpoint!("prune.after_record");
        self.snapshots.forget(&record.id);
        self.copy_records().await;
        failpoint!("prune.after_copy");
        let _nobody_reads = self.snapshots.removing().await;
        self.delete_from_volume(&record.id).await?;
        failpoint!("prune.after_removed");
        Ok(())
    }

    /// Updates the copies in the home from the rows.
    pub(crate) async fn copy_records(&self) {
        self.rewrite_meta().await;
        self.copy_snapshot_records().await;
    }

    async fn copy_snapshot_records(&self) {
        let (home, copy) = (self.home.clone(), copy(&self.snapshots.all()));
        if let Err(error) = self.shared.blocking(move |_| home.keep_snapshots_copy(&copy)).await {
            warn!(id = %self.id(), %error, "cannot copy the records of snapshots");
        }
    }
}
