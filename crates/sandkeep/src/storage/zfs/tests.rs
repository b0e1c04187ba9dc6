//! What a pool must get right: nothing is lost that stands on what is removed, and a crash leaves one of two states.

#[path = "../../../tests/it/support/pool.rs"]
mod pool;

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;

use self::pool::{Pool, zfs};
use super::*;
use crate::sandbox::SnapshotId;
use crate::storage::Storage as _;
use crate::storage::conformance::{Reopen, Subject, crashes, run};

/// A storage on a pool of its own, or a skip.
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

    fn own(&self) -> &str {
        self.storage.inner.names.own()
    }

    /// Nothing is left when the storage is closed.
    async fn end(self) {
        self.storage.close().await.expect("closed");
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
    let Some(bench) = bench("storage::zfs::tests::zfs_storage_keeps_every_promise") else { return };
    let (data, given) = (bench.data.path().to_owned(), given(&bench.pool));
    let reopen: Reopen =
        Arc::new(move || Arc::new(ZfsStorage::open(&data, &given).expect("open again")));
    let storage = Arc::new(bench.reopen());
    let subject = Subject { storage, half_make, reopen };
    run(subject).await.unwrap_or_else(|violation| panic!("{violation}"));
    bench.end().await;
}

#[test]
fn a_crash_at_any_point_leaves_whole_snapshots_and_volumes() {
    let test = "a_crash_at_any_point_leaves_whole_snapshots_and_volumes";
    let Some(bench) = bench(test) else { return };
    let rooms = [bench.data.path().join("storage/zfs/mounted")];
    crashes::survives_every_point(|| bench.reopen(), &rooms);
    let dead = format!("{}/dead/", bench.own());
    assert!(!bench.pool.contents().iter().any(|name| name.starts_with(&dead)));
}

#[tokio::test]
async fn a_rollback_that_a_crash_cut_short_is_the_old_or_the_new() {
    let Some(bench) = bench("a_rollback_that_a_crash_cut_short_is_the_old_or_the_new") else {
        return;
    };
    let (id, first) = (SandboxId::random(), SnapshotId::random());
    let root = bench.storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    write(&root, "file", "old");
    bench.storage.snapshot(&id, &first).await.expect("a snapshot");
    write(&root, "file", "new");
    let volume = format!("{}/volumes/{id}", bench.own());
    let mountpoint = |name: &str| {
        format!("mountpoint={}/storage/zfs/mounted/{id}.{name:0>32}", bench.data.path().display())
    };
    let clone = |name: &str| {
        let (from, to) = (format!("{volume}/tree@{first}"), format!("{volume}/next-{name}"));
        let mountpoint = mountpoint(name);
        zfs(&[
            "clone",
            "-o",
            "canmount=noauto",
            "-o",
            &mountpoint,
            "-o",
            "sandkeep:base=0",
            &from,
            &to,
        ]);
    };
    clone("1");
    let storage = bench.reopen();
    assert_eq!(read(&storage.root(&id).await.expect("a root"), "file"), "new", "after the clone");
    clone("2");
    zfs(&["unmount", &format!("{volume}/tree")]);
    zfs(&["rename", &format!("{volume}/tree"), &format!("{volume}/past-2")]);
    let storage = bench.reopen();
    assert_eq!(read(&storage.root(&id).await.expect("a root"), "file"), "old", "without a tree");
    assert_eq!(storage.snapshots().await.expect("snapshots"), [(id.clone(), first)]);
    storage.destroy(&id).await.expect("destroyed");
    bench.end().await;
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
    let dead = format!("{}/dead/", bench.own());
    let left = bench.pool.contents();
    assert!(!left.iter().any(|name| name.starts_with(&dead)), "{left:?}");
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
    second.close().await.expect("closed");
    assert_eq!(bench.storage.list().await.expect("a list"), std::slice::from_ref(&id));
    let elsewhere = "sandkeep-no-such-pool".parse().expect("a name");
    let refused = ZfsStorage::open(bench.data.path(), &elsewhere).err().expect("no such pool");
    assert!(matches!(refused, StorageError::Unusable { .. }), "{refused}");
    bench.storage.destroy(&id).await.expect("destroyed");
    bench.end().await;
}
