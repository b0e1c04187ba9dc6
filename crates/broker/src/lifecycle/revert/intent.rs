//! The intent of a revert, written before any file is touched.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::RevertRequest;
use crate::error::Error;
use crate::lifecycle::quiesce;
use crate::lifecycle::request::Command;
use crate::records::rows;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_store::{Key, Prefix, StateStore, StoreError};
use sandkeep_tree::TreePath;

/// The first segment of every intent's key.
const REVERTS: &str = "reverts";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Intent {
    snapshot: SnapshotId,
    #[serde(default)]
    of: Option<SandboxId>,
    /// As bytes, because a path need not be UTF-8.
    paths: Vec<Vec<u8>>,
    hidden: Vec<Vec<u8>>,
    /// The sandbox was stopped before, and is to be stopped again.
    #[serde(default)]
    woken: bool,
    /// How many daemons have started it.
    #[serde(default)]
    attempts: u32,
}

impl Intent {
    pub fn of(request: &RevertRequest, woken: bool) -> Self {
        let bytes = |paths: &[TreePath]| paths.iter().map(|path| path.bytes().to_vec()).collect();
        Self {
            snapshot: request.snapshot.clone(),
            of: request.of.clone(),
            paths: bytes(&request.paths),
            hidden: bytes(&request.hidden),
            woken,
            attempts: request.attempts.saturating_add(1),
        }
    }

    /// A sandbox has at most one: only its supervisor writes it.
    pub async fn write(&self, store: &dyn StateStore, id: &SandboxId) -> Result<(), StoreError> {
        let value = serde_json::to_vec(self).expect("an intent holds only texts and numbers");
        rows::replace(store, &key(id), value).await.map(|_| ())
    }

    pub async fn over(store: &dyn StateStore, id: &SandboxId) -> Result<(), StoreError> {
        rows::remove(store, &key(id), None).await
    }

    fn request(&self) -> RevertRequest {
        // An empty path is the root.
        let paths = |all: &[Vec<u8>]| {
            let read = |bytes: &Vec<u8>| {
                if bytes.is_empty() {
                    Some(TreePath::default())
                } else {
                    TreePath::clean(bytes).ok()
                }
            };
            all.iter().filter_map(read).collect()
        };
        RevertRequest {
            snapshot: self.snapshot.clone(),
            of: self.of.clone(),
            paths: paths(&self.paths),
            hidden: paths(&self.hidden),
            woken: self.woken,
            attempts: self.attempts,
            _slot: None,
        }
    }
}

fn key(id: &SandboxId) -> Key {
    Key::new([REVERTS, id.as_str()])
}

/// Finishes the reverts of an earlier daemon. Their sandboxes are supervised by now.
pub async fn finish_all(shared: &Arc<Shared>) -> Result<(), Error> {
    let rows = shared.registry.rows().await?;
    let elsewhere = |id: &SandboxId| rows.iter().any(|(of, row)| of == id && row.is_elsewhere());
    for entry in shared.store.list(&Prefix::new([REVERTS])).await?.entries {
        let id = entry.key.segments().into_iter().nth(1).and_then(|id| id.parse().ok());
        if id.as_ref().is_some_and(elsewhere) {
            continue;
        }
        let intent = serde_json::from_slice::<Intent>(&entry.value).ok();
        let handle = id.as_ref().and_then(|id| shared.supervised(id));
        let (Some(id), Some(intent), Some(handle)) = (id, intent, handle) else {
            rows::remove_as_read(&*shared.store, &entry.key, entry.revision).await?;
            continue;
        };
        quiesce::thaw(shared, &id).await;
        let revert = |reply| Command::Revert(Box::new(intent.request()), reply);
        let Ok(done) = handle.enqueue(revert) else { continue };
        let shared = Arc::clone(shared);
        let tasks = shared.tasks.clone();
        tasks.spawn(async move {
            match done.await {
                Ok(Ok(_)) => info!(%id, "finished to bring files back"),
                // The daemon shuts down; the next one tries again.
                Ok(Err(Error::ShuttingDown)) | Err(_) => {}
                Ok(Err(error)) => {
                    warn!(%id, %error, "cannot finish to bring files back; ask for it again");
                    // Its sandbox may have begun another one by now.
                    let (store, read) = (&*shared.store, entry.revision);
                    if let Err(error) = rows::remove_as_read(store, &entry.key, read).await {
                        debug!(%id, %error, "the next daemon gives up to bring files back");
                    }
                }
            }
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sandkeep_store::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn what_is_given_up_takes_no_newer_intent_with_it() {
        let store = MemoryStore::new();
        let id = SandboxId::random();
        let intent = |attempts| Intent {
            snapshot: SnapshotId::random(),
            of: None,
            paths: Vec::new(),
            hidden: Vec::new(),
            woken: false,
            attempts,
        };
        intent(1).write(&store, &id).await.expect("written");
        let read = store.get(&key(&id)).await.expect("a store").expect("an intent").revision;
        intent(2).write(&store, &id).await.expect("written");
        rows::remove_as_read(&store, &key(&id), read).await.expect("nothing to do");
        let newer = store.get(&key(&id)).await.expect("a store").expect("it stays");
        rows::remove_as_read(&store, &key(&id), newer.revision).await.expect("removed");
        assert!(store.get(&key(&id)).await.expect("a store").is_none());
        rows::remove_as_read(&store, &key(&id), newer.revision).await.expect("gone already");
    }
}
