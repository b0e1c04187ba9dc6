//! The state store: a small key-value store with revisions. The registry is written once on top
//! of it, so that one machine (SQLite) and, later, a fleet behave the same.
//!
//! There are deliberately no transactions over several keys: a caller that needs two writes orders them so that
//! reconcile detects and finishes them after a crash in between.
//!
//! ```
//! use sandkeep_store::{Key, MemoryStore, StateStore, StoreError};
//!
//! async fn count(store: &dyn StateStore) -> Result<(), StoreError> {
//!     let key = Key::new(["visits", "today"]);
//!     let first = store.create(&key, b"1".to_vec()).await?;
//!     // Refused after a concurrent write.
//!     store.update(&key, b"2".to_vec(), first).await.map(drop)
//! }
//! # let _ = count(&MemoryStore::new());
//! ```

mod key;
mod memory;
mod sqlite;
mod watch;

#[cfg(test)]
mod conformance;

use async_trait::async_trait;
use tokio::sync::mpsc;

use sandkeep_core::limits;

pub use key::{Key, Prefix};
pub use memory::MemoryStore;
pub use sqlite::{SqliteError, SqliteStore};

/// Counts the writes of a store: every successful write gets the next revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

/// A value and the revision that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: Key,
    pub value: Vec<u8>,
    pub revision: Revision,
}

/// One write, as a watcher sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// `None`: the key was deleted.
    pub value: Option<Vec<u8>>,
    pub revision: Revision,
}

/// All entries under a prefix, and the revision at which they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    pub entries: Vec<Entry>,
    pub revision: Revision,
}

/// Changes in the order of their revisions. It ends with the store, or with `Err(StoreError::Compacted)` if this
/// watcher fell too far behind.
pub type Watch = mpsc::Receiver<Result<Change, StoreError>>;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// `create`: the key exists.
    #[error("the key exists already, written at revision {}", current.0)]
    Exists { current: Revision },
    /// `update` and `delete`: the key was written, or deleted, since `expected`.
    #[error("the key was changed by somebody else")]
    Conflict { current: Option<Revision> },
    /// `watch`: changes since that revision are no longer available; list, then watch from there.
    #[error("changes before revision {} are forgotten", oldest.0)]
    Compacted { oldest: Revision },
    #[error("a value of {size} bytes is over the limit of {max}")]
    TooLarge { size: usize, max: usize },
    /// The store is shut down or its disk fails.
    #[error("the state store failed")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// # Behavior
/// - A write that returned `Ok` is durable (survives `kill -9` and, for `sqlite`, power loss).
/// - A write that returned `Exists` or `Conflict` changed nothing.
/// - Of several concurrent `create`s or `update`s with one expected revision exactly one wins.
/// - After dropping a write's future, the write may or may not have happened.
#[async_trait]
pub trait StateStore: Send + Sync {
    async fn get(&self, key: &Key) -> Result<Option<Entry>, StoreError>;

    /// Writes a key that must not exist.
    async fn create(&self, key: &Key, value: Vec<u8>) -> Result<Revision, StoreError>;

    /// Replaces the value if the key still has the revision `expected`.
    async fn update(
        &self,
        key: &Key,
        value: Vec<u8>,
        expected: Revision,
    ) -> Result<Revision, StoreError>;

    /// Removes the key if it still has the revision `expected`.
    async fn delete(&self, key: &Key, expected: Revision) -> Result<Revision, StoreError>;

    /// All keys under the prefix, in key order, at one instant.
    async fn list(&self, prefix: &Prefix) -> Result<Listing, StoreError>;

    /// Every change under the prefix after `after`, in order, without gaps and duplicates: so `list`, then
    /// `watch(listing.revision)` sees everything.
    async fn watch(&self, prefix: &Prefix, after: Revision) -> Result<Watch, StoreError>;
}

/// Refuses a value that is too large, before any effect.
fn check_value(value: Option<&[u8]>) -> Result<(), StoreError> {
    let (size, max) = (value.map_or(0, <[u8]>::len), limits::STORE_VALUE_MAX_BYTES);
    if size <= max { Ok(()) } else { Err(StoreError::TooLarge { size, max }) }
}
