//! Snapshots: points in time of a sandbox's volume, and turns, which are numbered ones.
//!
//! ```text
//!   row: operation `snapshot` ─▶ sync, freeze ─▶ storage ─▶ thaw ─▶ record ─▶ row: none
//!                                                                      │
//!                                         the oldest turns give way ◀──┘
//! ```
//!
//! A snapshot is there when its record is: what a crash leaves before is removed, and after it nothing is lost.
//! A turn's number is in its record first and then in the sandbox's row, and the next one is above both.

mod record;
mod shelf;
mod sweep;

use super::supervisor::LifecycleVerb;
use super::verbs::{SnapshotWish, What};
use crate::Broker;
use crate::error::Error;
use crate::health;
use crate::shared::Handle;
use sandkeep_core::{Principal, SandboxId, SnapshotId, SnapshotName, limits};

pub use record::recorded as recorded_snapshots;
pub(crate) use record::{Content, Record, Records, copy};
pub use sandkeep_core::api::Snapshot as SnapshotView;
pub(crate) use shelf::SnapshotShelf;
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
    /// Makes a snapshot, under a name if one is given.
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

    /// Seals a turn: the snapshot of the next number.
    pub async fn seal_turn(
        &self,
        who: &Principal,
        id: &SandboxId,
        note: Option<String>,
    ) -> Result<SnapshotView, Error> {
        self.make_snapshot(who, id, What::Turn, note).await
    }

    /// A snapshot after a tool's call. It gives way to later ones as those of turns do.
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
        health::refuse_when_full(&self.shared).await?;
        handle.activity.touch();
        let snapshot = SnapshotId::random();
        let wish = Box::new(SnapshotWish { id: snapshot.clone(), what, note });
        self.ask(&handle, LifecycleVerb::Snapshot(wish)).await?;
        let gone = || not_found(id, &SnapshotName::of_id(&snapshot));
        handle.snapshots.get(&snapshot).map(|record| record.as_ref().into()).ok_or_else(gone)
    }

    /// All snapshots of a sandbox, the oldest first.
    pub fn snapshots(&self, who: &Principal, id: &SandboxId) -> Result<Vec<SnapshotView>, Error> {
        let handle = self.shared.find(who, id)?;
        Ok(handle.snapshots.all().iter().map(|record| record.as_ref().into()).collect())
    }

    /// One of them, by its name or id.
    pub fn snapshot_view(
        &self,
        who: &Principal,
        id: &SandboxId,
        name: &SnapshotName,
    ) -> Result<SnapshotView, Error> {
        let handle = self.shared.find(who, id)?;
        Ok(handle.snapshot_named(name)?.as_ref().into())
    }

    /// Removes one. Nothing that was made from it needs it.
    pub async fn delete_snapshot(
        &self,
        who: &Principal,
        id: &SandboxId,
        name: &SnapshotName,
    ) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        let record = handle.snapshot_named(name)?;
        self.ask(&handle, LifecycleVerb::DeleteSnapshot(Box::new(record.id.clone()))).await
    }
}

impl Handle {
    /// The snapshot of this name or id.
    pub fn snapshot_named(&self, name: &SnapshotName) -> Result<std::sync::Arc<Record>, Error> {
        self.snapshots.find(name).ok_or_else(|| not_found(&self.id, name))
    }
}

pub(crate) fn not_found(id: &SandboxId, name: &SnapshotName) -> Error {
    Error::SnapshotNotFound { id: id.clone(), name: name.clone() }
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
