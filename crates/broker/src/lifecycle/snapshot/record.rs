//! The record of a snapshot: one row, `snapshots/<sandbox>/<snapshot>`. A snapshot exists when its row does. A copy of
//! all of a sandbox's rows is kept in its home, in case the registry is lost.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::records::rows;
use sandkeep_core::{SandboxId, SnapshotId, SnapshotKind, SnapshotName};
use sandkeep_store::{Key, Prefix, SqliteStore, StateStore, StoreError};

/// The first segment of every row's key.
const SNAPSHOTS: &str = "snapshots";

const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    pub id: SnapshotId,
    pub name: SnapshotName,
    pub kind: SnapshotKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Its position among those of its sandbox. Not a time, because clocks can be changed.
    pub place: u64,
    pub created_at: jiff::Timestamp,
    /// The size that the storage reported when it was taken.
    pub bytes: u64,
}

/// A record without the values that are known only afterwards.
pub struct Content {
    pub id: SnapshotId,
    pub name: SnapshotName,
    pub kind: SnapshotKind,
    pub note: Option<String>,
    pub place: u64,
}

impl Record {
    pub fn new(content: Content, created_at: jiff::Timestamp, bytes: u64) -> Self {
        let Content { id, name, kind, note, place } = content;
        Self { version: VERSION, id, name, kind, note, place, created_at, bytes }
    }

    /// A snapshot of which only the storage knows: what it was for is lost, so nobody prunes it. [`put_in_order`]
    /// gives it its place.
    pub fn found(id: SnapshotId, at: jiff::Timestamp) -> Self {
        let name = SnapshotName::of_id(&id);
        let content = Content { id, name, kind: SnapshotKind::Asked, note: None, place: NO_PLACE };
        Self::new(content, at, 0)
    }
}

/// The place of what has none yet, after all that have one.
const NO_PLACE: u64 = u64::MAX;

/// Sorts records, the oldest first, and gives those without a place theirs: what comes later needs one above. Returns
/// those that have a place now.
pub fn put_in_order(records: &mut [Record]) -> Vec<Record> {
    records.sort_by(|one, other| {
        let order = |record: &Record| (record.place, record.created_at);
        order(one).cmp(&order(other))
    });
    let mut next = 0;
    let mut placed = Vec::new();
    for record in records {
        if record.place == NO_PLACE {
            record.place = next;
            placed.push(record.clone());
        }
        next = record.place.saturating_add(1);
    }
    placed
}

#[derive(Clone)]
pub struct Records {
    store: Arc<dyn StateStore>,
}

impl Records {
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store }
    }

    /// Writes a row. Only the sandbox's supervisor calls this.
    pub async fn put(&self, sandbox: &SandboxId, record: &Record) -> Result<(), StoreError> {
        let value = serde_json::to_vec(record).expect("a record holds only strings and numbers");
        rows::put(&*self.store, &key(sandbox, &record.id), value, None).await.map(|_| ())
    }

    /// Writes a row in place of the one that may be there.
    pub async fn replace(&self, sandbox: &SandboxId, record: &Record) -> Result<(), StoreError> {
        let value = serde_json::to_vec(record).expect("a record holds only strings and numbers");
        rows::replace(&*self.store, &key(sandbox, &record.id), value).await.map(|_| ())
    }

    /// Removes a row. `Ok` if there is none.
    pub async fn remove(&self, sandbox: &SandboxId, id: &SnapshotId) -> Result<(), StoreError> {
        rows::remove(&*self.store, &key(sandbox, id), None).await
    }

    pub async fn remove_all(&self, sandbox: &SandboxId) -> Result<(), StoreError> {
        let listing = self.store.list(&Prefix::new([SNAPSHOTS, sandbox.as_str()])).await?;
        for entry in listing.entries {
            rows::remove(&*self.store, &entry.key, Some(entry.revision)).await?;
        }
        Ok(())
    }

    /// All rows of a sandbox. An unreadable row is ignored.
    pub async fn of(&self, sandbox: &SandboxId) -> Result<Vec<Record>, StoreError> {
        let listing = self.store.list(&Prefix::new([SNAPSHOTS, sandbox.as_str()])).await?;
        let records = listing.entries.iter().filter_map(|entry| read(&entry.value));
        Ok(records.collect())
    }

    /// All sandboxes that have rows.
    pub async fn sandboxes(&self) -> Result<Vec<SandboxId>, StoreError> {
        let listing = self.store.list(&Prefix::new([SNAPSHOTS])).await?;
        let named = listing.entries.iter().filter_map(|entry| ids(&entry.key));
        let mut sandboxes: Vec<SandboxId> = named.map(|(sandbox, _)| sandbox).collect();
        sandboxes.dedup();
        Ok(sandboxes)
    }
}

/// All snapshots recorded in the registry at `path`, for a read-only caller; none if there is no registry.
pub fn recorded(path: &Path) -> Result<Vec<(SandboxId, SnapshotId)>, StoreError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let listing = SqliteStore::read_entries(path, &Prefix::new([SNAPSHOTS]))?;
    Ok(listing.entries.iter().filter_map(|entry| ids(&entry.key)).collect())
}

/// The ids in a row's key.
fn ids(key: &Key) -> Option<(SandboxId, SnapshotId)> {
    let segments = key.segments();
    let [_, sandbox, snapshot] = segments.as_slice() else { return None };
    Some((sandbox.parse().ok()?, snapshot.parse().ok()?))
}

fn key(sandbox: &SandboxId, id: &SnapshotId) -> Key {
    Key::new([SNAPSHOTS, sandbox.as_str(), id.as_str()])
}

fn read(value: &[u8]) -> Option<Record> {
    serde_json::from_slice(value).ok().filter(|record: &Record| record.version == VERSION)
}

/// The copy for the home.
pub fn copy(records: &[Arc<Record>]) -> Vec<u8> {
    let records: Vec<&Record> = records.iter().map(AsRef::as_ref).collect();
    serde_json::to_vec(&records).expect("a record holds only strings and numbers")
}

/// The records in a copy; none if it is unreadable.
pub fn from_copy(content: &[u8]) -> Vec<Record> {
    serde_json::from_slice(content).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> jiff::Timestamp {
        jiff::Timestamp::from_second(second).expect("a time")
    }

    fn asked(place: u64, second: i64) -> Record {
        Record { place, ..Record::found(SnapshotId::random(), at(second)) }
    }

    #[test]
    fn snapshots_that_were_found_get_places_that_others_can_come_after() {
        let found = Record::found(SnapshotId::random(), at(50));
        let too = Record::found(SnapshotId::random(), at(60));
        let mut records = vec![too.clone(), asked(7, 90), found.clone(), asked(3, 10)];
        let placed = put_in_order(&mut records);
        let places: Vec<u64> = records.iter().map(|record| record.place).collect();
        assert_eq!(places, [3, 7, 8, 9]);
        assert_eq!([&records[2].id, &records[3].id], [&found.id, &too.id]);
        assert_eq!(placed, records[2..]);
        assert_eq!(put_in_order(&mut records), [], "once is enough");
    }
}
