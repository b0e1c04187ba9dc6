//! Files unchanged between two snapshots are not read: a large tree with one small change costs no more than listing
//! its names.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::mount::{UnmountFlags, unmount};

use crate::{Base, BtrfsOptions, BtrfsStorage, LocalStorage, Quota, Storage, StorageError};
use sandkeep_core::{SandboxId, SnapshotId, limits};
use sandkeep_tree::diff::{Aspect, ChangeKind, Lineage, Options, compare};

const LARGE_BYTES: usize = 32 << 20;

/// What this thread has read so far.
fn bytes_read() -> u64 {
    let counters = fs::read_to_string("/proc/thread-self/io").expect("the kernel counts");
    let read = counters.lines().find_map(|line| line.strip_prefix("rchar: "));
    read.and_then(|read| read.parse().ok()).expect("a number")
}

/// Waits until the last change is older than the granularity of timestamps.
async fn until_settled(path: &Path) {
    let changed = fs::metadata(path).and_then(|metadata| metadata.modified()).expect("a file");
    let settled = changed + limits::DIFF_SETTLED + limits::SNAPSHOT_SETTLED;
    let mut ticks = tokio::time::interval(limits::SNAPSHOT_SETTLED / 50);
    while SystemTime::now() <= settled {
        ticks.tick().await;
    }
}

/// Two snapshots of a large tree with one small change in between are compared.
async fn assert_unread(storage: &dyn Storage, keeps_inodes: bool) {
    let id = SandboxId::random();
    let root = storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    fs::write(root.own_dir().join("large"), vec![7; LARGE_BYTES]).expect("a file");
    fs::write(root.own_dir().join("small"), "before").expect("a file");
    until_settled(&root.own_dir().join("large")).await;
    let since = SystemTime::now();
    let snapshots = [SnapshotId::random(), SnapshotId::random()];
    storage.snapshot(&id, &snapshots[0]).await.expect("a snapshot");
    fs::write(root.own_dir().join("small"), "later").expect("a change");
    storage.snapshot(&id, &snapshots[1]).await.expect("a snapshot");
    let from = storage.view(&id, Some(&snapshots[0])).await.expect("a view");
    let to = storage.view(&id, Some(&snapshots[1])).await.expect("a view");
    let lineage = if keeps_inodes { Lineage::SameInodes { since } } else { Lineage::Unrelated };
    let before = bytes_read();
    let diff = compare(&from, &to, &Options { lineage, ..Options::default() }).expect("a diff");
    let read = bytes_read() - before;
    let [change] = diff.changes.as_slice() else { panic!("{:?}", diff.changes) };
    assert_eq!((change.kind, change.path.shown().as_str()), (ChangeKind::Modified, "small"));
    assert_eq!(change.differs, [Aspect::Content]);
    assert!(read < 1 << 20, "{read} bytes were read to find one small change");
    drop((from, to));
    storage.destroy(&id).await.expect("destroyed");
}

#[tokio::test]
async fn files_that_snapshots_on_local_share_are_not_read() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_unread(&LocalStorage::open(dir.path()).expect("local"), false).await;
}

/// Releases the pool however the test ends.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        while unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

#[tokio::test]
async fn files_that_nobody_touched_on_btrfs_are_not_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let _mounted = Mounted(dir.path().join("storage/btrfs"));
    let options = BtrfsOptions { image_bytes: Some(256 << 20), image_max_bytes: None };
    match BtrfsStorage::open(dir.path(), &options) {
        Ok(storage) => assert_unread(&storage, true).await,
        Err(StorageError::Unusable { reason, .. }) => {
            eprintln!("SKIP files_that_nobody_touched_on_btrfs_are_not_read: {reason}");
        }
        Err(error) => panic!("{error:?}"),
    }
}
