//! A store that refuses writes on demand, like a full disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;

use sandkeep_store::{
    Entry, Key, Listing, MemoryStore, Prefix, Revision, StateStore, StoreError, Watch,
};

pub(super) struct FlakyStore {
    pub entries: Arc<MemoryStore>,
    /// How many of the next writes fail without effect.
    pub failing_writes: Arc<AtomicUsize>,
}

impl FlakyStore {
    fn may_write(&self) -> Result<(), StoreError> {
        let take = |left: usize| left.checked_sub(1);
        match self.failing_writes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take) {
            Ok(_) => Err(StoreError::Unavailable("the disk is full".into())),
            Err(_) => Ok(()),
        }
    }
}

#[async_trait]
impl StateStore for FlakyStore {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError> {
        self.entries.get(key).await
    }

    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError> {
        self.may_write()?;
        self.entries.create(key, value).await
    }

    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError> {
        self.may_write()?;
        self.entries.update(key, value, expected).await
    }

    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError> {
        self.may_write()?;
        self.entries.delete(key, expected).await
    }

    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError> {
        self.entries.list(prefix).await
    }

    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError> {
        self.entries.watch(prefix, after).await
    }
}
