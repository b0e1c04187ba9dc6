//! A pool starts small and grows on demand, on disks with and without free space.

use std::fs;
use std::io::{self, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::PoolHealth;
use crate::btrfs::{room::Need, size::Sizing};
use rustix::mount::mount_remount;
use sandkeep_core::failpoint::simulated;

const MIB: u64 = 1 << 20;

/// Starts with 256 MiB.
fn up_to(mib: u64) -> BtrfsOptions {
    BtrfsOptions { image_max_bytes: Some(mib * MIB), ..SMALL }
}

/// Opened without the thread that watches the pool, so that a test decides when it grows.
fn unwatched(test: &str, dir: &DataDir, options: &BtrfsOptions) -> Option<BtrfsStorage> {
    opened(test, Btrfs::open(dir.path(), options).map(Offloaded::new))
}

fn write(path: &Path, mib: u64) -> io::Result<()> {
    let (mut file, piece) = (File::create(path)?, vec![7; MIB as usize]);
    (0..mib).try_for_each(|_| file.write_all(&piece))?;
    file.sync_all()
}

fn is_as_written(path: &Path) -> bool {
    fs::read(path).expect("the file").iter().all(|byte| *byte == 7)
}

fn sizing(storage: &BtrfsStorage) -> &Sizing {
    storage.inner.pool.sizing.as_ref().expect("a pool that is not fixed")
}

/// The sizes of the image and of its file system, which are the same when it is not being resized.
fn sizes(dir: &DataDir) -> [u64; 2] {
    let mounted = File::open(dir.mount_point()).expect("the pool");
    let filesystem = PoolHealth::of(mounted).expect("its size").total_bytes;
    [dir.image().metadata().expect("metadata").len(), filesystem]
}

fn assert_not_sparse(dir: &DataDir) {
    let metadata = dir.image().metadata().expect("metadata");
    assert!(metadata.blocks() * 512 >= metadata.len(), "only {} blocks", metadata.blocks());
}

#[tokio::test]
async fn a_new_pool_takes_at_most_a_gibibyte_of_the_disk() {
    let (test, dir) = ("a_new_pool_takes_at_most_a_gibibyte_of_the_disk", DataDir::new());
    let opened = opened(test, BtrfsStorage::open(dir.path(), &BtrfsOptions::default()));
    let Some(storage) = opened else { return };
    let metadata = dir.image().metadata().expect("metadata");
    assert!(metadata.blocks() * 512 <= (1024 + 1) * MIB, "{} blocks", metadata.blocks());
    assert_not_sparse(&dir);
    let health = storage.pool_health().await.expect("health");
    let disk = PoolHealth::of(dir.image()).expect("the disk");
    let whole = health.free_bytes >= disk.free_bytes.saturating_sub(2048 * MIB);
    assert!(whole || disk.free_bytes > 256 << 30, "what it can grow by is not free: {health:?}");
}

#[tokio::test]
async fn a_pool_grows_before_it_is_full_and_no_further_than_it_may() {
    let (test, dir) = ("a_pool_grows_before_it_is_full_and_no_further_than_it_may", DataDir::new());
    let Some(storage) = unwatched(test, &dir, &up_to(500)) else { return };
    let (_, path) = volume(&storage).await;
    write(&path.join("first"), 32).expect("there is room");
    sizing(&storage).keep_room().expect("room");
    assert_eq!(sizes(&dir), [256 * MIB; 2], "it grew without need");
    assert_eq!(storage.pool_health().await.expect("health").total_bytes, 500 * MIB);
    for part in 0..13 {
        write(&path.join(format!("{part}")), 28).expect("there is room");
        sizing(&storage).keep_room().expect("room");
    }
    assert_eq!(sizes(&dir), [500 * MIB; 2]);
    assert_not_sparse(&dir);
    assert!(is_as_written(&path.join("first")), "what was there before it grew is lost");
}

/// The default size of a sandbox, written as fast as the machine can, from the first moment on.
#[tokio::test]
async fn a_fast_writer_never_outruns_a_pool_that_can_grow() {
    let (test, dir) = ("a_fast_writer_never_outruns_a_pool_that_can_grow", DataDir::new());
    let opened = opened(test, BtrfsStorage::open(dir.path(), &BtrfsOptions::default()));
    let Some(storage) = opened else { return };
    let disk = PoolHealth::of(dir.image()).expect("the disk");
    if disk.free_bytes < 8 << 30 {
        return eprintln!("SKIP {test}: the disk has less than 8 GiB free");
    }
    let id = SandboxId::random();
    let quota = Quota::of_tree(4096 * MIB);
    let root = storage.create(&id, &Base::Empty, &quota).await.expect("a volume");
    let path = root.own_dir().join("file");
    write(&path, 4000).expect("the disk has room, and so has the quota");
    assert_not_sparse(&dir);
    let refused = write(&root.own_dir().join("more"), 200).expect_err("the quota holds");
    assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded, "{refused}");
    storage.destroy(&id).await.expect("destroyed");
}

#[tokio::test]
async fn a_pool_that_was_killed_while_it_grew_is_whole_when_opened() {
    let test = "a_pool_that_was_killed_while_it_grew_is_whole_when_opened";
    for point in ["btrfs.grow_after_file", "btrfs.grow_after_device"] {
        let dir = DataDir::new();
        let Some(storage) = unwatched(test, &dir, &up_to(2048)) else { return };
        let (_, path) = volume(&storage).await;
        write(&path.join("file"), 180).expect("there is room");
        simulated::arm(point);
        catch_unwind(AssertUnwindSafe(|| sizing(&storage).keep_room())).expect_err("it grew");
        let _again = unwatched(test, &dir, &up_to(2048)).expect("open again");
        assert_eq!(sizes(&dir), [512 * MIB; 2], "{point}");
        assert!(is_as_written(&path.join("file")), "{point}");
    }
}

fn blocks_bytes(dir: &DataDir) -> u64 {
    dir.image().metadata().expect("metadata").blocks() * 512
}

/// A pool that grew for a file that is gone.
async fn spare(test: &str, dir: &DataDir, kept: &str) -> Option<(BtrfsStorage, PathBuf)> {
    let storage = unwatched(test, dir, &up_to(2048))?;
    let (_, path) = volume(&storage).await;
    write(&path.join(kept), 40).expect("there is room");
    for part in 0..20 {
        write(&path.join(format!("{part}")), 30).expect("there is room");
        sizing(&storage).keep_room().expect("room");
    }
    assert_not_sparse(dir);
    (0..20).for_each(|part| fs::remove_file(path.join(format!("{part}"))).expect("ours"));
    // The kernel removes empty chunks after the next regular commit, which is half a minute away by default.
    mount_remount(dir.mount_point(), MountFlags::empty(), c"nodiscard,commit=1").expect("remount");
    let deadline = Instant::now() + Duration::from_secs(60);
    while sizing(&storage).keep_room().expect("room") != Need::Less {
        assert!(Instant::now() < deadline, "the removed files still take their space");
        fs::write(path.join("now"), format!("{:?}", Instant::now())).expect("a file");
        std::thread::yield_now();
    }
    Some((storage, path))
}

#[tokio::test]
async fn a_pool_gives_back_what_it_does_not_need_and_takes_it_again() {
    let (test, dir) =
        ("a_pool_gives_back_what_it_does_not_need_and_takes_it_again", DataDir::new());
    let Some((storage, path)) = spare(test, &dir, "kept").await else { return };
    let (before, sizes_before) = (blocks_bytes(&dir), sizes(&dir));
    let free = |health: PoolHealth| health.free_bytes;
    let free_before = free(storage.pool_health().await.expect("health"));
    sizing(&storage).give_back().expect("given back");
    let after = blocks_bytes(&dir);
    assert!(after + 256 * MIB <= before, "it had {before} bytes and has {after}");
    assert_eq!(sizes(&dir), sizes_before, "the filesystem keeps its size");
    let free_after = free(storage.pool_health().await.expect("health"));
    assert!(free_after.abs_diff(free_before) < 64 * MIB, "{free_after}, and {free_before} before");
    drop(storage);
    let storage = unwatched(test, &dir, &up_to(2048)).expect("open again");
    for part in 0..20 {
        write(&path.join(format!("{part}")), 30).expect("there is room");
        sizing(&storage).keep_room().expect("room");
    }
    assert!(blocks_bytes(&dir) > after + 256 * MIB, "nothing was taken back");
    assert!((0..20).all(|part| is_as_written(&path.join(format!("{part}")))));
    assert!(is_as_written(&path.join("kept")));
}

#[tokio::test]
async fn a_pool_that_was_killed_while_it_gave_back_is_whole_when_opened() {
    let test = "a_pool_that_was_killed_while_it_gave_back_is_whole_when_opened";
    let points =
        ["btrfs.inflate_after_file", "btrfs.inflate_after_holes", "btrfs.deflate_after_blocks"];
    for point in points {
        let dir = DataDir::new();
        let Some((storage, path)) = spare(test, &dir, "kept").await else { return };
        if point.starts_with("btrfs.deflate") {
            sizing(&storage).give_back().expect("given back");
        }
        simulated::arm(point);
        let killed = catch_unwind(AssertUnwindSafe(|| {
            sizing(&storage).give_back().expect("given back");
            for part in 0..20 {
                write(&path.join(format!("{part}")), 30).expect("there is room");
                sizing(&storage).keep_room().expect("room");
            }
        }));
        killed.expect_err(point);
        drop(storage);
        let storage = unwatched(test, &dir, &up_to(2048)).expect("open again");
        for part in 0..30 {
            write(&path.join(format!("{part}")), 30).expect("there is room");
            sizing(&storage).keep_room().expect("room");
        }
        assert!((0..30).all(|part| is_as_written(&path.join(format!("{part}")))), "{point}");
        assert!(is_as_written(&path.join("kept")), "{point}");
    }
}

#[tokio::test]
async fn what_a_pool_gave_back_may_be_used_up_by_others() {
    let test = "what_a_pool_gave_back_may_be_used_up_by_others";
    let Some(dir) = small_disk(test, 3000) else { return };
    let Some((storage, path)) = spare(test, &dir, "kept").await else { return };
    let before = blocks_bytes(&dir);
    sizing(&storage).give_back().expect("given back");
    let given = before - blocks_bytes(&dir);
    assert!(given >= 256 * MIB, "only {given} bytes");
    let other = dir.path().join("other");
    let filled = write(&other, 3000).expect_err("the disk is full");
    assert_eq!(filled.kind(), io::ErrorKind::StorageFull);
    assert!(other.metadata().expect("metadata").len() > (3000 * MIB - before) + given - 32 * MIB);
    let mut refused = None;
    for part in 0..60 {
        let kept = sizing(&storage).keep_room();
        kept.expect("a full disk is no error of the pool");
        refused = write(&path.join(format!("{part}")), 30).err();
        if refused.is_some() {
            break;
        }
    }
    let refused = refused.expect("the pool is full, too");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    let health = storage.pool_health().await.expect("health");
    assert!(health.free_bytes < 64 * MIB, "{health:?} is not full");
    fs::remove_file(path.join("0")).expect("the pool can still be written");
    write(&path.join("0"), 20).expect("the pool has this room");
    assert!(is_as_written(&path.join("0")) && is_as_written(&path.join("kept")));
    fs::remove_file(other).expect("ours");
    sizing(&storage).keep_room().expect("room");
    write(&path.join("more"), 60).expect("the pool has its space again");
}

/// A data directory on a separate disk of this size.
fn small_disk(test: &str, mib: u64) -> Option<DataDir> {
    let dir = DataDir::new();
    let size = std::ffi::CString::new(format!("size={mib}m")).expect("no NUL");
    match mount("none", dir.path(), "tmpfs", MountFlags::empty(), Some(size.as_c_str())) {
        Ok(()) => Some(dir),
        Err(error) => {
            eprintln!("SKIP {test}: cannot mount a tmpfs: {error}");
            None
        }
    }
}

#[tokio::test]
async fn a_full_disk_ends_the_growth_of_a_pool_and_never_its_life() {
    let test = "a_full_disk_ends_the_growth_of_a_pool_and_never_its_life";
    let Some(dir) = small_disk(test, 1600) else { return };
    let opened = opened(test, BtrfsStorage::open(dir.path(), &BtrfsOptions::default()));
    let Some(storage) = opened else { return };
    let (_, path) = volume(&storage).await;
    // Another process fills the disk.
    let other = dir.path().join("other");
    let filled = write(&other, 1600).expect_err("the disk is full");
    assert_eq!(filled.kind(), io::ErrorKind::StorageFull);
    let refused = write(&path.join("file"), 400).expect_err("the pool cannot grow");
    assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
    let health = storage.pool_health().await.expect("health");
    assert!(health.free_bytes < health.total_bytes / 20, "{health:?} is not full");
    fs::remove_file(path.join("file")).expect("the pool can still be written");
    // All of its blocks are its own, whoever fills the disk.
    write(&path.join("file"), 100).expect("the pool has this room");
    assert!(is_as_written(&path.join("file")));
    fs::remove_file(other).expect("ours");
    write(&path.join("more"), 250).expect("the pool grows again");
}

#[tokio::test]
async fn what_was_removed_is_free_once_it_is_reclaimed() {
    let (test, dir) = ("what_was_removed_is_free_once_it_is_reclaimed", DataDir::new());
    let Some(storage) = unwatched(test, &dir, &SMALL) else { return };
    let free = async || storage.pool_health().await.expect("health").free_bytes;
    let before = free().await;
    let (id, path) = volume(&storage).await;
    write(&path.join("large"), 64).expect("there is room");
    storage.destroy(&id).await.expect("destroyed");
    storage.reclaim().await.expect("reclaimed");
    let after = free().await;
    assert!(after + 8 * MIB > before, "{} of {} MiB are free", after / MIB, before / MIB);
    storage.reclaim().await.expect("nothing to do");
}

#[tokio::test]
async fn a_pool_that_is_short_of_room_frees_what_was_removed_by_itself() {
    let test = "a_pool_that_is_short_of_room_frees_what_was_removed_by_itself";
    let dir = DataDir::new();
    let Some(storage) = opened(test, BtrfsStorage::open(dir.path(), &SMALL)) else { return };
    let free = async || storage.pool_health().await.expect("health").free_bytes;
    let (kept, path) = volume(&storage).await;
    write(&path.join("most"), 100).expect("there is room");
    write(&path.join("goes"), 64).expect("there is room");
    let full = free().await;
    fs::remove_file(path.join("goes")).expect("removed");
    // The kernel alone would take half a minute.
    let begun = Instant::now();
    while free().await < full + 60 * MIB {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing was freed");
        tokio::task::yield_now().await;
    }
    storage.destroy(&kept).await.expect("destroyed");
}
