//! Snapshots never change, and clones have their content.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{XattrFlags, setxattr};

use super::filling::{MIB, fill};
use super::fixture::random_layer;
use super::layers::{clear, fill_with_everything, two_layers, volume};
use super::view::{FileFacts, View};
use super::{Failure, StorageUnderTest, Verdict, ensure, make};
use crate::{Base, LayerId, Limit, Quota, StorageError};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_tree::{Root, TreePath};

/// The facts about a volume, by path.
type Tale = BTreeMap<PathBuf, FileFacts>;

/// A volume above layers that is fully captured in a snapshot, and then changed in every way.
struct Taken {
    layers: Vec<LayerId>,
    id: SandboxId,
    snapshot: SnapshotId,
    before: Tale,
    after: Tale,
}

async fn take(subject: &StorageUnderTest) -> Result<Taken, Failure> {
    let layers = two_layers(subject).await?;
    let (id, root) = volume(subject, &layers).await?;
    let view = View::open(&root)?;
    fill_with_everything(&view)?;
    fs::write(view.join("same"), "first")?;
    let before = view.tell()?;
    drop(view);
    let snapshot = SnapshotId::random();
    subject.storage.snapshot(&id, &snapshot).await?;
    let view = View::open(&root)?;
    change_everything(&view)?;
    let after = view.tell()?;
    Ok(Taken { layers, id, snapshot, before, after })
}

fn change_everything(view: &View) -> io::Result<()> {
    fs::write(view.join("same"), "later")?;
    fs::write(view.join("linked"), "a name less")?;
    fs::remove_file(view.join("dir/linked"))?;
    fs::remove_file(view.join("sparse"))?;
    fs::write(view.join("both"), "back again")?;
    fs::rename(view.join("odd"), view.join("renamed"))?;
    setxattr(view.join("renamed"), "user.note", b"changed", XattrFlags::empty())?;
    fs::create_dir(view.join("new"))?;
    fs::write(view.join("new/file"), "new")?;
    fs::set_permissions(view.path(), fs::Permissions::from_mode(0o750))
}

fn ensure_same(what: &str, found: &Tale, expected: &Tale) -> Verdict {
    for (path, told) in expected {
        let now = found.get(path);
        ensure!(now == Some(told), "in {what} {path:?} was {told:?}, is {now:?}");
    }
    ensure!(found.len() == expected.len(), "{what} holds {:?}", found.keys());
    Ok(())
}

/// The content of a mounted root.
fn tell(root: &Root) -> Result<Tale, Failure> {
    Ok(View::open(root)?.tell()?)
}

/// The content of a snapshot below a path.
async fn held(
    subject: &StorageUnderTest,
    id: &SandboxId,
    snapshot: &SnapshotId,
    path: &str,
) -> Result<Option<String>, Failure> {
    let view = subject.storage.view(id, Some(snapshot)).await?;
    let path = TreePath::clean(path.as_bytes()).map_err(|error| Failure(error.to_string()))?;
    let Some(node) = view.look(&path)? else { return Ok(None) };
    let mut text = String::new();
    io::Read::read_to_string(&mut node.open()?, &mut text)?;
    Ok(Some(text))
}

pub async fn a_snapshot_keeps_what_the_volume_held(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let Taken { id, snapshot, before, after, .. } = take(&subject).await?;
    let listed = subject.storage.snapshots().await?;
    ensure!(listed == [(id.clone(), snapshot.clone())], "it lists {listed:?}");
    for (path, expected) in [
        ("same", Some("first")),
        ("linked", Some("two names")),
        ("both", None),
        ("lower", Some("changed")),
        ("upper", Some("high")),
        ("new/file", None),
    ] {
        let found = held(&subject, &id, &snapshot, path).await?;
        ensure!(found.as_deref() == expected, "{path} holds {found:?}, not {expected:?}");
    }
    let root = subject.storage.root(&id).await?;
    ensure_same("the volume", &tell(&root)?, &after)?;
    let fork = SandboxId::random();
    let root = subject.storage.fork(&id, &snapshot, &fork, &Quota::NONE).await?;
    ensure_same("the snapshot", &tell(&root)?, &before)?;
    let storage = (subject.reopen)();
    let listed = storage.snapshots().await?;
    ensure!(listed == [(id.clone(), snapshot)], "opened again it lists {listed:?}");
    clear(&subject, &[&id, &fork]).await
}

pub async fn a_rollback_brings_all_back_and_takes_no_snapshot(
    subject: StorageUnderTest,
) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let Taken { id, snapshot: first, before, after, .. } = take(&subject).await?;
    let second = SnapshotId::random();
    storage.snapshot(&id, &second).await?;
    for (snapshot, expected) in [(&first, &before), (&second, &after), (&first, &before)] {
        let root = storage.rollback(&id, snapshot).await?;
        ensure!(storage.root(&id).await? == root, "the root is another than {root:?}");
        ensure_same("the volume", &tell(&root)?, expected)?;
        // Writes to the volume must not reach the snapshot.
        fs::write(View::open(&root)?.join("same"), "scribbled")?;
    }
    let mut listed = storage.snapshots().await?;
    listed.sort();
    let mut expected = [(id.clone(), first), (id.clone(), second)];
    expected.sort();
    ensure!(listed == expected, "after rolling back it lists {listed:?}");
    let volumes = storage.list().await?;
    ensure!(volumes == [id.clone()], "after rolling back there are {volumes:?}");
    clear(&subject, &[&id]).await
}

pub async fn a_fork_needs_its_source_no_more(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let Taken { id, snapshot, before, after, .. } = take(&subject).await?;
    let (one, other) = (SandboxId::random(), SandboxId::random());
    let first = storage.fork(&id, &snapshot, &one, &Quota::NONE).await?;
    let again = storage.fork(&id, &snapshot, &one, &Quota::NONE).await;
    ensure!(matches!(again, Err(StorageError::Exists { .. })), "forked twice: {again:?}");
    fs::write(View::open(&first)?.join("same"), "forked")?;
    let second = storage.fork(&id, &snapshot, &other, &Quota::NONE).await?;
    ensure_same("a second fork", &tell(&second)?, &before)?;
    ensure_same("the source", &tell(&storage.root(&id).await?)?, &after)?;
    storage.destroy(&id).await?;
    ensure_same("a fork without its source", &tell(&second)?, &before)?;
    let own = SnapshotId::random();
    storage.snapshot(&other, &own).await?;
    fs::write(View::open(&second)?.join("same"), "scribbled")?;
    let back = storage.rollback(&other, &own).await?;
    ensure_same("a fork that was rolled back", &tell(&back)?, &before)?;
    clear(&subject, &[&one, &other]).await
}

pub async fn a_deleted_snapshot_takes_nothing_with_it(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let Taken { id, snapshot: first, before, after, .. } = take(&subject).await?;
    let [second, third] = [SnapshotId::random(), SnapshotId::random()];
    let fork = SandboxId::random();
    storage.snapshot(&id, &second).await?;
    let forked = storage.fork(&id, &first, &fork, &Quota::NONE).await?;
    storage.snapshot(&id, &third).await?;
    for _ in 0..2 {
        storage.delete_snapshot(&id, &first).await?;
        storage.delete_snapshot(&id, &third).await?;
    }
    storage.delete_snapshot(&SandboxId::random(), &first).await?;
    let listed = storage.snapshots().await?;
    ensure!(
        listed == [(id.clone(), second.clone())],
        "of three one is left, and it lists {listed:?}"
    );
    ensure_same("the fork of one that is gone", &tell(&forked)?, &before)?;
    let root = storage.rollback(&id, &second).await?;
    ensure_same("one between two that are gone", &tell(&root)?, &after)?;
    clear(&subject, &[&id, &fork]).await
}

pub async fn a_snapshot_that_is_not_there_is_named(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let (id, _) = make(&subject, Quota::NONE).await?;
    let (there, missing) = (SnapshotId::random(), SnapshotId::random());
    storage.snapshot(&id, &there).await?;
    let twice = storage.snapshot(&id, &there).await;
    ensure!(matches!(twice, Err(StorageError::SnapshotExists { .. })), "made twice: {twice:?}");
    let nobody = SandboxId::random();
    let answers = [
        ("rollback", storage.rollback(&id, &missing).await.map(drop)),
        ("fork", storage.fork(&id, &missing, &nobody, &Quota::NONE).await.map(drop)),
        ("view", storage.view(&id, Some(&missing)).await.map(drop)),
        ("bytes", storage.snapshot_bytes(&id, &missing).await.map(drop)),
        ("layer", storage.layer_from(&id, Some(&missing), &[], &random_layer()).await),
    ];
    for (what, answer) in answers {
        let named = matches!(&answer, Err(StorageError::SnapshotNotFound { snapshot, .. }) if *snapshot == missing);
        ensure!(named, "{what} of a missing snapshot answered {answer:?}");
    }
    let answer = storage.snapshot(&nobody, &missing).await;
    ensure!(matches!(answer, Err(StorageError::NotFound { .. })), "of nobody: {answer:?}");
    let listed = storage.list().await?;
    ensure!(listed == [id.clone()], "what was refused left {listed:?}");
    Ok(storage.destroy(&id).await?)
}

pub async fn snapshots_go_with_their_volume(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let ((id, _), (beside, _)) =
        (make(&subject, Quota::NONE).await?, make(&subject, Quota::NONE).await?);
    let kept = SnapshotId::random();
    storage.snapshot(&beside, &kept).await?;
    for _ in 0..3 {
        storage.snapshot(&id, &SnapshotId::random()).await?;
    }
    storage.destroy(&id).await?;
    let listed = storage.snapshots().await?;
    ensure!(listed == [(beside.clone(), kept)], "with its volume gone it lists {listed:?}");
    storage.destroy(&beside).await?;
    let listed = storage.snapshots().await?;
    ensure!(listed.is_empty(), "without a volume it lists {listed:?}");
    Ok(())
}

pub async fn a_snapshot_becomes_a_layer(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let Taken { mut layers, id, snapshot, before, .. } = take(&subject).await?;
    let new = random_layer();
    subject.storage.layer_from(&id, Some(&snapshot), &layers, &new).await?;
    layers.push(new);
    let (above, root) = volume(&subject, &layers).await?;
    ensure_same("the layer", &tell(&root)?, &before)?;
    clear(&subject, &[&id, &above]).await
}

pub async fn what_a_snapshot_holds_is_counted(subject: StorageUnderTest) -> Verdict {
    if !subject.storage.capabilities().snapshots {
        return Ok(());
    }
    let storage = &subject.storage;
    let (id, path) = make(&subject, Quota::NONE).await?;
    fill(&path.join("file"), 8)?;
    let snapshot = SnapshotId::random();
    storage.snapshot(&id, &snapshot).await?;
    fs::remove_file(path.join("file"))?;
    let bytes = storage.snapshot_bytes(&id, &snapshot).await?;
    ensure!((8 * MIB..10 * MIB).contains(&bytes), "8 MiB count as {bytes} bytes");
    let total = storage.usage(&id).await?.total.used_bytes;
    ensure!((8 * MIB..10 * MIB).contains(&total), "with its snapshot it counts {total} bytes");
    Ok(storage.destroy(&id).await?)
}

/// Writes beyond the free space, which must be refused, and removes it again.
fn ensure_full(path: PathBuf, mib: u64, what: &str) -> Verdict {
    let written = fill(&path, mib);
    ensure!(is_full(&written), "{mib} MiB {what} answered {written:?}");
    Ok(fs::remove_file(path)?)
}

fn is_full(written: &io::Result<()>) -> bool {
    matches!(
        written.as_ref().map_err(io::Error::kind),
        Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
    )
}

pub async fn the_limit_of_the_tree_holds_for_clones(subject: StorageUnderTest) -> Verdict {
    let (storage, can) = (&subject.storage, subject.storage.capabilities());
    if !can.snapshots || !can.disk_quota {
        return Ok(());
    }
    let quota = Quota::of_tree(24 * MIB);
    let (id, path) = make(&subject, quota).await?;
    fill(&path.join("file"), 12)?;
    let snapshot = SnapshotId::random();
    storage.snapshot(&id, &snapshot).await?;
    let fork = SandboxId::random();
    let forked = storage.fork(&id, &snapshot, &fork, &quota).await?;
    let back = storage.rollback(&id, &snapshot).await?;
    for (what, id, root) in [("rollback", &id, back), ("fork", &fork, forked)] {
        let usage = storage.usage(id).await?.tree;
        ensure!(usage.limit_bytes == quota.tree_bytes, "after a {what} the limit is {usage:?}");
        let counted = (12 * MIB..14 * MIB).contains(&usage.used_bytes);
        ensure!(counted, "after a {what} 12 MiB count as {usage:?}");
        ensure_full(root.own_dir().join("past"), 16, &format!("more after a {what}"))?;
        fill(&root.own_dir().join("within"), 8)?;
    }
    storage.destroy(&fork).await?;
    Ok(storage.destroy(&id).await?)
}

/// Writes until not even a small file fits any more.
fn fill_up(root: &Path) -> Verdict {
    let refused = fill(&root.join("rest"), 64);
    ensure!(is_full(&refused), "64 MiB in a smaller volume answered {refused:?}");
    for file in 0..10_000 {
        let written = File::create(root.join(format!("small-{file}")))
            .and_then(|mut small| small.write_all(&[7; 4096]).and_then(|()| small.sync_all()));
        if is_full(&written) {
            return Ok(());
        }
        written?;
    }
    Err(Failure("10000 small files fit into a full volume".to_owned()))
}

/// A full tree is when a rollback is needed most.
pub async fn a_full_tree_can_be_taken_forked_and_rolled_back(subject: StorageUnderTest) -> Verdict {
    let (storage, can) = (&subject.storage, subject.storage.capabilities());
    if !can.snapshots || !can.disk_quota {
        return Ok(());
    }
    let quota = Quota::of_tree(12 * MIB);
    let (id, path) = make(&subject, quota).await?;
    fill(&path.join("kept"), 4)?;
    fill_up(&path)?;
    let snapshots = [SnapshotId::random(), SnapshotId::random(), SnapshotId::random()];
    for snapshot in &snapshots {
        storage.snapshot(&id, snapshot).await?;
        storage.tend(Some(&id)).await?;
    }
    let fork = SandboxId::random();
    storage.fork(&id, &snapshots[2], &fork, &quota).await?;
    // A clone in which nothing was deleted is as full as its source.
    let (of_fork, twice) = (SnapshotId::random(), SandboxId::random());
    storage.snapshot(&fork, &of_fork).await?;
    storage.fork(&fork, &of_fork, &twice, &quota).await?;
    storage.rollback(&fork, &of_fork).await?;
    storage.rollback(&id, &snapshots[0]).await?;
    for (what, id) in [("rollback", &id), ("fork", &fork), ("second", &twice)] {
        let root = storage.root(id).await?;
        let used = storage.usage(id).await?.tree;
        ensure!(used.used_bytes > 11 * MIB, "after a {what} a full tree is told as {used:?}");
        let root = root.own_dir();
        for file in fs::read_dir(root)? {
            let file = file?.path();
            if !file.ends_with("kept") {
                fs::remove_file(file)?;
            }
        }
        storage.tend(Some(id)).await?;
        fill(&root.join("again"), 4)?;
        let used = storage.usage(id).await?.tree;
        ensure!(used.limit_bytes == quota.tree_bytes, "after a {what} the limit is {used:?}");
        ensure_full(root.join("past"), 12, &format!("more after a {what} of a full tree"))?;
    }
    clear(&subject, &[&id, &fork, &twice]).await
}

pub async fn the_limit_of_tree_and_snapshots_holds(subject: StorageUnderTest) -> Verdict {
    let (storage, can) = (&subject.storage, subject.storage.capabilities());
    if !can.snapshots || !can.disk_quota {
        return Ok(());
    }
    let quota = Quota { tree_bytes: Some(96 * MIB), total_bytes: Some(48 * MIB) };
    let (id, _) = make(&subject, quota).await?;
    let mut snapshots = Vec::new();
    // Rolled back without changes in between: a snapshot's data continues to count.
    for round in 0..3 {
        let root = storage.root(&id).await?;
        let file = root.own_dir().join(format!("file-{round}"));
        if round == 2 {
            ensure_full(file, 20, "in snapshots and tree")?;
            let usage = storage.usage(&id).await?;
            ensure!(usage.total.limit_bytes == quota.total_bytes, "the limit is {usage:?}");
            let limit = usage.exceeded_by(20 * MIB);
            ensure!(limit == Some(Limit::Total), "the limit that was met is {limit:?}: {usage:?}");
            break;
        }
        fill(&file, 16)?;
        let snapshot = SnapshotId::random();
        storage.snapshot(&id, &snapshot).await?;
        fs::remove_file(file)?;
        snapshots.push(snapshot);
    }
    let fork = SandboxId::random();
    let small = Quota { tree_bytes: None, total_bytes: Some(24 * MIB) };
    let root = storage.fork(&id, &snapshots[0], &fork, &small).await?;
    ensure_full(root.own_dir().join("past"), 16, "in a fork")?;
    storage.destroy(&fork).await?;
    Ok(storage.destroy(&id).await?)
}

/// The same above layers.
pub async fn a_clone_above_layers_counts_only_its_own(subject: StorageUnderTest) -> Verdict {
    let (storage, can) = (&subject.storage, subject.storage.capabilities());
    if !can.snapshots || !can.disk_quota {
        return Ok(());
    }
    let base = super::fixture::layer(&**storage, &[], |draft| fill(&draft.root.join("large"), 24));
    let (base, id) = (Base::Layers(vec![base.await?]), SandboxId::random());
    let root = storage.create(&id, &base, &Quota::of_tree(16 * MIB)).await?;
    fill(&root.own_dir().join("own"), 8)?;
    let snapshot = SnapshotId::random();
    storage.snapshot(&id, &snapshot).await?;
    let root = storage.rollback(&id, &snapshot).await?;
    let used = storage.usage(&id).await?.tree.used_bytes;
    ensure!((8 * MIB..10 * MIB).contains(&used), "8 MiB above a layer count as {used} bytes");
    fill(&root.own_dir().join("more"), 4)?;
    clear(&subject, &[&id]).await
}
