//! Runs the suite on the local directory, and on deliberately broken ones, each of which it must detect.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::{Factory, run};
use crate::records::directory::LocalDirectory;
use sandkeep_store::{Entry, Key, Listing, Prefix, Revision, StateStore, StoreError, Watch};

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Entries of this kind are overwritten, whoever wrote them.
    Overwrites(&'static str),
    /// And removed.
    Removes(&'static str),
    /// A list returns what the previous one should have returned.
    ListsLate,
    /// All nodes have the same name.
    OneName,
}

/// A store that makes its directory break a promise.
struct Broken {
    inner: Arc<dyn StateStore>,
    fault: Fault,
    listed: Mutex<HashMap<Prefix, Listing>>,
}

impl Broken {
    async fn now(&self, key: &Key) -> Result<Option<Revision>, StoreError> {
        Ok(self.inner.get(key).await?.map(|entry| entry.revision))
    }

    fn overwrites(&self, key: &Key) -> bool {
        matches!(self.fault, Fault::Overwrites(kind) if key.segments()[0] == kind)
    }
}

#[async_trait]
impl StateStore for Broken {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.inner.get(key).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        match self.now(key).await? {
            Some(now) if self.overwrites(key) => self.inner.update(key, value, now).await,
            Some(_) | None => self.inner.create(key, value).await,
        }
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        match self.now(key).await? {
            Some(now) if self.overwrites(key) => self.inner.update(key, value, now).await,
            Some(_) | None => self.inner.update(key, value, expected).await,
        }
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        match (self.fault, self.now(key).await?) {
            (Fault::Removes(kind), Some(now)) if key.segments()[0] == kind => {
                self.inner.delete(key, now).await
            }
            (_, _) => self.inner.delete(key, expected).await,
        }
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        let now = self.inner.list(prefix).await?;
        if !matches!(self.fault, Fault::ListsLate) {
            return Ok(now);
        }
        let mut listed = self.listed.lock().expect("nobody panics with it");
        Ok(listed.insert(prefix.clone(), now.clone()).unwrap_or(now))
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.inner.watch(prefix, after).await
    }
}

#[tokio::test]
async fn the_local_directory_keeps_every_promise() {
    let factory: Factory = Arc::new(|store, node| Arc::new(LocalDirectory::new(store, node)));
    run(factory).await.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test]
async fn the_suite_notices_every_broken_directory() {
    let seeded = "nodes_that_stall_and_crash_keep_slots_keys_and_quotas";
    let faults = [
        (Fault::Overwrites("sandboxes"), "a_write_over_another_nodes_is_fenced"),
        (Fault::Removes("sandboxes"), "a_write_over_another_nodes_is_fenced"),
        (Fault::Overwrites("slots"), "of_many_claims_of_a_slot_one_wins"),
        (Fault::Removes("slots"), "a_slot_is_taken_only_from_the_holder_that_was_seen"),
        (Fault::Overwrites("names"), "of_many_claims_of_a_name_one_wins"),
        (Fault::Overwrites("idempotency"), "of_many_requests_under_a_key_one_wins"),
        (Fault::OneName, "sweeps_touch_only_what_is_this_nodes"),
        (Fault::ListsLate, seeded),
    ];
    for (fault, promise) in faults {
        let factory: Factory = Arc::new(move |inner, node| {
            let name = if matches!(fault, Fault::OneName) { "node" } else { node };
            let store = Broken { inner, fault, listed: Mutex::default() };
            Arc::new(LocalDirectory::new(Arc::new(store), name))
        });
        match run(factory).await {
            Ok(()) => panic!("{fault:?} was not noticed"),
            Err(violation) => assert_eq!(violation.promise, promise, "{fault:?}: {violation}"),
        }
    }
}
