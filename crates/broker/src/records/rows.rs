//! Writing rows of which there is one writer at a time. A conflict then means that an earlier write of the
//! writer's own, whose answer was lost, did happen: it is simply written again on top.

use sandkeep_store::{Key, Revision, StateStore, StoreError};

/// Writes a row, over the revision that is known or for the first time.
pub(crate) async fn put(
    store: &dyn StateStore,
    key: &Key,
    value: Vec<u8>,
    known: Option<Revision>,
) -> Result<Revision, StoreError> {
    let first = match known {
        Some(revision) => store.update(key, value.clone(), revision).await,
        None => store.create(key, value.clone()).await,
    };
    match first {
        Err(StoreError::Exists { current } | StoreError::Conflict { current: Some(current) }) => {
            store.update(key, value, current).await
        }
        Err(StoreError::Conflict { current: None }) => store.create(key, value).await,
        other => other,
    }
}

/// Removes a row. `Ok` if there is none.
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
