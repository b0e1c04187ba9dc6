//! The snapshots of one sandbox, for whoever wants to know of them without asking its supervisor, which is the
//! only one to change them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::record::Record;
use sandkeep_core::{SnapshotId, SnapshotName};

#[derive(Default)]
pub struct SnapshotIndex {
    inner: Mutex<Inner>,
    /// Held by whoever reads a snapshot's files; alone by whoever removes some. A storage that copies would
    /// otherwise take what is left of a snapshot for all of it.
    reading: RwLock<()>,
}

#[derive(Default)]
struct Inner {
    /// The oldest first.
    records: Vec<Arc<Record>>,
    /// Those that the storage may have and nobody's record names, on purpose.
    unrecorded: BTreeSet<SnapshotId>,
}

impl SnapshotIndex {
    /// Held for a look or one change; nothing panics meanwhile.
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

    /// How many there are that never give way.
    pub fn count_asked(&self) -> usize {
        let stays = |record: &&Arc<Record>| record.kind.is_counted() && !record.kind.is_pruned();
        self.inner().records.iter().filter(stays).count()
    }

    /// The place of the next one.
    pub fn next_place(&self) -> u64 {
        self.inner().records.last().map_or(0, |last| last.place.saturating_add(1))
    }

    /// The oldest of those that give way to later ones.
    pub fn oldest_pruned(&self) -> Option<Arc<Record>> {
        self.inner().records.iter().find(|record| record.kind.is_pruned()).cloned()
    }

    /// Whether anybody wants a snapshot that the storage has.
    pub fn knows(&self, id: &SnapshotId) -> bool {
        let inner = self.inner();
        inner.unrecorded.contains(id) || inner.records.iter().any(|record| record.id == *id)
    }

    /// From now on the storage may have it.
    pub fn expect(&self, id: &SnapshotId) {
        self.inner().unrecorded.insert(id.clone());
    }

    /// Nobody wants it any more.
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

    /// Keeps every snapshot's files until it is dropped. Whoever holds it must not wait for the supervisor.
    pub async fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.reading.read().await
    }

    /// Waits for those who read, and keeps others from beginning.
    pub async fn removing(&self) -> RwLockWriteGuard<'_, ()> {
        self.reading.write().await
    }
}
