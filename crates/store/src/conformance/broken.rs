//! Runs the suite on the in-memory store, and on deliberately broken ones, each of which it must detect.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::{Factory, Violation, run};
use crate::{Entry, Key, Listing, MemoryStore, Prefix, Revision, StateStore, StoreError, Watch};

#[derive(Clone, Copy, Debug)]
enum Fault {
    UpdateIgnoresRevision,
    CreateOverwrites,
    WatchLosesAChange,
    WatchDoublesAChange,
    WatchForgetsSilently,
    KeysAreJoined,
}

/// An in-memory store with one fault.
struct Broken {
    inner: MemoryStore,
    fault: Fault,
}

impl Broken {
    fn key(&self, key: &Key) -> Key {
        match self.fault {
            Fault::KeysAreJoined => Key::new([key.segments().join("/")]),
            Fault::UpdateIgnoresRevision
            | Fault::CreateOverwrites
            | Fault::WatchLosesAChange
            | Fault::WatchDoublesAChange
            | Fault::WatchForgetsSilently => key.clone(),
        }
    }
}

#[async_trait]
impl StateStore for Broken {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.inner.get(&self.key(key)).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        let key = self.key(key);
        match (self.fault, self.inner.get(&key).await?) {
            (Fault::CreateOverwrites, Some(entry)) => {
                self.inner.update(&key, value, entry.revision).await
            }
            (_, _) => self.inner.create(&key, value).await,
        }
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        let key = self.key(key);
        match (self.fault, self.inner.get(&key).await?) {
            (Fault::UpdateIgnoresRevision, Some(entry)) => {
                self.inner.update(&key, value, entry.revision).await
            }
            (_, _) => self.inner.update(&key, value, expected).await,
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.inner.delete(&self.key(key), expected).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        self.inner.list(prefix).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        let watch = self.inner.watch(prefix, after).await;
        match (self.fault, watch) {
            (Fault::WatchForgetsSilently, Err(StoreError::Compacted { oldest })) => {
                self.inner.watch(prefix, Revision(oldest.0 - 1)).await
            }
            (Fault::WatchLosesAChange, watch) => Ok(repeat_fifth(watch?, 0)),
            (Fault::WatchDoublesAChange, watch) => Ok(repeat_fifth(watch?, 2)),
            (_, watch) => watch,
        }
    }
}

/// Forwards a watch, but delivers its fifth change this many times.
fn repeat_fifth(mut watch: Watch, times: usize) -> Watch {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut count = 0;
        while let Some(change) = watch.recv().await {
            count += 1;
            let again = if count == 5 { times } else { 1 };
            let Ok(change) = change else {
                let _ = sender.send(change).await;
                return;
            };
            for _ in 0..again {
                if sender.send(Ok(change.clone())).await.is_err() {
                    return;
                }
            }
        }
    });
    receiver
}

async fn run_broken(fault: Fault) -> Result<(), Violation> {
    let factory: Factory =
        Arc::new(move |max| Arc::new(Broken { inner: MemoryStore::remembering(max), fault }));
    run(factory).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_store_keeps_every_promise() {
    let factory: Factory = Arc::new(|max| Arc::new(MemoryStore::remembering(max)));
    run(factory).await.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_every_broken_store() {
    let faults = [
        (Fault::UpdateIgnoresRevision, "a_conflict_changes_nothing"),
        (Fault::CreateOverwrites, "a_conflict_changes_nothing"),
        (Fault::KeysAreJoined, "a_write_is_read_back_until_it_is_deleted"),
        (Fault::WatchLosesAChange, "a_watch_misses_nothing_and_doubles_nothing"),
        (Fault::WatchDoublesAChange, "a_watch_misses_nothing_and_doubles_nothing"),
        (Fault::WatchForgetsSilently, "a_forgotten_revision_is_compacted"),
    ];
    for (fault, promise) in faults {
        match run_broken(fault).await {
            Ok(()) => panic!("{fault:?} was not noticed"),
            Err(violation) => assert_eq!(violation.promise, promise, "{fault:?}: {violation}"),
        }
    }
}
