//! The limit of a tree whose volume has snapshots.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use super::{DataDir, pool};
use crate::{Base, BtrfsStorage, Limit, Quota, Storage as _};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_sys::btrfs::{
    self,
    holding::{Epochs, holding},
};

const MIB: u64 = 1 << 20;

/// Incompressible bytes.
fn fill(path: &Path, mib: u64) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    let mut block = vec![0; MIB as usize];
    for _ in 0..mib {
        getrandom::fill(&mut block).expect("random bytes");
        file.write_all(&block)?;
    }
    file.sync_all()
}

fn is_refused(written: &io::Result<()>) -> bool {
    matches!(
        written.as_ref().map_err(io::Error::kind),
        Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
    )
}

struct Tree {
    _dir: DataDir,
    storage: BtrfsStorage,
    id: SandboxId,
}

impl Tree {
    /// A volume with these limits, in MiB; `None` with the reason printed.
    async fn new(test: &str, tree_mib: u64, total_mib: Option<u64>) -> Option<Self> {
        let (dir, storage) = pool(test)?;
        let id = SandboxId::random();
        let quota =
            Quota { tree_bytes: Some(tree_mib * MIB), total_bytes: total_mib.map(|mib| mib * MIB) };
        storage.create(&id, &Base::Empty, &quota).await.expect("a volume");
        Some(Self { _dir: dir, storage, id })
    }

    fn fill(&self, name: &str, mib: u64) -> io::Result<()> {
        fill(&self.storage.inner.pool.volume_path(&self.id).join(name), mib)
    }

    fn remove(&self, name: &str) {
        let path = self.storage.inner.pool.volume_path(&self.id).join(name);
        fs::remove_file(path).expect("it is there");
    }

    /// Like the daemon: the limit is updated when the sandbox runs again.
    async fn snapshot(&self) -> SnapshotId {
        let snapshot = SnapshotId::random();
        self.storage.snapshot(&self.id, &snapshot).await.expect("a snapshot");
        self.tend().await;
        snapshot
    }

    async fn tend(&self) {
        self.storage.tend(Some(&self.id)).await.expect("look after it");
        self.storage.tend(None).await.expect("look after all");
    }

    async fn used_mib(&self) -> u64 {
        self.storage.usage(&self.id).await.expect("usage").tree.used_bytes / MIB
    }
}

macro_rules! tree_or_skip {
    ($test:literal, $tree:expr, $total:expr) => {
        match Tree::new($test, $tree, $total).await {
            Some(tree) => tree,
            None => return,
        }
    };
}

#[tokio::test]
async fn what_only_snapshots_have_is_no_part_of_the_tree() {
    let tree = tree_or_skip!("what_only_snapshots_have_is_no_part_of_the_tree", 48, None);
    for turn in 0..5 {
        let written = tree.fill("file", 28);
        written.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        tree.snapshot().await;
        let used = tree.used_mib().await;
        assert!((28..34).contains(&used), "turn {turn}: {used} MiB are told");
    }
    let usage = tree.storage.usage(&tree.id).await.expect("usage");
    assert_eq!(usage.tree.limit_bytes, Some(48 * MIB));
    assert!(usage.total.used_bytes >= 5 * 28 * MIB, "{usage:?}");
}

/// Written in place, piece by piece, with scans in between: at no moment does the tree hold more than the file.
#[tokio::test]
async fn a_file_that_is_written_anew_piece_by_piece_is_not_too_much() {
    let tree =
        tree_or_skip!("a_file_that_is_written_anew_piece_by_piece_is_not_too_much", 40, None);
    tree.fill("file", 32).expect("within");
    tree.snapshot().await;
    let path = tree.storage.inner.pool.volume_path(&tree.id).join("file");
    for round in 0..2 {
        let mut file = fs::File::options().write(true).open(&path).expect("the file");
        for piece in 0..4 {
            let written = file.write_all(&vec![7 + round; 8 << 20]).and_then(|()| file.sync_all());
            written.unwrap_or_else(|error| panic!("round {round}, piece {piece}: {error}"));
            tree.tend().await;
        }
        tree.snapshot().await;
    }
    let used = tree.used_mib().await;
    assert!((32..38).contains(&used), "{used} MiB are told");
}

#[tokio::test]
async fn a_tree_that_keeps_too_much_can_write_no_more_until_it_keeps_less() {
    let tree =
        tree_or_skip!("a_tree_that_keeps_too_much_can_write_no_more_until_it_keeps_less", 32, None);
    tree.fill("first", 24).expect("within");
    tree.snapshot().await;
    // Until a scan this cannot be distinguished from rewriting the first.
    tree.fill("second", 24).expect("what a snapshot has can be written anew");
    tree.tend().await;
    let refused = tree.fill("third", 4);
    assert!(is_refused(&refused), "48 MiB in a tree of 32, and then {refused:?}");
    let usage = tree.storage.usage(&tree.id).await.expect("usage");
    assert_eq!(usage.exceeded_by(MIB), Some(Limit::Tree), "{usage:?}");
    tree.snapshot().await;
    let refused = tree.fill("third", 4);
    assert!(is_refused(&refused), "a snapshot made room: {refused:?}");
    tree.remove("first");
    tree.tend().await;
    tree.fill("third", 4).expect("24 MiB are left of 48");
    tree.tend().await;
    let used = tree.used_mib().await;
    assert!((27..34).contains(&used), "{used} MiB are told");
}

/// A new clone needs a few writes before it can be started.
#[tokio::test]
async fn a_clone_of_a_tree_that_keeps_too_much_can_begin_and_write_little_more() {
    let test = "a_clone_of_a_tree_that_keeps_too_much_can_begin_and_write_little_more";
    let Some(tree) = Tree::new(test, 16, Some(64)).await else { return };
    tree.fill("first", 12).expect("within");
    tree.snapshot().await;
    tree.fill("second", 12).expect("what a snapshot has can be written anew");
    tree.tend().await;
    let snapshot = tree.snapshot().await;
    let fork = SandboxId::random();
    // As much as it holds may be in the fork in all.
    let quota = Quota { tree_bytes: Some(16 * MIB), total_bytes: Some(24 * MIB) };
    let forked = tree.storage.fork(&tree.id, &snapshot, &fork, &quota).await.expect("a fork");
    let back = tree.storage.rollback(&tree.id, &snapshot).await.expect("rolled back");
    for (id, root) in [(&fork, forked), (&tree.id, back)] {
        let at = |name: &str| root.own_dir().join(name);
        fs::write(at("identity"), "its own").expect("a small file");
        tree.storage.tend(Some(id)).await.expect("look after it");
        fs::write(at("identity"), "its own, again").expect("a small file");
        let refused = fill(&at("third"), 4);
        assert!(is_refused(&refused), "24 MiB in a tree of 16, and then {refused:?}");
        // It may or may not exist.
        let _ = fs::remove_file(at("third"));
        for name in ["first", "second"] {
            fs::remove_file(at(name)).expect("what is there can be removed");
        }
    }
    tree.tend().await;
    tree.fill("third", 12).expect("next to nothing is left of 24 MiB");
}

#[tokio::test]
async fn a_snapshot_that_goes_takes_its_room_along() {
    let tree = tree_or_skip!("a_snapshot_that_goes_takes_its_room_along", 32, None);
    tree.fill("first", 24).expect("within");
    let snapshot = tree.snapshot().await;
    tree.storage.delete_snapshot(&tree.id, &snapshot).await.expect("removed");
    let refused = tree.fill("second", 12);
    assert!(is_refused(&refused), "36 MiB in a tree of 32: {refused:?}");
}

#[tokio::test]
async fn after_a_rollback_all_can_be_written_anew() {
    let tree = tree_or_skip!("after_a_rollback_all_can_be_written_anew", 32, None);
    tree.fill("file", 24).expect("within");
    let snapshot = tree.snapshot().await;
    for _ in 0..3 {
        tree.fill("file", 24).expect("anew");
        tree.storage.rollback(&tree.id, &snapshot).await.expect("rolled back");
        tree.tend().await;
    }
    tree.fill("file", 24).expect("anew");
    let used = tree.used_mib().await;
    assert!((24..52).contains(&used), "{used} MiB are told");
}

#[tokio::test]
async fn tree_and_snapshots_hold_no_more_than_they_may() {
    let tree = tree_or_skip!("tree_and_snapshots_hold_no_more_than_they_may", 48, Some(64));
    let mut refused = Ok(());
    for _ in 0..3 {
        refused = tree.fill("file", 28);
        if refused.is_err() {
            break;
        }
        tree.snapshot().await;
    }
    assert!(is_refused(&refused), "84 MiB where 64 may be: {refused:?}");
    let usage = tree.storage.usage(&tree.id).await.expect("usage");
    assert!(usage.total.used_bytes <= 64 * MIB, "{usage:?}");
    assert_eq!(usage.exceeded_by(MIB), Some(Limit::Total), "{usage:?}");
}

/// Small files are in the tree's own blocks, of which a scan sees only the used part.
#[tokio::test]
async fn a_look_counts_about_what_is_charged() {
    let tree = tree_or_skip!("a_look_counts_about_what_is_charged", 200, None);
    let path = tree.storage.inner.pool.volume_path(&tree.id);
    for file in 0..4_000 {
        fs::write(path.join(format!("{file}")), vec![7; 1_500]).expect("a file");
    }
    tree.fill("large", 4).expect("within");
    let root = fs::File::open(&path).expect("the volume");
    rustix::fs::syncfs(&root).expect("sync");
    let charged = tree.storage.usage(&tree.id).await.expect("usage").tree.used_bytes;
    let found = holding(&root, Epochs { base: 0, shared: 0 }).expect("a look");
    assert_eq!(found.bytes, found.own_bytes, "nobody else has any of it");
    assert!(found.bytes > charged / 3 * 2 && found.bytes < charged / 2 * 3, "{found:?}, {charged}");
    let now = btrfs::subvolume(&root).expect("the subvolume").made + 1_000_000;
    let shared = holding(&root, Epochs { base: 0, shared: now }).expect("a look");
    assert_eq!(shared.own_bytes, 0, "{shared:?}");
}
