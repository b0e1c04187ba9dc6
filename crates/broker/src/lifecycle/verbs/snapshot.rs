//! snapshot: the volume as it is now, whole, under a name or a turn's number; and the removal of one.
//!
//! The record is the outcome: until it is written nobody was promised a snapshot, and what the storage has of
//! it goes. So the number of a turn is taken with the record, and one that failed leaves no gap.

use tracing::warn;

use crate::error::Error;
use crate::lifecycle::snapshots::{self, Content, Record};
use crate::lifecycle::supervisor::Supervisor;
use crate::records::timeline::{Happening, of_snapshot};
use sandkeep_core::{
    Begun, Event, Operation, SnapshotId, SnapshotKind, SnapshotName, State, Verb, failpoint,
    with_causes,
};

/// A snapshot that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotWish {
    pub id: SnapshotId,
    pub what: What,
    pub note: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Asked(Option<SnapshotName>),
    Turn,
    Tool,
    /// For a fork, which removes it when it is done. It is recorded nowhere.
    Transient,
}

impl Supervisor {
    pub(crate) async fn snapshot(&mut self, wish: SnapshotWish) -> Result<(), Error> {
        let (status, _) = self.next(Event::Begin(Verb::Snapshot))?;
        self.shared.require_snapshots()?;
        self.can_stand_still()?;
        self.check_wish(&wish)?;
        self.write_back().await;
        self.record(status).await?;
        failpoint!("snapshot.after_intent");
        self.snapshots.expect(&wish.id);
        let made = match self.copy_volume(&wish.id).await {
            Ok(()) => self.write_down(&wish).await,
            Err(error) => Err(error),
        };
        if let Err(cause) = &made {
            self.discard(&wish.id).await;
            let status = self.after(Event::Failed(Operation::Snapshot, with_causes(cause)));
            self.settle(status).await;
        }
        let record = made?;
        let status = self.after(Event::Done(Operation::Snapshot));
        self.settle(status).await;
        failpoint!("snapshot.after_outcome");
        if let Some(record) = record {
            self.copy_records().await;
            self.note(of_snapshot(&record)).await;
            self.prune().await;
        }
        Ok(())
    }

    /// What can be refused before anything is done.
    fn check_wish(&self, wish: &SnapshotWish) -> Result<(), Error> {
        if let What::Asked(Some(name)) = &wish.what
            && self.snapshots.find(name).is_some()
        {
            return Err(Error::SnapshotExists { id: self.id().clone(), name: name.clone() });
        }
        let limit = self.max_snapshots();
        let full = self.snapshots.count_asked() >= limit;
        match full && wish.what != What::Transient {
            true => Err(Error::SnapshotsFull { id: self.id().clone(), limit }),
            false => Ok(()),
        }
    }

    /// How many snapshots it may have at once.
    fn max_snapshots(&self) -> usize {
        let own = self.meta.terms.max_snapshots.unwrap_or(usize::MAX);
        own.min(self.shared.policy.max_snapshots)
    }

    async fn copy_volume(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        let still = self.stand_still().await?;
        failpoint!("snapshot.after_freeze");
        let made = self.shared.storage.snapshot(self.id(), snapshot).await;
        failpoint!("snapshot.after_snapshot");
        self.go_on(still).await?;
        failpoint!("snapshot.after_thaw");
        made?;
        // Not while it stands still: this may look at all of the tree.
        self.tend_limit().await;
        Ok(())
    }

    /// Has the storage look after the limit of the tree, which it does before long in any case.
    pub(super) async fn tend_limit(&self) {
        if let Err(error) = self.shared.storage.tend(Some(self.id())).await {
            warn!(id = %self.id(), %error, "cannot look after the limit of a volume");
        }
    }

    /// From here on it is there. `None` for one that nobody will look for.
    async fn write_down(&mut self, wish: &SnapshotWish) -> Result<Option<Record>, Error> {
        let id = wish.id.clone();
        let (name, kind) = match &wish.what {
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
        let bytes = self.shared.storage.snapshot_bytes(self.id(), &id).await?;
        let (note, place) = (wish.note.clone(), self.snapshots.next_place());
        let content = Content { id, name, kind, note, place };
        let record = Record::new(content, self.shared.clock.wall(), bytes);
        self.shared.snapshots.put(self.id(), &record).await?;
        failpoint!("snapshot.after_record");
        self.meta.turn = kind.turn().unwrap_or(self.meta.turn);
        self.snapshots.keep(record.clone());
        Ok(Some(record))
    }

    /// A number that was never used, and a name that is free: under an earlier prefix somebody may have chosen
    /// what is a turn's name now.
    fn next_turn(&self) -> (SnapshotName, u64) {
        let prefix = &self.shared.policy.turn_prefix;
        let named = |number| (SnapshotName::of_turn(prefix, number), number);
        let mut turns = (self.meta.turn + 1..).map(named);
        turns
            .find(|(name, _)| self.snapshots.find(name).is_none())
            .expect("there are fewer snapshots than numbers")
    }

    /// What was made of a snapshot that is not to be. If it cannot be removed now, reconcile does.
    async fn discard(&self, snapshot: &SnapshotId) {
        if let Err(error) = self.shared.storage.delete_snapshot(self.id(), snapshot).await {
            warn!(id = %self.id(), %error, "cannot remove what a failed snapshot left");
        }
        self.snapshots.forget(snapshot);
    }

    /// A new daemon finds that a snapshot was under way: what runs may stand still.
    pub(crate) async fn undo_snapshot(&mut self) -> Result<(), Error> {
        if self.status().state() == State::Running {
            self.runtime.thaw(self.id()).await?;
        }
        let status = self.after(Event::CalledOff(Begun::Snapshot));
        self.settle(status).await;
        Ok(())
    }

    /// The oldest turns give way until there are no more than there may be.
    async fn prune(&self) {
        while self.snapshots.count() > self.max_snapshots() {
            let Some(oldest) = self.snapshots.oldest_pruned() else { return };
            if let Err(error) = self.remove_snapshot(&oldest).await {
                // It counts no more; reconcile removes what is left of it.
                warn!(id = %self.id(), snapshot = %oldest.name, %error, "cannot prune a snapshot");
                return;
            }
            let name = oldest.name.clone();
            self.note(Happening::SnapshotPruned { name }).await;
        }
    }

    pub(crate) async fn delete_snapshot(&self, id: &SnapshotId) -> Result<(), Error> {
        self.next(Event::Begin(Verb::Snapshot))?;
        let Some(record) = self.snapshots.get(id) else {
            return self.remove_unrecorded(id).await;
        };
        self.remove_snapshot(&record).await?;
        self.note(Happening::SnapshotDeleted { name: record.name.clone() }).await;
        Ok(())
    }

    /// One that a fork has done with, that a crash left, or that is gone already.
    async fn remove_unrecorded(&self, id: &SnapshotId) -> Result<(), Error> {
        self.snapshots.forget(id);
        let _nobody_reads = self.snapshots.removing().await;
        Ok(self.shared.storage.delete_snapshot(self.id(), id).await?)
    }

    /// The record first: a snapshot without one is removed sooner or later, a record without its snapshot would
    /// promise what is not there.
    async fn remove_snapshot(&self, record: &Record) -> Result<(), Error> {
        self.shared.snapshots.remove(self.id(), &record.id).await?;
        failpoint!("prune.after_record");
        self.snapshots.forget(&record.id);
        self.copy_records().await;
        failpoint!("prune.after_copy");
        let _nobody_reads = self.snapshots.removing().await;
        self.shared.storage.delete_snapshot(self.id(), &record.id).await?;
        failpoint!("prune.after_removed");
        Ok(())
    }

    /// Brings the copies in the home in line with the rows.
    pub(crate) async fn copy_records(&self) {
        self.rewrite_meta().await;
        let (home, copy) = (self.home.clone(), snapshots::copy(&self.snapshots.all()));
        if let Err(error) = self.shared.blocking(move |_| home.keep_snapshots_copy(&copy)).await {
            warn!(id = %self.id(), %error, "cannot copy the records of snapshots");
        }
    }
}
