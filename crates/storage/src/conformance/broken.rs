//! Runs the suite on deliberately broken storages, each of which it must detect.

use std::path::Path;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::fixture::random_layer;
use super::{LIMIT_CHECKS, Reopen, StorageUnderTest, Violation, run, run_all};
use crate::btrfs::tests::{DataDir, half_make as half_make_subvolume};
use crate::local::tests::{half_make, reopen};
use crate::{
    Base, LayerDraft, LayerId, LayerKey, LocalStorage, PoolHealth, Quota, Storage,
    StorageCapabilities, StorageError, Usage,
};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_tree::{OPAQUE, Root, RootKind, View};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    CreateTakesWhatIsThere,
    RootsAreOfAnotherKind,
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
    SnapshotsAreNotMade,
    RollbackDoesNothing,
    RollbackTakesTheOthers,
    ForksAreEmpty,
    ForksNeedTheirSource,
    DeleteTakesAll,
    DeleteDoesNothing,
    MissingSnapshotsAreNow,
    SnapshotsStayListed,
    LayersFromSnapshotsAreOfNow,
    SnapshotsWeighNothing,
    ForksHaveNoLimit,
    FullTreesAreNotTaken,
    TotalIsNotKept,
}

/// A storage with one fault.
struct Broken {
    inner: Arc<dyn Storage>,
    fault: Fault,
    /// The first volume above layers.
    first: Mutex<Option<Root>>,
    drafted: Mutex<Vec<LayerKey>>,
    /// All snapshots that were ever listed.
    listed: Mutex<Vec<(SandboxId, SnapshotId)>>,
    /// Sources and their forks.
    forks: Mutex<Vec<(SandboxId, SandboxId)>>,
}

impl Broken {
    fn new(inner: Arc<dyn Storage>, fault: Fault) -> Self {
        Self {
            inner,
            fault,
            first: Mutex::default(),
            drafted: Mutex::default(),
            listed: Mutex::default(),
            forks: Mutex::default(),
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// The base that a volume is created above.
    fn base(&self, base: &Base) -> Base {
        let mut layers = base.layers().to_vec();
        if self.has(Fault::LayersAreUpsideDown) {
            layers.reverse();
        }
        Base::Layers(layers)
    }

    fn quota(&self, base: &Base, quota: &Quota) -> Quota {
        if self.has(Fault::TotalIsNotKept) {
            return Quota { total_bytes: None, ..*quota };
        }
        let forgotten = self.has(Fault::QuotaIsNotKept)
            || self.has(Fault::QuotaOnlyAboveNothing) && !base.layers().is_empty();
        if forgotten { Quota::NONE } else { *quota }
    }

    /// All volumes above layers share one.
    fn the_one(&self, root: Root) -> Root {
        let mut first = self.first.lock().expect("no test panics with it");
        let known = first.take().filter(|known| known.own_dir().exists());
        first.insert(known.unwrap_or(root)).clone()
    }

    /// Deletes all snapshots of a volume but one.
    async fn delete_but(
        &self,
        id: &SandboxId,
        kept: Option<&SnapshotId>,
    ) -> Result<(), StorageError> {
        for (of, snapshot) in self.inner.snapshots().await? {
            if of == *id && Some(&snapshot) != kept {
                self.inner.delete_snapshot(id, &snapshot).await?;
            }
        }
        Ok(())
    }

    /// The forks that are removed with their source.
    fn forks_of(&self, id: &SandboxId) -> Vec<SandboxId> {
        let forks = self.forks.lock().expect("no test panics with it");
        forks.iter().filter(|(source, _)| source == id).map(|(_, fork)| fork.clone()).collect()
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
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        let quota = self.quota(base, quota);
        match self.inner.create(id, &self.base(base), &quota).await {
            Err(StorageError::Exists { .. }) if self.has(Fault::CreateTakesWhatIsThere) => {
                self.inner.root(id).await
            }
            Ok(root) if self.has(Fault::VolumesAreOne) && !base.layers().is_empty() => {
                Ok(self.the_one(root))
            }
            answer => answer.map_err(|error| self.misname(error)),
        }
    }

    fn root_kind(&self, base: &Base) -> RootKind {
        if self.has(Fault::RootsAreOfAnotherKind) {
            RootKind::Dir
        } else {
            self.inner.root_kind(base)
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
        for fork in self.forks_of(id) {
            self.inner.destroy(&fork).await?;
        }
        self.inner.destroy(id).await
    }

    async fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        let mut usage = self.inner.usage(id).await?;
        if self.has(Fault::UsageIsNothing) {
            usage.tree.used_bytes = 0;
        }
        if self.has(Fault::QuotaIsNotKept) {
            usage.tree.limit_bytes = None;
        }
        Ok(usage)
    }

    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        match self.fault {
            Fault::SnapshotsAreNotMade => Ok(()),
            Fault::FullTreesAreNotTaken
                if self.inner.usage(id).await?.exceeded_by(super::filling::MIB).is_some() =>
            {
                let full = std::io::ErrorKind::QuotaExceeded.into();
                Err(StorageError::of_io("broken", "take a full tree", full))
            }
            _ => self.inner.snapshot(id, snapshot).await,
        }
    }

    async fn snapshots(&self) -> Result<Vec<(SandboxId, SnapshotId)>, StorageError> {
        let mut listed = self.inner.snapshots().await?;
        if self.has(Fault::SnapshotsStayListed) {
            let mut ever = self.listed.lock().expect("no test panics with it");
            ever.append(&mut listed);
            ever.sort();
            ever.dedup();
            listed.clone_from(&ever);
        }
        Ok(listed)
    }

    async fn snapshot_bytes(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<u64, StorageError> {
        let bytes = self.inner.snapshot_bytes(id, snapshot).await?;
        Ok(if self.has(Fault::SnapshotsWeighNothing) { 0 } else { bytes })
    }

    async fn delete_snapshot(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<(), StorageError> {
        match self.fault {
            Fault::DeleteDoesNothing => Ok(()),
            Fault::DeleteTakesAll => self.delete_but(id, None).await,
            _ => self.inner.delete_snapshot(id, snapshot).await,
        }
    }

    async fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        match self.fault {
            Fault::RollbackDoesNothing => return self.inner.root(id).await,
            Fault::RollbackTakesTheOthers => self.delete_but(id, Some(snapshot)).await?,
            _ => {}
        }
        match self.inner.rollback(id, snapshot).await {
            Err(StorageError::SnapshotNotFound { .. })
                if self.has(Fault::MissingSnapshotsAreNow) =>
            {
                self.inner.root(id).await
            }
            answer => answer,
        }
    }

    async fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        let quota = if self.has(Fault::ForksHaveNoLimit) { &Quota::NONE } else { quota };
        match self.fault {
            Fault::ForksAreEmpty => self.inner.create(new, &Base::Empty, quota).await,
            Fault::ForksNeedTheirSource => {
                self.forks.lock().expect("no test panics with it").push((id.clone(), new.clone()));
                self.inner.fork(id, snapshot, new, quota).await
            }
            _ => self.inner.fork(id, snapshot, new, quota).await,
        }
    }

    async fn list(&self) -> Result<Vec<SandboxId>, StorageError> {
        let mut list = self.inner.list().await?;
        if self.has(Fault::ListForgets) {
            list.pop();
        }
        Ok(list)
    }

    async fn view(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
    ) -> Result<View, StorageError> {
        self.inner.view(id, snapshot).await
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
            // Most have no such attribute.
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
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let mut snapshot = snapshot;
        if let (true, Some(named)) = (self.has(Fault::LayersFromSnapshotsAreOfNow), snapshot) {
            // A missing one is still detected.
            self.inner.snapshot_bytes(id, named).await?;
            snapshot = None;
        }
        if !self.has(Fault::LayersFromVolumesAreEmpty) {
            return self.inner.layer_from(id, snapshot, below, layer).await;
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

    async fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError> {
        self.inner.tend(id).await
    }

    async fn reclaim(&self) -> Result<(), StorageError> {
        self.inner.reclaim().await
    }

    async fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.inner.pool_health().await
    }

    async fn close(&self, idle: &[SandboxId]) -> Result<(), StorageError> {
        self.inner.close(idle).await
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
    run(StorageUnderTest { storage, half_make, reopen }).await
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
        (Fault::RootsAreOfAnotherKind, "the_kind_of_a_root_is_known_before_it_is_made"),
        (Fault::VolumesAreOne, "what_is_written_above_is_seen_by_nobody_else"),
        (Fault::RootsHideNothing, "a_layer_may_hide_all_below_it"),
        (Fault::DraftsAreListed, "a_draft_is_no_layer_before_it_is_kept"),
        (Fault::KeepsOnlyOnce, "a_layer_is_kept_once_and_for_all"),
        (Fault::MissingIsAnother, "a_missing_layer_is_named"),
        (Fault::DraftsAreNotSwept, "a_draft_that_a_crash_left_is_swept"),
        (Fault::LayersFromVolumesAreEmpty, "what_a_volume_holds_becomes_a_layer"),
        (Fault::SnapshotsAreNotMade, "a_snapshot_keeps_what_the_volume_held"),
        (Fault::ForksAreEmpty, "a_snapshot_keeps_what_the_volume_held"),
        (Fault::SnapshotsStayListed, "a_snapshot_keeps_what_the_volume_held"),
        (Fault::RollbackDoesNothing, "a_rollback_brings_all_back_and_takes_no_snapshot"),
        (Fault::RollbackTakesTheOthers, "a_rollback_brings_all_back_and_takes_no_snapshot"),
        (Fault::ForksNeedTheirSource, "a_fork_needs_its_source_no_more"),
        (Fault::DeleteTakesAll, "a_deleted_snapshot_takes_nothing_with_it"),
        (Fault::DeleteDoesNothing, "a_deleted_snapshot_takes_nothing_with_it"),
        (Fault::MissingSnapshotsAreNow, "a_snapshot_that_is_not_there_is_named"),
        (Fault::LayersFromSnapshotsAreOfNow, "a_snapshot_becomes_a_layer"),
        (Fault::SnapshotsWeighNothing, "what_a_snapshot_holds_is_counted"),
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

/// A quota can be forgotten only where quotas are enforced.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_a_limit_that_does_not_hold() {
    for (fault, promise) in [
        (Fault::QuotaOnlyAboveNothing, "a_quota_holds_above_layers"),
        (Fault::ForksHaveNoLimit, "the_limit_of_the_tree_holds_for_clones"),
        (Fault::FullTreesAreNotTaken, "a_full_tree_can_be_taken_forked_and_rolled_back"),
        (Fault::TotalIsNotKept, "the_limit_of_tree_and_snapshots_holds"),
    ] {
        let dir = DataDir::new();
        let inner = match dir.open_for_suite() {
            Ok(storage) if storage.capabilities().disk_quota => Arc::new(storage),
            Ok(_) | Err(StorageError::Unusable { .. }) => {
                let test = "the_suite_notices_a_limit_that_does_not_hold";
                eprintln!("SKIP {test}: no storage here holds quotas");
                return;
            }
            Err(error) => panic!("{error:?}"),
        };
        let reopen = crate::btrfs::tests::reopen(dir.path());
        let storage = Arc::new(Broken::new(inner, fault));
        let subject = StorageUnderTest { storage, half_make: half_make_subvolume, reopen };
        let noticed = run_all(&subject, LIMIT_CHECKS).await;
        let noticed = noticed.expect_err("a forgotten limit was not noticed");
        assert_eq!(noticed.promise, promise, "{fault:?}: {noticed}");
    }
}
