//! Writes entries that have a single writer at a time. If the writer finds its own value, that is an earlier write
//! whose answer was lost; any other value belongs to another writer, and is left alone.

use sandkeep_store::{Key, Revision, StateStore, StoreError};

/// Writes an entry, over the known revision or for the first time. `Exists` and `Conflict`: another writer has written
/// it.
pub(crate) async fn put(
    store: &dyn StateStore,
    key: &Key,
    value: Vec<u8>,
    known: Option<Revision>,
) -> Result<Revision, StoreError> {
    let written = match known {
        Some(revision) => store.update(key, value.clone(), revision).await,
        None => store.create(key, value.clone()).await,
    };
    let Err(refused @ (StoreError::Exists { .. } | StoreError::Conflict { .. })) = written else {
        return written;
    };
    match store.get(key).await? {
        Some(entry) if entry.value == value => Ok(entry.revision),
        Some(_) | None => Err(refused),
    }
}

/// Replaces an entry that has no other writer.
pub(crate) async fn replace(
    store: &dyn StateStore,
    key: &Key,
    value: Vec<u8>,
) -> Result<Revision, StoreError> {
    let known = store.get(key).await?.map(|entry| entry.revision);
    put(store, key, value, known).await
}

/// Removes an entry as it was read. One that was written since then stays.
pub(crate) async fn remove_as_read(
    store: &dyn StateStore,
    key: &Key,
    read: Revision,
) -> Result<(), StoreError> {
    match store.delete(key, read).await {
        Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes an entry, whoever wrote it last. `Ok` if there is none.
pub(crate) async fn remove(
    store: &dyn StateStore,
    key: &Key,
    known: Option<Revision>,
) -> Result<(), StoreError> {
    let known = match known {
        Some(revision) => Some(revision),
        None => store.get(key).await?.map(|entry| entry.revision),
    };
    let Some(revision) = known else { return Ok(()) };
    match store.delete(key, revision).await {
        Ok(_) | Err(StoreError::Conflict { current: None }) => Ok(()),
        Err(StoreError::Conflict { current: Some(current) }) => {
            store.delete(key, current).await.map(|_| ())
        }
        Err(error) => Err(error),
    }
}
