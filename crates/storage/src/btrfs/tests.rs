//! Real pools on real loop devices. If they are unavailable a test reports why and is skipped.

mod limits;
mod size;

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use super::*;
use crate::conformance::{Reopen, StorageUnderTest, crashes, fixture, run};
use crate::layer::chain_key;
use crate::{LayerId, LayerKey, LocalStorage, Storage as _, StorageChoice, open};
use sandkeep_core::SnapshotId;
use sandkeep_sys::{
    btrfs::{quota as quota_groups, quota::GroupId},
    loopdev::LoopDevice,
};

const SMALL: BtrfsOptions =
    BtrfsOptions { image_bytes: Some(256 * 1024 * 1024), image_max_bytes: None };

/// A data directory whose pool is unmounted, and its loop device released, however a test ends.
pub struct DataDir(TempDir);

impl DataDir {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    fn mount_point(&self) -> PathBuf {
        self.path().join("storage/btrfs")
    }

    fn image(&self) -> File {
        File::open(image::path(self.path())).expect("the image")
    }

    /// Waits until no loop device has the image. Another test that scans all devices may hold it for a moment after the
    /// unmount.
    fn is_detached(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        while LoopDevice::find(&self.image()).expect("look").is_some() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    fn mounts(&self) -> usize {
        let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
        let place = self.mount_point().display().to_string();
        mounts.lines().filter(|line| line.split(' ').nth(4) == Some(&place)).count()
    }

    pub fn open(&self) -> Result<BtrfsStorage, StorageError> {
        BtrfsStorage::open(self.path(), &SMALL)
    }

    /// With enough space for the suite, which creates and destroys faster than the kernel cleans up.
    pub fn open_for_suite(&self) -> Result<BtrfsStorage, StorageError> {
        let image_bytes = SMALL.image_bytes.map(|bytes| bytes * 2);
        BtrfsStorage::open(self.path(), &BtrfsOptions { image_bytes, ..SMALL })
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        for mounted in [self.mount_point(), self.path().to_owned()] {
            while unmount(&mounted, UnmountFlags::DETACH).is_ok() {}
        }
    }
}

/// A new pool, or `None` with the reason printed.
fn pool(test: &str) -> Option<(DataDir, BtrfsStorage)> {
    let dir = DataDir::new();
    let storage = opened(test, dir.open())?;
    Some((dir, storage))
}

fn opened(test: &str, opened: Result<BtrfsStorage, StorageError>) -> Option<BtrfsStorage> {
    match opened {
        Ok(storage) => Some(storage),
        Err(StorageError::Unusable { reason, .. }) => {
            eprintln!("SKIP {test}: {reason}");
            None
        }
        Err(error) => panic!("{error:?}"),
    }
}

macro_rules! pool_or_skip {
    ($test:literal) => {
        match pool($test) {
            Some(pool) => pool,
            None => return,
        }
    };
}

/// A crash after the subvolume is created and before its mode is set.
pub fn half_make(dir: &Path, id: &SandboxId) {
    let dir = File::open(dir).expect("the volumes");
    btrfs::create_subvolume(dir, &c_name(id), Charged::TO_ITSELF).expect("a subvolume");
}

pub fn reopen(data_dir: &Path) -> Reopen {
    let data_dir = data_dir.to_owned();
    Arc::new(move || Arc::new(BtrfsStorage::open(&data_dir, &SMALL).expect("open again")))
}

async fn volume(storage: &BtrfsStorage) -> (SandboxId, PathBuf) {
    let id = SandboxId::random();
    let root = storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    (id, root.own_dir().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn btrfs_storage_keeps_every_promise() {
    let (test, dir) = ("btrfs_storage_keeps_every_promise", DataDir::new());
    let Some(storage) = opened(test, dir.open_for_suite()) else { return };
    let subject =
        StorageUnderTest { storage: Arc::new(storage), half_make, reopen: reopen(dir.path()) };
    run(subject).await.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_data_directory_on_btrfs_needs_no_image() {
    let (test, outer) = ("a_data_directory_on_btrfs_needs_no_image", DataDir::new());
    let Some(_storage) = opened(test, outer.open_for_suite()) else { return };
    let data_dir = outer.mount_point().join("data");
    fs::create_dir(&data_dir).expect("a directory");
    let storage = BtrfsStorage::open(&data_dir, &SMALL).expect("open");
    assert!(!image::path(&data_dir).exists());
    let subject =
        StorageUnderTest { storage: Arc::new(storage), half_make, reopen: reopen(&data_dir) };
    run(subject).await.unwrap_or_else(|violation| panic!("{violation}"));
}

#[tokio::test]
async fn a_mount_that_a_killed_daemon_left_is_used_again() {
    let (dir, storage) = pool_or_skip!("a_mount_that_a_killed_daemon_left_is_used_again");
    let (id, path) = volume(&storage).await;
    fs::write(path.join("file"), "kept").expect("a file");
    drop(storage);
    let storage = dir.open().expect("open again");
    assert_eq!(dir.mounts(), 1);
    assert_eq!(storage.list().await.expect("list"), [id]);
    assert_eq!(fs::read(path.join("file")).expect("the file"), b"kept");
}

#[tokio::test]
async fn after_a_reboot_the_pool_is_attached_anew() {
    let (dir, storage) = pool_or_skip!("after_a_reboot_the_pool_is_attached_anew");
    let (id, path) = volume(&storage).await;
    fs::write(path.join("file"), "kept").expect("a file");
    drop(storage);
    unmount(dir.mount_point(), UnmountFlags::empty()).expect("unmount");
    assert!(dir.is_detached());
    let storage = dir.open().expect("open again");
    assert_eq!(storage.list().await.expect("list"), [id]);
    assert_eq!(fs::read(path.join("file")).expect("the file"), b"kept");
    assert!(storage.capabilities().disk_quota);
}

/// Another process still has the file system mounted, like a launcher that outlived its daemon.
#[tokio::test]
async fn an_image_is_never_attached_twice() {
    let (dir, storage) = pool_or_skip!("an_image_is_never_attached_twice");
    let (id, path) = volume(&storage).await;
    let held = File::open(path).expect("the volume");
    unmount(dir.mount_point(), UnmountFlags::DETACH).expect("unmount");
    let device = LoopDevice::find(&dir.image()).expect("look").expect("still attached");
    let again = dir.open().expect("open again");
    assert_eq!(again.list().await.expect("list"), [id]);
    let now = LoopDevice::find(&dir.image()).expect("look").expect("attached");
    assert_eq!(device.path(), now.path());
    drop(held);
}

#[tokio::test]
async fn something_else_mounted_there_is_refused() {
    let (dir, storage) = pool_or_skip!("something_else_mounted_there_is_refused");
    drop(storage);
    unmount(dir.mount_point(), UnmountFlags::empty()).expect("unmount");
    mount("none", dir.mount_point(), "tmpfs", MountFlags::empty(), None).expect("a tmpfs");
    let answer = dir.open().map(|_| ()).expect_err("a tmpfs was taken for the pool");
    assert!(matches!(answer, StorageError::Unusable { .. }), "{answer:?}");
    let choice = open(&StorageChoice::Auto, dir.path(), &SMALL).map(|_| ());
    choice.expect_err("auto left the volumes in the image behind");
}

#[tokio::test]
async fn close_lets_go_only_when_no_volume_is_left() {
    let (dir, storage) = pool_or_skip!("close_lets_go_only_when_no_volume_is_left");
    let (id, path) = volume(&storage).await;
    storage.close(&[]).await.expect("close");
    assert_eq!(dir.mounts(), 1, "a pool with a volume was unmounted");
    let held = File::open(&path).expect("the volume");
    let other = [SandboxId::random()];
    storage.close(&other).await.expect("close");
    assert_eq!(dir.mounts(), 1, "a volume that is not idle was unmounted");
    storage.destroy(&id).await.expect("destroy");
    storage.close(&[]).await.expect("close while it is in use");
    assert_eq!(dir.mounts(), 1);
    drop(held);
    storage.close(&[]).await.expect("close");
    assert_eq!(dir.mounts(), 0);
    assert!(dir.is_detached());
    storage.close(&[]).await.expect_err("there is nothing to list any more");
}

#[tokio::test]
async fn close_lets_go_of_idle_volumes_and_the_next_daemon_finds_them() {
    let (dir, storage) =
        pool_or_skip!("close_lets_go_of_idle_volumes_and_the_next_daemon_finds_them");
    let (id, path) = volume(&storage).await;
    fs::write(path.join("file"), "kept").expect("a file");
    storage.close(std::slice::from_ref(&id)).await.expect("close");
    assert_eq!(dir.mounts(), 0, "a pool with nothing but idle volumes stays mounted");
    let again = dir.open().expect("open again");
    let root = again.root(&id).await.expect("the volume");
    assert_eq!(fs::read(root.own_dir().join("file")).expect("the file"), b"kept");
}

/// Layers are in the image; only volumes may be in use by processes that outlive the daemon.
#[tokio::test]
async fn close_lets_go_of_layers_and_the_next_daemon_finds_them() {
    let (dir, storage) = pool_or_skip!("close_lets_go_of_layers_and_the_next_daemon_finds_them");
    let layer = fixture::layer(&storage, &[], |draft| fixture::write(&draft.root, "file", "kept"));
    let layer = layer.await.expect("a layer");
    storage.close(&[]).await.expect("close");
    assert_eq!(dir.mounts(), 0, "a pool without a volume stays mounted");
    assert!(dir.is_detached());
    let again = dir.open().expect("open again");
    let key = again.layer_key(std::slice::from_ref(&layer)).expect("one layer");
    assert_eq!(again.layers().await.expect("layers"), [key]);
    let id = SandboxId::random();
    let root = again.create(&id, &Base::Layers(vec![layer]), &Quota::NONE).await.expect("a volume");
    assert_eq!(fs::read(root.own_dir().join("file")).expect("the file"), b"kept");
}

/// A crash after the draft was made read-only and before it got its name.
#[tokio::test]
async fn a_layer_that_was_almost_kept_is_swept() {
    let (dir, storage) = pool_or_skip!("a_layer_that_was_almost_kept_is_swept");
    let draft = storage.draft_layer(&[], &fixture::random_layer()).await.expect("a draft");
    let draft = draft.expect("nobody has made it");
    let root = draft.root.clone();
    btrfs::make_read_only(File::open(&root).expect("the draft")).expect("read-only");
    fs::write(root.join("file"), "x").expect_err("it is read-only");
    std::mem::forget(draft);
    let again = dir.open().expect("open again");
    assert!(!root.exists());
    assert_eq!(again.layers().await.expect("layers"), []);
}

#[test]
fn a_chain_is_named_as_images_name_it() {
    let id = |digit: char| {
        let hex: String = std::iter::repeat_n(digit, 64).collect();
        LayerId::from_hex(&hex).expect("an id")
    };
    let [a, b, c] = ['a', 'b', 'c'].map(id);
    assert_eq!(chain_key(&[]), None);
    assert_eq!(chain_key(std::slice::from_ref(&a)), Some(LayerKey(a.clone())));
    let two = chain_key(&[a.clone(), b.clone()]).expect("two layers");
    let three = chain_key(&[two.0.clone(), c.clone()]).expect("two layers");
    assert_eq!(chain_key(&[a.clone(), b.clone(), c]), Some(three));
    assert_ne!(chain_key(&[b, a]), Some(two));
}

#[tokio::test]
async fn the_image_never_becomes_sparse() {
    let (dir, storage) = pool_or_skip!("the_image_never_becomes_sparse");
    for _ in 0..3 {
        let (id, path) = volume(&storage).await;
        fs::write(path.join("file"), vec![7; 32 << 20]).expect("a file");
        rustix::fs::syncfs(File::open(&path).expect("the volume")).expect("sync");
        storage.destroy(&id).await.expect("destroy");
        rustix::fs::syncfs(storage.inner.pool.volumes().expect("volumes")).expect("sync");
    }
    let metadata = dir.image().metadata().expect("metadata");
    assert_eq!(Some(metadata.len()), SMALL.image_bytes);
    assert!(metadata.blocks() * 512 >= metadata.len(), "only {} blocks", metadata.blocks());
    let health = storage.pool_health().await.expect("health");
    assert_eq!(Some(health.total_bytes), SMALL.image_bytes, "the filesystem did not grow");
}

#[tokio::test]
async fn subvolumes_made_inside_go_with_their_volume() {
    let (_dir, storage) = pool_or_skip!("subvolumes_made_inside_go_with_their_volume");
    let (id, path) = volume(&storage).await;
    let nested = |at: &Path| {
        btrfs::create_subvolume(
            File::open(at).expect("a directory"),
            c"nested",
            Charged::TO_ITSELF,
        )
        .expect("a subvolume");
        fs::write(at.join("nested/file"), "x").expect("a file");
    };
    nested(&path);
    nested(&path.join("nested"));
    fs::create_dir(path.join("directory")).expect("a directory");
    nested(&path.join("directory"));
    storage.destroy(&id).await.expect("destroy");
    assert!(!path.exists());
}

#[tokio::test]
async fn quota_groups_that_outlived_their_volume_are_removed() {
    let (dir, storage) = pool_or_skip!("quota_groups_that_outlived_their_volume_are_removed");
    let (_, path) = volume(&storage).await;
    let alive = btrfs::subvolume_id(File::open(path).expect("the volume")).expect("its id");
    let alive = GroupId::of(alive);
    let top = storage.inner.pool.volumes().expect("volumes");
    let dead = GroupId::of(btrfs::SubvolumeId(99));
    quota_groups::create(&top, dead).expect("a quota group");
    assert!(quota_groups::groups(&top).expect("groups").contains(&dead));
    let _again = dir.open().expect("open again");
    let groups = quota_groups::groups(&top).expect("groups");
    assert!(!groups.contains(&dead) && groups.contains(&alive), "{groups:?}");
}

#[tokio::test]
async fn two_pools_are_mounted_at_once() {
    let (_a, first) = pool_or_skip!("two_pools_are_mounted_at_once");
    let (_b, second) = pool_or_skip!("two_pools_are_mounted_at_once");
    let (id, _) = volume(&first).await;
    assert_eq!(first.list().await.expect("list"), [id]);
    assert_eq!(second.list().await.expect("list"), []);
}

#[tokio::test]
async fn an_unfinished_image_is_made_anew() {
    let dir = DataDir::new();
    fs::create_dir(dir.path().join("storage")).expect("a directory");
    fs::write(dir.path().join("storage/btrfs.img.new"), "half").expect("a file");
    match dir.open() {
        Ok(storage) => assert_eq!(storage.list().await.expect("list"), []),
        Err(StorageError::Unusable { reason, .. }) => {
            eprintln!("SKIP an_unfinished_image_is_made_anew: {reason}");
        }
        Err(error) => panic!("{error:?}"),
    }
}

#[test]
fn auto_stays_with_local_volumes() {
    let dir = DataDir::new();
    let local = LocalStorage::open(dir.path()).expect("local");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime
        .block_on(local.create(&SandboxId::random(), &Base::Empty, &Quota::NONE))
        .expect("a volume");
    let opened = open(&StorageChoice::Auto, dir.path(), &SMALL).expect("auto");
    assert_eq!(opened.storage.name(), "local");
    assert!(opened.warning.is_some_and(|warning| warning.contains("disk_mb")));
}

#[test]
fn a_size_that_cannot_be_had_is_refused_and_not_worked_around() {
    let dir = DataDir::new();
    for (bytes, word) in [(1 << 20, "1 MiB"), (u64::MAX, "17592186044415 MiB")] {
        for choice in [StorageChoice::Auto, StorageChoice::Btrfs] {
            let options = BtrfsOptions { image_bytes: Some(bytes), image_max_bytes: None };
            let refused = open(&choice, dir.path(), &options).err().expect("no storage");
            let said = refused.to_string();
            assert!(matches!(refused, StorageError::Unusable { .. }), "{said}");
            assert!(said.contains(word) && said.contains("256 MiB"), "{said}");
        }
    }
    assert!(!image::path(dir.path()).exists());
    assert!(!dir.path().join("storage/local").exists());
}

#[test]
fn a_crash_at_any_point_leaves_whole_snapshots_and_volumes() {
    let (dir, _) = pool_or_skip!("a_crash_at_any_point_leaves_whole_snapshots_and_volumes");
    let rooms = ["volumes", "snapshots"].map(|room| dir.mount_point().join(room));
    crashes::survives_every_point(|| dir.open().expect("open again"), &rooms);
}

/// Not by time, which says little on a busy machine: none of a volume's data is written again.
#[tokio::test]
async fn snapshot_fork_and_rollback_write_nothing_of_what_a_volume_holds() {
    let (_dir, storage) =
        pool_or_skip!("snapshot_fork_and_rollback_write_nothing_of_what_a_volume_holds");
    let (id, path) = volume(&storage).await;
    fs::write(path.join("file"), vec![7; 64 << 20]).expect("a file");
    rustix::fs::syncfs(File::open(&path).expect("the volume")).expect("sync");
    let free = async || storage.pool_health().await.expect("health").free_bytes;
    let before = free().await;
    let snapshots: Vec<_> = (0..8).map(|_| SnapshotId::random()).collect();
    for snapshot in &snapshots {
        storage.snapshot(&id, snapshot).await.expect("a snapshot");
        storage.fork(&id, snapshot, &SandboxId::random(), &Quota::NONE).await.expect("a fork");
        storage.rollback(&id, snapshot).await.expect("a rollback");
    }
    let taken = before.saturating_sub(free().await);
    // The file system allocates space for metadata in steps of tens of mebibytes.
    assert!(taken < 64 << 20, "8 snapshots, forks and rollbacks of 64 MiB took {taken} bytes");
}

#[tokio::test]
async fn groups_of_quotas_go_when_their_sandbox_is_gone() {
    let (dir, storage) = pool_or_skip!("groups_of_quotas_go_when_their_sandbox_is_gone");
    let (id, path) = volume(&storage).await;
    fs::write(path.join("file"), vec![7; 4 << 20]).expect("a file");
    let snapshot = SnapshotId::random();
    storage.snapshot(&id, &snapshot).await.expect("a snapshot");
    storage.rollback(&id, &snapshot).await.expect("a rollback");
    let top = storage.inner.pool.volumes().expect("volumes");
    let upper = || {
        let groups = quota_groups::groups(&top).expect("groups");
        groups.into_iter().filter(|group| group.level() > 0).count()
    };
    assert_eq!(upper(), 1, "a volume with snapshots is counted by one group");
    storage.destroy(&id).await.expect("destroy");
    // The kernel cleans up at its own pace; every opening checks again.
    let deadline = Instant::now() + Duration::from_secs(60);
    while upper() > 0 {
        assert!(Instant::now() < deadline, "the group of a destroyed sandbox stays");
        rustix::fs::syncfs(&top).expect("sync");
        drop(dir.open().expect("open again"));
    }
}

/// The cost of create and destroy. Figures without a verdict.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: run it alone with --nocapture"]
async fn measure_volumes() {
    let start = Instant::now();
    let (_dir, storage) = pool_or_skip!("measure_volumes");
    println!("making and mounting a pool: {:?}", start.elapsed());
    let mut times = (Vec::new(), Vec::new(), Vec::new());
    let ids: Vec<_> = (0..200).map(|_| SandboxId::random()).collect();
    for id in &ids {
        let start = Instant::now();
        storage.create(id, &Base::Empty, &Quota::of_tree(64 << 20)).await.expect("create");
        times.0.push(start.elapsed());
    }
    for id in &ids {
        let start = Instant::now();
        storage.destroy(id).await.expect("destroy");
        times.1.push(start.elapsed());
    }
    for _ in 0..200 {
        let id = SandboxId::random();
        let start = Instant::now();
        storage.inner.create(&id, &Base::Empty, &Quota::of_tree(64 << 20)).expect("create");
        times.2.push(start.elapsed());
        storage.inner.destroy(&id).expect("destroy");
    }
    for (what, mut times) in
        [("create", times.0), ("destroy", times.1), ("create, same thread", times.2)]
    {
        times.sort();
        println!("{what}: p50 {:?} p90 {:?}", times[100], times[180]);
    }
}
