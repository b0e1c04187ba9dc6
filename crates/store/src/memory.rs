//! A store without persistence: for tests and for the broker inside `sandkeep run`, whose sandboxes end with the
//! process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::watch;

use super::watch::{Batch, ChangeLog, follow};
use super::{
    Change, Entry, Key, Listing, Prefix, Revision, StateStore, StoreError, Watch, check_value,
};
use sandkeep_core::limits;

pub struct MemoryStore {
    shared: Arc<Mutex<Shared>>,
    latest: watch::Sender<Revision>,
}

struct Shared {
    entries: BTreeMap<Key, (Vec<u8>, Revision)>,
    /// The last changes, oldest first, without gaps: the newest has the store's revision.
    changes: VecDeque<Change>,
    changes_max: usize,
    revision: Revision,
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::remembering(limits::STORE_CHANGES_MAX)
    }

    /// A store that keeps only this many changes for watchers.
    pub(super) fn remembering(changes_max: usize) -> Self {
        let shared = Shared {
            entries: BTreeMap::new(),
            changes: VecDeque::new(),
            changes_max,
            revision: Revision(0),
        };
        let (latest, _) = watch::channel(shared.revision);
        Self { shared: Arc::new(Mutex::new(shared)), latest }
    }

    /// Compares, and writes if `decide` accepts the key's present revision.
    fn write(
        &self,
        key: &Key,
        value: Option<Vec<u8>>,
        decide: impl FnOnce(Option<Revision>) -> Result<(), StoreError>,
    ) -> Result<Revision, StoreError> {
        check_value(value.as_deref())?;
        let mut shared = lock(&self.shared);
        decide(shared.entries.get(key).map(|(_, revision)| *revision))?;
        let revision = shared.apply(key, value);
        // Still under the lock, so that `latest` only grows.
        self.latest.send_replace(revision);
        Ok(revision)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    fn apply(&mut self, key: &Key, value: Option<Vec<u8>>) -> Revision {
        self.revision = Revision(self.revision.0 + 1);
        match &value {
            Some(value) => self.entries.insert(key.clone(), (value.clone(), self.revision)),
            None => self.entries.remove(key),
        };
        if self.changes.len() == self.changes_max {
            self.changes.pop_front();
        }
        self.changes.push_back(Change { key: key.clone(), value, revision: self.revision });
        self.revision
    }
}

/// No code panics in the middle of a change, so a poisoned lock is consistent.
fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl StateStore for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        let shared = lock(&self.shared);
        Ok(shared.entries.get(key).map(|(value, revision)| Entry {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        }))
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.write(key, Some(value), |current| match current {
            None => Ok(()),
            Some(current) => Err(StoreError::Exists { current }),
        })
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.write(key, Some(value), |current| still(current, expected))
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.write(key, None, |current| still(current, expected))
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        let shared = lock(&self.shared);
        let start = Key::from_encoded(prefix.start()).expect("a prefix is encoded like a key");
        let entries = shared
            .entries
            .range(start..)
            .take_while(|(key, _)| prefix.matches(key))
            .map(|(key, (value, revision))| Entry {
                key: key.clone(),
                value: value.clone(),
                revision: *revision,
            })
            .collect();
        Ok(Listing { entries, revision: shared.revision })
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let log = MemoryLog(Arc::clone(&self.shared));
        follow(log, self.latest.subscribe(), prefix.clone(), after).await
    }
}

fn still(current: Option<Revision>, expected: Revision) -> Result<(), StoreError> {
    if current == Some(expected) { Ok(()) } else { Err(StoreError::Conflict { current }) }
}

struct MemoryLog(Arc<Mutex<Shared>>);

#[async_trait]
impl ChangeLog for MemoryLog {
    async fn read(&self, prefix: &Prefix, after: Revision) -> Result<Batch, StoreError> {
        let shared = lock(&self.0);
        let Some(oldest) = shared.changes.front().map(|change| change.revision) else {
            return Ok(Batch { changes: Vec::new(), seen: after });
        };
        let next = after.0.saturating_add(1);
        if next < oldest.0 {
            return Err(StoreError::Compacted { oldest });
        }
        let known = usize::try_from(next - oldest.0).unwrap_or(usize::MAX);
        let changes: Vec<Change> = shared
            .changes
            .iter()
            .skip(known)
            .filter(|change| prefix.matches(&change.key))
            .take(limits::STORE_WATCH_BATCH_MAX)
            .cloned()
            .collect();
        let seen = match changes.last() {
            Some(last) if changes.len() == limits::STORE_WATCH_BATCH_MAX => last.revision,
            Some(_) | None => shared.revision.max(after),
        };
        Ok(Batch { changes, seen })
    }
}
