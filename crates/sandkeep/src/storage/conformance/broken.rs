//! The suite on storages that are broken on purpose: it must notice each.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::fixture::random_layer;
use super::{Reopen, Subject, Violation, run};
use crate::sandbox::SandboxId;
use crate::storage::btrfs::tests::{DataDir, half_make as half_make_subvolume};
use crate::storage::local::tests::{half_make, reopen};
use crate::storage::{
    Base, LayerDraft, LayerId, LayerKey, LocalStorage, OPAQUE, PoolHealth, Root, Storage,
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
    LayersAreUpsideDown,
    VolumesAreOne,
    RootsHideNothing,
    DraftsAreListed,
    KeepsOnlyOnce,
    MissingIsAnother,
    RemoveLayerDoesNothing,
    DraftsAreNotSwept,
    LayersFromVolumesAreEmpty,
    QuotaOnlyAboveNothing,
}

/// A storage with one fault.
struct Broken {
    inner: Arc<dyn Storage>,
    fault: Fault,
    /// The first volume above layers.
    first: Mutex<Option<Root>>,
    drafted: Mutex<Vec<LayerKey>>,
}

impl Broken {
    fn new(inner: Arc<dyn Storage>, fault: Fault) -> Self {
        Self { inner, fault, first: Mutex::default(), drafted: Mutex::default() }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// What a volume is made above.
    fn base(&self, base: &Base) -> Base {
        let mut layers = base.layers().to_vec();
        if self.has(Fault::LayersAreUpsideDown) {
            layers.reverse();
        }
        Base::Layers(layers)
    }

    fn quota(&self, base: &Base, quota_bytes: Option<u64>) -> Option<u64> {
        let forgotten = self.has(Fault::QuotaIsNotKept)
            || self.has(Fault::QuotaOnlyAboveNothing) && !base.layers().is_empty();
        quota_bytes.filter(|_| !forgotten)
    }

    /// Of all volumes above layers there is but one.
    fn the_one(&self, root: Root) -> Root {
        let mut first = self.first.lock().expect("no test panics with it");
        let known = first.take().filter(|known| known.own_dir().exists());
        first.insert(known.unwrap_or(root)).clone()
    }

    fn misname(&self, error: StorageError) -> StorageError {
        match error {
            StorageError::LayerMissing { .. } if self.has(Fault::MissingIsAnother) => {
                StorageError::LayerMissing { layer: random_layer() }
            }
            error => error,
        }
    }
}

#[async_trait]
impl Storage for Broken {
    fn name(&self) -> &'static str {
        "broken"
    }

    fn capabilities(&self) -> StorageCapabilities {
        let capabilities = self.inner.capabilities();
        let disk_quota = capabilities.disk_quota || self.has(Fault::QuotaIsNotKept);
        StorageCapabilities { disk_quota, ..capabilities }
    }

    async fn create(
        &self,
        id: &SandboxId,
        base: &Base,
        quota_bytes: Option<u64>,
    ) -> Result<Root, StorageError> {
        let quota_bytes = self.quota(base, quota_bytes);
        match self.inner.create(id, &self.base(base), quota_bytes).await {
            Err(StorageError::Exists { .. }) if self.has(Fault::CreateTakesWhatIsThere) => {
                self.inner.root(id).await
            }
            Ok(root) if self.has(Fault::VolumesAreOne) && !base.layers().is_empty() => {
                Ok(self.the_one(root))
            }
            answer => answer.map_err(|error| self.misname(error)),
        }
    }

    async fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        self.inner.root(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        if self.has(Fault::DestroyDoesNothing) {
            return Ok(());
        }
        if self.has(Fault::DestroyFailsTwice) {
            self.inner.root(id).await?;
        }
        self.inner.destroy(id).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        let Usage { used_bytes, limit_bytes } = self.inner.usage(id).await?;
        Ok(Usage {
            used_bytes: if self.has(Fault::UsageIsNothing) { 0 } else { used_bytes },
            limit_bytes: limit_bytes.filter(|_| !self.has(Fault::QuotaIsNotKept)),
        })
    }

    async fn snapshot(&self, id: &SandboxId, name: &str) -> Result<(), StorageError> {
        self.inner.snapshot(id, name).await
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let mut list = self.inner.list().await?;
        if self.has(Fault::ListForgets) {
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
        let draft = self.inner.draft_layer(below, layer).await;
        let draft = draft.map_err(|error| self.misname(error))?;
        let keys = draft.iter().map(|draft| draft.key().clone());
        self.drafted.lock().expect("no test panics with it").extend(keys);
        Ok(draft)
    }

    async fn keep_layer(&self, draft: LayerDraft) -> Result<(), StorageError> {
        if self.has(Fault::KeepsOnlyOnce) && self.inner.layers().await?.contains(draft.key()) {
            let what = "keep a layer twice";
            return Err(StorageError::Unsupported { storage: "broken", what });
        }
        if self.has(Fault::RootsHideNothing) {
            // Most have nothing to lose.
            let _ = rustix::fs::removexattr(&draft.root, OPAQUE);
        }
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
        if !self.has(Fault::LayersFromVolumesAreEmpty) {
            return self.inner.layer_from(id, below, layer).await;
        }
        match self.inner.draft_layer(below, layer).await? {
            Some(draft) => self.inner.keep_layer(draft).await,
            None => Ok(()),
        }
    }

    async fn layers(&self) -> Result<Vec<LayerKey>, StorageError> {
        let mut layers = self.inner.layers().await?;
        if self.has(Fault::DraftsAreListed) {
            layers.append(&mut self.drafted.lock().expect("no test panics with it"));
            layers.sort();
            layers.dedup();
        }
        Ok(layers)
    }

    async fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        match self.fault {
            Fault::RemoveLayerDoesNothing => Ok(()),
            _ => self.inner.remove_layer(layer).await,
        }
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
    let storage: Arc<dyn Storage> = Arc::new(Broken::new(Arc::new(inner), fault));
    let same = Arc::clone(&storage);
    let reopen: Reopen = match fault {
        Fault::DraftsAreNotSwept => Arc::new(move || Arc::clone(&same)),
        _ => reopen(data_dir),
    };
    run(Subject { storage, half_make, reopen }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_every_broken_storage() {
    let faults = [
        (Fault::CreateTakesWhatIsThere, "a_volume_is_made_only_once"),
        (Fault::DestroyDoesNothing, "a_new_volume_is_an_empty_directory_of_root"),
        (Fault::DestroyFailsTwice, "destroy_may_be_repeated"),
        (Fault::ListForgets, "a_half_made_volume_is_listed_and_destroyed"),
        (Fault::UsageIsNothing, "usage_follows_what_is_written"),
        (Fault::LayersAreUpsideDown, "a_volume_shows_all_its_layers"),
        (Fault::RemoveLayerDoesNothing, "a_volume_shows_all_its_layers"),
        (Fault::VolumesAreOne, "what_is_written_above_is_seen_by_nobody_else"),
        (Fault::RootsHideNothing, "a_layer_may_hide_all_below_it"),
        (Fault::DraftsAreListed, "a_draft_is_no_layer_before_it_is_kept"),
        (Fault::KeepsOnlyOnce, "a_layer_is_kept_once_and_for_all"),
        (Fault::MissingIsAnother, "a_missing_layer_is_named"),
        (Fault::DraftsAreNotSwept, "a_draft_that_a_crash_left_is_swept"),
        (Fault::LayersFromVolumesAreEmpty, "what_a_volume_holds_becomes_a_layer"),
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

/// Only where quotas hold can one be forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_a_quota_that_does_not_hold_above_layers() {
    let dir = DataDir::new();
    let inner = match dir.open() {
        Ok(storage) if storage.capabilities().disk_quota => Arc::new(storage),
        Ok(_) | Err(StorageError::Unusable { .. }) => {
            let test = "the_suite_notices_a_quota_that_does_not_hold_above_layers";
            eprintln!("SKIP {test}: no storage here holds quotas");
            return;
        }
        Err(error) => panic!("{error:?}"),
    };
    let reopen = crate::storage::btrfs::tests::reopen(dir.path());
    let storage = Arc::new(Broken::new(inner, Fault::QuotaOnlyAboveNothing));
    let subject = Subject { storage, half_make: half_make_subvolume, reopen };
    let noticed = run(subject).await.expect_err("a forgotten quota was not noticed");
    assert_eq!(noticed.promise, "a_quota_holds_above_layers", "{noticed}");
}
