//! Plain directories: removing a tree that a hostile user has created.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::sync::Arc;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags, openat};
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tempfile::TempDir;

use super::*;
use crate::Storage as _;
use crate::conformance::{Reopen, StorageUnderTest, crashes, run};
use sandkeep_core::SnapshotId;

/// A crash after mkdir and before chmod.
pub fn half_make(dir: &Path, id: &SandboxId) {
    DirBuilder::new().mode(0o700).create(dir.join(id.as_str())).expect("a directory");
}

pub fn reopen(data_dir: &Path) -> Reopen {
    let data_dir = data_dir.to_owned();
    Arc::new(move || Arc::new(LocalStorage::open(&data_dir).expect("open again")))
}

fn storage() -> (TempDir, LocalStorage) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let storage = LocalStorage::open(dir.path()).expect("local storage works everywhere");
    (dir, storage)
}

async fn volume(storage: &LocalStorage) -> (SandboxId, PathBuf) {
    let id = SandboxId::random();
    let root = storage.create(&id, &Base::Empty, &Quota::NONE).await.expect("a volume");
    (id, root.own_dir().to_owned())
}

fn trash(dir: &TempDir) -> PathBuf {
    dir.path().join("storage/local/.trash")
}

fn is_empty(path: &Path) -> bool {
    fs::read_dir(path).expect("a directory").next().is_none()
}

#[tokio::test(flavor = "multi_thread")]
async fn local_storage_keeps_every_promise() {
    let (dir, storage) = storage();
    let subject =
        StorageUnderTest { storage: Arc::new(storage), half_make, reopen: reopen(dir.path()) };
    run(subject).await.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(is_empty(&trash(&dir)), "something is left in the trash");
}

#[tokio::test]
async fn a_tree_deeper_than_any_path_is_measured_and_removed() {
    let (dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = open(&path, flags, Mode::empty()).expect("the volume");
    for _ in 0..3000 {
        mkdirat(&at, c"d", Mode::RWXU).expect("a directory");
        at = openat(&at, c"d", flags, Mode::empty()).expect("the directory");
    }
    drop(at);
    storage.usage(&id).await.expect("a measure");
    storage.destroy(&id).await.expect("destroy");
    assert!(!path.exists() && is_empty(&trash(&dir)));
}

#[tokio::test]
async fn what_a_crash_left_in_the_trash_is_swept_when_opened() {
    let (dir, storage) = storage();
    let (_, path) = volume(&storage).await;
    fs::create_dir_all(path.join("a/b")).expect("directories");
    fs::rename(&path, trash(&dir).join("half-removed")).expect("rename");
    drop(storage);
    LocalStorage::open(dir.path()).expect("open again");
    assert!(is_empty(&trash(&dir)));
}

fn set_flags(path: &Path, flags: IFlags) -> rustix::io::Result<()> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let kept = ioctl_getflags(&file)?.difference(IFlags::IMMUTABLE);
    ioctl_setflags(&file, kept | flags)
}

#[tokio::test]
async fn an_immutable_file_is_reported_and_the_rest_is_removed() {
    let (dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    fs::create_dir_all(path.join("a/b")).expect("directories");
    fs::write(path.join("a/stays"), "x").expect("a file");
    fs::write(path.join("a/b/goes"), "x").expect("a file");
    if let Err(error) = set_flags(&path.join("a/stays"), IFlags::IMMUTABLE) {
        eprintln!(
            "SKIP an_immutable_file_is_reported_and_the_rest_is_removed: cannot be set: {error}"
        );
        return;
    }
    let error = storage.destroy(&id).await.expect_err("an immutable file cannot be removed");
    let trashed = fs::read_dir(trash(&dir)).expect("the trash").next().expect("it is there");
    let top = trashed.expect("an entry").path();
    set_flags(&top.join("a/stays"), IFlags::empty()).expect("made removable again");
    assert!(matches!(error, StorageError::Io { .. }), "{error:?}");
    let left: Vec<_> = fs::read_dir(&top).expect("a directory").collect();
    assert_eq!(left.len(), 1, "more stays than what is in the way: {left:?}");
    assert!(!storage.list().await.expect("list").contains(&id));
    LocalStorage::open(dir.path()).expect("open again");
    assert!(is_empty(&trash(&dir)));
}

/// Unmounts even when the test fails.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[tokio::test]
async fn destroy_never_crosses_a_mount() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIP destroy_never_crosses_a_mount: mounting needs root");
        return;
    }
    let outside = tempfile::tempdir().expect("a temporary directory");
    fs::write(outside.path().join("file"), "kept").expect("a file");
    let (dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    let below = path.join("a");
    fs::create_dir(&below).expect("a directory");
    mount_bind(outside.path(), &below).expect("a bind mount");
    let first = Mounted(below);
    storage.destroy(&id).await.expect_err("a mount is in the way");
    assert!(outside.path().join("file").exists(), "destroy reached through the mount");
    let trashed = fs::read_dir(trash(&dir)).expect("the trash").next().expect("it is there");
    // The mount moved with the directory it is on.
    drop(Mounted(trashed.expect("an entry").path().join("a")));
    drop(first);
    LocalStorage::open(dir.path()).expect("open again");
    assert!(is_empty(&trash(&dir)));
}

#[test]
fn a_crash_at_any_point_leaves_whole_snapshots_and_volumes() {
    let (dir, _) = storage();
    let place = dir.path().join("storage/local");
    let rooms = ["", ".above", ".snapshots", ".drafts", ".trash"].map(|room| place.join(room));
    let open = || LocalStorage::open(dir.path()).expect("local storage works everywhere");
    crashes::survives_every_point(open, &rooms);
}

/// The blocks of a file, and how many names it has.
fn blocks_and_names(path: PathBuf) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::metadata(path).expect("a file");
    (metadata.ino(), metadata.nlink())
}

/// Makes a file look as if it had not been changed for long.
async fn until_settled(path: &Path) {
    let changed = || {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).expect("a file").ctime()
    };
    let settled = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.expect("after 1970").as_secs().cast_signed()
    };
    let grain = sandkeep_core::limits::SNAPSHOT_SETTLED.as_secs().cast_signed() + 1;
    while settled() <= changed() + grain {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn what_did_not_change_is_not_copied_again() {
    let (dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    fs::create_dir(path.join("directory")).expect("a directory");
    for name in ["same", "directory/same", "changed", "touched"] {
        fs::write(path.join(name), "12345").expect("a file");
    }
    fs::hard_link(path.join("same"), path.join("twin")).expect("a second name");
    until_settled(&path.join("touched")).await;
    let snapshots = [SnapshotId::random(), SnapshotId::random(), SnapshotId::random()];
    let trees = snapshots.clone().map(|snapshot| {
        dir.path().join("storage/local/.snapshots").join(id.as_str()).join(snapshot.as_str())
    });
    storage.snapshot(&id, &snapshots[0]).await.expect("a snapshot");
    // The same length at another time, and the same time with another length.
    fs::write(path.join("changed"), "54321").expect("a change");
    fs::set_permissions(path.join("touched"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("a mode");
    storage.snapshot(&id, &snapshots[1]).await.expect("a snapshot");
    let [first, second, third] = trees.map(|tree| tree.join("tree"));
    for name in ["same", "directory/same"] {
        assert_eq!(
            blocks_and_names(first.join(name)),
            blocks_and_names(second.join(name)),
            "{name}"
        );
        assert_ne!(blocks_and_names(first.join(name)).0, blocks_and_names(path.join(name)).0);
    }
    assert_eq!(blocks_and_names(first.join("same")).1, 4, "two names in two snapshots");
    for name in ["changed", "touched"] {
        assert_ne!(blocks_and_names(first.join(name)).0, blocks_and_names(second.join(name)).0);
    }
    assert_eq!(fs::read(first.join("changed")).expect("a file"), b"12345");
    assert_eq!(fs::read(second.join("changed")).expect("a file"), b"54321");
    // "changed" has only just changed, so it is copied again although it is the same.
    storage.snapshot(&id, &snapshots[2]).await.expect("a snapshot");
    assert_ne!(
        blocks_and_names(second.join("changed")).0,
        blocks_and_names(third.join("changed")).0
    );
    storage.delete_snapshot(&id, &snapshots[0]).await.expect("delete");
    assert_eq!(fs::read(second.join("same")).expect("a file"), b"12345");
    storage.destroy(&id).await.expect("destroy");
}

#[tokio::test]
async fn many_files_with_several_names_are_copied_with_few_descriptors() {
    let (_dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    // More than a process may have open by default.
    for n in 0..1200 {
        let (one, other) = (path.join(format!("{n}")), path.join(format!("{n}-twin")));
        fs::write(&one, "").expect("a file");
        fs::hard_link(one, other).expect("a second name");
    }
    let before = fs::read_dir("/proc/self/fd").expect("descriptors").count();
    storage.snapshot(&id, &SnapshotId::random()).await.expect("a snapshot");
    let after = fs::read_dir("/proc/self/fd").expect("descriptors").count();
    assert!(after <= before + 8, "{before} descriptors became {after}");
    storage.destroy(&id).await.expect("destroy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_for_a_volume_are_broken_off_and_leave_nothing() {
    let (dir, storage) = storage();
    let (id, path) = volume(&storage).await;
    for number in 0..20_000 {
        fs::write(path.join(number.to_string()), "x").expect("a file");
    }
    let whole = SnapshotId::random();
    storage.snapshot(&id, &whole).await.expect("nobody breaks it off");
    let storage = Arc::new(storage);
    let (snapshot, fork) = (SnapshotId::random(), SandboxId::random());
    let broken =
        |of: SandboxId, work: Box<dyn Future<Output = Result<(), StorageError>> + Send>| {
            let storage = Arc::clone(&storage);
            async move {
                let mut work = Box::into_pin(work);
                let failed = loop {
                    tokio::select! {
                        biased;
                        done = &mut work => break done,
                        () = tokio::task::yield_now() => storage.break_off(&of),
                    }
                };
                let said = failed.expect_err("it was broken off").to_string();
                assert!(said.contains(of.as_str()), "{said}");
            }
        };
    // Nothing of an earlier one is shared, so that there is much to copy.
    for number in 0..20_000 {
        fs::write(path.join(number.to_string()), "changed").expect("a file");
    }
    let (by, of) = (Arc::clone(&storage), id.clone());
    let work = async move { by.snapshot(&of, &snapshot).await };
    broken(id.clone(), Box::new(work)).await;
    let (by, of, from) = (Arc::clone(&storage), id.clone(), whole.clone());
    let work = async move { by.rollback(&of, &from).await.map(drop) };
    broken(id.clone(), Box::new(work)).await;
    let (by, new, of, from) = (Arc::clone(&storage), fork.clone(), id.clone(), whole.clone());
    let work = async move { by.fork(&of, &from, &new, &Quota::NONE).await.map(drop) };
    broken(fork.clone(), Box::new(work)).await;
    assert!(is_empty(&dir.path().join("storage/local/.drafts")), "a draft is left");
    let content = fs::read_to_string(path.join("7")).expect("the volume is as it was");
    assert_eq!(content, "changed");
    storage.fork(&id, &whole, &fork, &Quota::NONE).await.expect("a later one is not affected");
}
