//! The suite on storages that are broken on purpose: it must notice each.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Subject, Violation, run};
use crate::sandbox::SandboxId;
use crate::storage::{
    Base, LayerDraft, LayerId, LayerKey, LocalStorage, PoolHealth, Root, Storage,
    StorageCapabilities, StorageError, Usage,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    CreateTakesWhatIsThere,
    DestroyDoesNothing,
    DestroyFailsTwice,
    QuotaIsNotKept,
    UsageIsNothing,
    ListForgets,
}

/// Plain directories with one fault.
struct Broken {
    inner: LocalStorage,
    fault: Fault,
}

#[async_trait]
impl Storage for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn capabilities(&self) -> StorageCapabilities {
        let disk_quota = self.fault == Fault::QuotaIsNotKept;
        StorageCapabilities { disk_quota, ..self.inner.capabilities() }
    }

    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota_bytes: Option<u64>,
    ) -> Result<Root, StorageError> {
        let quota_bytes = quota_bytes.filter(|_| self.fault != Fault::QuotaIsNotKept);
        match self.inner.create(id, base, quota_bytes).await {
            Err(StorageError::Exists { .. }) if self.fault == Fault::CreateTakesWhatIsThere => {
                self.inner.root(id).await
            }
            answer => answer,
        }
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        self.inner.root(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        match self.fault {
            Fault::DestroyDoesNothing => return Ok(()),
            Fault::DestroyFailsTwice => {
                self.inner.root(id).await?;
            }
            Fault::CreateTakesWhatIsThere
            | Fault::QuotaIsNotKept
            | Fault::UsageIsNothing
            | Fault::ListForgets => {}
        }
        self.inner.destroy(id).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        let usage = self.inner.usage(id).await?;
        match self.fault {
            Fault::UsageIsNothing => Ok(Usage { used_bytes: 0, ..usage }),
            Fault::QuotaIsNotKept => Ok(Usage { limit_bytes: None, ..usage }),
            Fault::CreateTakesWhatIsThere
            | Fault::DestroyDoesNothing
            | Fault::DestroyFailsTwice
            | Fault::ListForgets => Ok(usage),
        }
    }

    async fn snapshot(&self, id: &SandboxId, name: &str) -> Result<(), StorageError> {
        self.inner.snapshot(id, name).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let mut list = self.inner.list().await?;
        if self.fault == Fault::ListForgets {
            list.pop();
        }
        Ok(list)
    }

    fn layer_key(&self, layers: &[LayerId]) -> Option<LayerKey> {
        self.inner.layer_key(layers)
    }

    async fn draft_layer(
        &self,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        self.inner.draft_layer(below, layer).await
    }

    async fn keep_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        self.inner.keep_layer(draft).await
    }

    async fn abort_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        self.inner.abort_layer(draft).await
    }

    async fn layer_from(
        &self,
        id: &SandboxId,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        self.inner.layer_from(id, below, layer).await
    }

    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError> {
        self.inner.layers().await
    }

    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        self.inner.remove_layer(layer).await
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.inner.pool_health().await
    }

    async fn close(&self) -> Result<(), StorageError> {
        self.inner.close().await
    }
}

async fn run_broken(fault: Fault, data_dir: &Path) -> Result<(), Violation> {
    let inner = LocalStorage::open(data_dir).expect("local storage works everywhere");
    let half_make = crate::storage::local::tests::half_make;
    run(Subject { storage: Arc::new(Broken { inner, fault }), half_make }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_every_broken_storage() {
    let faults = [
        (Fault::CreateTakesWhatIsThere, "a_volume_is_made_only_once"),
        (Fault::DestroyDoesNothing, "a_new_volume_is_an_empty_directory_of_root"),
        (Fault::DestroyFailsTwice, "destroy_may_be_repeated"),
        (Fault::ListForgets, "a_half_made_volume_is_listed_and_destroyed"),
        (Fault::UsageIsNothing, "usage_follows_what_is_written"),
        (Fault::QuotaIsNotKept, "a_quota_holds_or_is_refused"),
    ];
    for (fault, promise) in faults {
        let dir = tempfile::tempdir().expect("a temporary directory");
        match run_broken(fault, dir.path()).await {
            Ok(()) => panic!("{fault:?} was not noticed"),
            Err(violation) => assert_eq!(violation.promise, promise, "{fault:?}: {violation}"),
        }
    }
}
