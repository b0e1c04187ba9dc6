//! The snapshots of one sandbox, readable without asking its supervisor, which alone changes them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::record::Record;
use sandkeep_core::{SnapshotId, SnapshotName};

#[derive(Default)]
pub struct SnapshotIndex {
    inner: Mutex<Inner>,
    /// Held shared to read a snapshot's files, and exclusively to remove them. Otherwise a storage that copies would
    /// mistake a partially removed snapshot for a complete one.
    reading: RwLock<()>,
}

#[derive(Default)]
struct Inner {
    /// Oldest first.
    records: Vec<Arc<Record>>,
    /// Snapshots that the storage may have without a record, intentionally.
    unrecorded: BTreeSet<SnapshotId>,
}

impl SnapshotIndex {
    /// The lock is held for one read or change; no code panics meanwhile.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn all(&self) -> Vec<Arc<Record>> {
        self.inner().records.clone()
    }

    pub fn count(&self) -> usize {
        self.inner().records.len()
    }

    /// How many count towards the limit.
    pub fn counted(&self) -> usize {
        self.inner().records.iter().filter(|record| record.kind.is_counted()).count()
    }

    /// The snapshot of this name or id.
    pub fn find(&self, name: &SnapshotName) -> Option<Arc<Record>> {
        let means =
            |record: &&Arc<Record>| record.name == *name || record.id.as_str() == name.as_str();
        self.inner().records.iter().find(means).cloned()
    }

    pub fn get(&self, id: &SnapshotId) -> Option<Arc<Record>> {
        self.inner().records.iter().find(|record| record.id == *id).cloned()
    }

    /// The number of snapshots that are never pruned.
    pub fn count_asked(&self) -> usize {
        let stays = |record: &&Arc<Record>| record.kind.is_counted() && !record.kind.is_pruned();
        self.inner().records.iter().filter(stays).count()
    }

    /// The position of the next one.
    pub fn next_place(&self) -> u64 {
        self.inner().records.last().map_or(0, |last| last.place.saturating_add(1))
    }

    /// The oldest of those that may be pruned.
    pub fn oldest_pruned(&self) -> Option<Arc<Record>> {
        self.inner().records.iter().find(|record| record.kind.is_pruned()).cloned()
    }

    /// Whether a snapshot in the storage is still needed.
    pub fn knows(&self, id: &SnapshotId) -> bool {
        let inner = self.inner();
        inner.unrecorded.contains(id) || inner.records.iter().any(|record| record.id == *id)
    }

    /// From now on the storage may have it.
    pub fn expect(&self, id: &SnapshotId) {
        self.inner().unrecorded.insert(id.clone());
    }

    /// It is no longer needed.
    pub fn forget(&self, id: &SnapshotId) {
        let mut inner = self.inner();
        inner.unrecorded.remove(id);
        inner.records.retain(|record| record.id != *id);
    }

    /// It is recorded.
    pub fn keep(&self, record: Arc<Record>) {
        let mut inner = self.inner();
        inner.unrecorded.remove(&record.id);
        inner.records.push(record);
    }

    /// What an earlier daemon left, in order.
    pub fn restore(&self, records: Vec<Record>) {
        self.inner().records = records.into_iter().map(Arc::new).collect();
    }

    /// Keeps every snapshot's files until it is dropped. The holder must not wait for the supervisor.
    pub async fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.reading.read().await
    }

    /// Waits for readers, and keeps new ones from starting.
    pub async fn removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.reading.write().await
    }
}
