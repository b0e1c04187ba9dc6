//! Pools: nothing is lost that depends on a removed dataset, and a crash leaves one of two states.

#[path = "../../../sandkeep/tests/it/support/pool.rs"]
mod pool;

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use self::pool::{Pool, zfs};
use super::*;
use crate::Storage as _;
use crate::conformance::{Reopen, StorageUnderTest, crashes, run};
use sandkeep_core::SnapshotId;
use sandkeep_sys::mount;

/// A storage on a separate pool, or a skip.
struct Bench {
    storage: ZfsStorage,
    data: TempDir,
    pool: Pool,
}

fn bench(test: &str) -> Option<Bench> {
    let pool = match Pool::make() {
        Ok(pool) => pool,
        Err(reason) => {
            eprintln!("SKIP {test}: {reason}");
            return None;
        }
    };
    let data = tempfile::tempdir().expect("a temporary directory");
    let storage = ZfsStorage::open(data.path(), &given(&pool)).expect("a pool is there");
    Some(Bench { storage, data, pool })
}

fn given(pool: &Pool) -> Dataset {
    pool.name.parse().expect("a pool's name")
}

impl Bench {
    fn reopen(&self) -> ZfsStorage {
        ZfsStorage::open(self.data.path(), &given(&self.pool)).expect("open again")
    }

    /// The content of the pool besides the permanent datasets.
    fn beneath_rooms(&self) -> Vec<String> {
        let rooms = self.storage.inner.names.rooms();
        self.pool.contents().into_iter().filter(|name| !rooms.contains(name)).collect()
    }

    /// Nothing is left when the storage is closed.
    async fn end(self) {
        self.storage.close(&[]).await.expect("closed");
        assert_eq!(self.pool.contents(), Vec::<String>::new());
        let mounted = self.data.path().join("storage/zfs/mounted");
        let left: Vec<_> = fs::read_dir(mounted).expect("a directory").collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// A crash before the tree was made.
fn half_make(dir: &Path, id: &SandboxId) {
    let claim = fs::read_to_string(dir.with_file_name("pool")).expect("a claim");
    let own = claim.lines().next().and_then(|line| line.strip_prefix("dataset ")).expect("ours");
    zfs(&["create", "-o", "canmount=off", &format!("{own}/volumes/{id}")]);
}

fn read(root: &Root, name: &str) -> String {
    fs::read_to_string(root.own_dir().join(name)).unwrap_or_else(|error| error.to_string())
}

fn write(root: &Root, name: &str, text: &str) {
    fs::write(root.own_dir().join(name), text).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn zfs_storage_keeps_every_promise() {
    let Some(bench) = bench("zfs::tests::zfs_storage_keeps_every_promise") else { return };
    let (data, given) = (bench.data.path().to_owned(), given(&bench.pool));
    let reopen: Reopen =
        Arc::new(move || Arc::new(ZfsStorage::open(&data, &given).expect("open again")));
    let storage = Arc::new(bench.reopen());
    let subject = StorageUnderTest { storage, half_make, reopen };
    run(subject).await.unwrap_or_else(|violation| panic!("{violation}"));
    bench.end().await;
}

#[test]
fn a_crash_at_any_point_leaves_whole_snapshots_and_volumes() {
    let test = "a_crash_at_any_point_leaves_whole_snapshots_and_volumes";
    let Some(bench) = bench(test) else { return };
    let rooms = [bench.data.path().join("storage/zfs/mounted")];
    crashes::survives_every_point(|| bench.reopen(), &rooms);
    assert_eq!(bench.beneath_rooms(), [""; 0]);
}

#[tokio::test]
async fn what_is_removed_stays_for_whoever_stands_on_it_and_no_longer() {
    let Some(bench) = bench("what_is_removed_stays_for_whoever_stands_on_it_and_no_longer") else {
        return;
    };
    let [source, fork, other] = [(); 3].map(|()| SandboxId::random());
    let taken = SnapshotId::random();
    let root = bench.storage.create(&source, &Base::Empty, &Quota::NONE).await.expect("a volume");
    write(&root, "file", "kept");
    bench.storage.snapshot(&source, &taken).await.expect("a snapshot");
    for new in [&fork, &other] {
        bench.storage.fork(&source, &taken, new, &Quota::NONE).await.expect("a fork");
    }
    bench.storage.destroy(&source).await.expect("destroyed");
    assert_eq!(bench.storage.snapshots().await.expect("snapshots"), []);
    let storage = bench.reopen();
    for id in [&fork, &other] {
        assert_eq!(read(&storage.root(id).await.expect("a root"), "file"), "kept");
        storage.destroy(id).await.expect("destroyed");
    }
    assert_eq!(bench.beneath_rooms(), [""; 0]);
    bench.end().await;
}

/// A separate mount, like that of a running sandbox.
#[tokio::test]
async fn a_volume_whose_forks_are_in_use_is_rolled_back_and_destroyed() {
    let test = "a_volume_whose_forks_are_in_use_is_rolled_back_and_destroyed";
    let Some(bench) = bench(test) else { return };
    let storage = &bench.storage;
    let [source, fork] = [(); 2].map(|()| SandboxId::random());
    let [first, second] = [(); 2].map(|()| SnapshotId::random());
    let root = storage.create(&source, &Base::Empty, &Quota::NONE).await.expect("a volume");
    write(&root, "file", "first");
    storage.snapshot(&source, &first).await.expect("a snapshot");
    let forked = storage.fork(&source, &first, &fork, &Quota::NONE).await.expect("a fork");
    let path = forked.own_dir().to_owned();
    let in_use = mount::clone_tree(&path).expect("a mount that somebody has");
    let mut held = fs::File::open(path.join("file")).expect("a file");

    write(&root, "file", "second");
    storage.snapshot(&source, &second).await.expect("a snapshot");
    let root = storage.rollback(&source, &first).await.expect("rolled back");
    assert_eq!(read(&root, "file"), "first");
    let root = storage.rollback(&source, &second).await.expect("and forward");
    assert_eq!(read(&root, "file"), "second");
    storage.delete_snapshot(&source, &first).await.expect("gone in name");
    assert_eq!(storage.snapshots().await.expect("a list"), [(source.clone(), second)]);
    storage.destroy(&source).await.expect("destroyed");
    assert_eq!(storage.list().await.expect("a list"), std::slice::from_ref(&fork));
    assert_eq!(read(&forked, "file"), "first", "it is mounted where it was");
    let mut text = String::new();
    std::io::Read::read_to_string(&mut held, &mut text).expect("readable");
    assert_eq!(text, "first");
    drop((in_use, held));
    storage.destroy(&fork).await.expect("destroyed");
    assert_eq!(bench.beneath_rooms(), [""; 0]);
    bench.end().await;
}

/// A removed volume is still mounted elsewhere: its name is gone, and its data as soon as possible.
#[tokio::test]
async fn what_is_in_use_when_it_is_removed_goes_later() {
    let Some(bench) = bench("what_is_in_use_when_it_is_removed_goes_later") else { return };
    let storage = &bench.storage;
    let id = SandboxId::random();
    let root = storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    let in_use = mount::clone_tree(root.own_dir()).expect("a mount that somebody has");
    storage.destroy(&id).await.expect("destroyed");
    assert_eq!(storage.list().await.expect("a list"), []);
    assert_ne!(bench.beneath_rooms(), [""; 0]);
    drop(in_use);
    let begun = std::time::Instant::now();
    while bench.beneath_rooms() != [""; 0] {
        storage.pool_health().await.expect("health");
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "it stays");
    }
    bench.end().await;
}

#[tokio::test]
async fn two_data_directories_on_one_pool_do_not_meet() {
    let Some(bench) = bench("two_data_directories_on_one_pool_do_not_meet") else { return };
    let data = tempfile::tempdir().expect("a temporary directory");
    let second = ZfsStorage::open(data.path(), &given(&bench.pool)).expect("opened");
    let id = SandboxId::random();
    bench.storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    assert_eq!(second.list().await.expect("a list"), []);
    second.destroy(&id).await.expect("there is none");
    second.close(&[]).await.expect("closed");
    assert_eq!(bench.storage.list().await.expect("a list"), std::slice::from_ref(&id));
    let elsewhere = "sandkeep-no-such-pool".parse().expect("a name");
    let refused = ZfsStorage::open(bench.data.path(), &elsewhere).err().expect("no such pool");
    assert!(matches!(refused, StorageError::Unusable { .. }), "{refused}");
    bench.storage.destroy(&id).await.expect("destroyed");
    bench.end().await;
}
