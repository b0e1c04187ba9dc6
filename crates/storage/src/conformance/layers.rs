//! Volumes are based on layers, which never change.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};

use super::filling::{MIB, fill};
use super::fixture::{hide, hide_below, layer, random_layer, write};
use super::view::View;
use super::{Failure, StorageUnderTest, Verdict, ensure};
use crate::{Base, LayerId, Quota, StorageError};
use sandkeep_core::SandboxId;
use sandkeep_tree::Root;

/// Two layers, of which the upper one changes the lower one in every way.
pub(super) async fn two_layers(subject: &StorageUnderTest) -> Result<Vec<LayerId>, Failure> {
    let storage = &*subject.storage;
    let lower = layer(storage, &[], |draft| {
        for path in ["both", "lower", "gone", "gone-dir/file", "opaque/hidden", "dir/lower"] {
            write(&draft.root, path, "low")?;
        }
        fs::set_permissions(&draft.root, fs::Permissions::from_mode(0o700))
    });
    let lower = lower.await?;
    let below = std::slice::from_ref(&lower);
    let upper = layer(storage, below, |draft| {
        for path in ["both", "upper", "dir/upper"] {
            write(&draft.root, path, "high")?;
        }
        hide(draft, "gone")?;
        hide(draft, "gone-dir")?;
        hide_below(draft, "opaque")?;
        write(&draft.root, "opaque/seen", "high")?;
        fs::set_permissions(&draft.root, fs::Permissions::from_mode(0o711))
    });
    let upper = upper.await?;
    Ok(vec![lower, upper])
}

pub(super) async fn volume(
    subject: &StorageUnderTest,
    layers: &[LayerId],
) -> Result<(SandboxId, Root), Failure> {
    let id = SandboxId::random();
    let root = subject.storage.create(&id, &Base::Layers(layers.to_vec()), &Quota::NONE).await?;
    Ok((id, root))
}

pub async fn the_kind_of_a_root_is_known_before_it_is_made(subject: StorageUnderTest) -> Verdict {
    let layers = Base::Layers(two_layers(&subject).await?);
    for base in [Base::Empty, layers] {
        let (id, told) = (SandboxId::random(), subject.storage.root_kind(&base));
        let made = subject.storage.create(&id, &base, &Quota::NONE).await?.kind();
        ensure!(made == told, "{made} was made, and {told} was announced");
        subject.storage.destroy(&id).await?;
    }
    clear(&subject, &[]).await
}

/// Removes the volumes and all layers.
pub(super) async fn clear(subject: &StorageUnderTest, volumes: &[&SandboxId]) -> Verdict {
    for id in volumes {
        subject.storage.destroy(id).await?;
    }
    for key in subject.storage.layers().await? {
        subject.storage.remove_layer(&key).await?;
    }
    Ok(())
}

fn read(view: &View, path: &str) -> String {
    fs::read_to_string(view.join(path)).unwrap_or_else(|error| format!("{error}"))
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The merged view of the two layers.
fn ensure_untouched(view: &View) -> Verdict {
    let there = names(view.path())?;
    let expected = ["both", "dir", "lower", "opaque", "upper"];
    ensure!(there == expected, "its root holds {there:?}, not {expected:?}");
    for (path, expected) in
        [("both", "high"), ("lower", "low"), ("upper", "high"), ("opaque/seen", "high")]
    {
        let found = read(view, path);
        ensure!(found == expected, "{path} holds {found:?}, not {expected:?}");
    }
    let (merged, opaque) = (names(&view.join("dir"))?, names(&view.join("opaque"))?);
    ensure!(merged == ["lower", "upper"], "a directory of both layers holds {merged:?}");
    ensure!(opaque == ["seen"], "a directory that hides what is below holds {opaque:?}");
    Ok(())
}

pub async fn a_volume_shows_all_its_layers(subject: StorageUnderTest) -> Verdict {
    let layers = two_layers(&subject).await?;
    let (id, root) = volume(&subject, &layers).await?;
    let again = subject.storage.root(&id).await?;
    ensure!(again == root, "its root is {again:?}, not {root:?}");
    let listed = subject.storage.list().await?;
    ensure!(listed == [id.clone()], "it lists {listed:?}");
    let view = View::open(&root)?;
    ensure_untouched(&view)?;
    let mode = fs::metadata(view.path())?.mode() & 0o7777;
    ensure!(mode == 0o711, "the mode of its root is {mode:o}, not that of the topmost layer");
    drop(view);
    clear(&subject, &[&id]).await
}

pub async fn what_is_written_above_is_seen_by_nobody_else(subject: StorageUnderTest) -> Verdict {
    let layers = two_layers(&subject).await?;
    let ((first, root), (second, beside)) =
        (volume(&subject, &layers).await?, volume(&subject, &layers).await?);
    let view = View::open(&root)?;
    fs::write(view.join("lower"), "changed")?;
    fs::remove_file(view.join("both"))?;
    fs::remove_dir_all(view.join("dir"))?;
    fs::write(view.join("new"), "new")?;
    fs::write(view.join("opaque/seen"), "changed")?;
    drop(view);
    ensure_untouched(&View::open(&beside)?)?;
    let (third, later) = volume(&subject, &layers).await?;
    ensure_untouched(&View::open(&later)?)?;
    let view = View::open(&subject.storage.root(&first).await?)?;
    let there = names(view.path())?;
    ensure!(there == ["lower", "new", "opaque", "upper"], "after the changes it holds {there:?}");
    drop(view);
    clear(&subject, &[&first, &second, &third]).await
}

pub async fn a_layer_may_hide_all_below_it(subject: StorageUnderTest) -> Verdict {
    let mut layers = two_layers(&subject).await?;
    let top = layer(&*subject.storage, &layers, |draft| {
        hide_below(draft, "")?;
        write(&draft.root, "only", "high")
    });
    let top = top.await?;
    layers.push(top);
    let (id, root) = volume(&subject, &layers).await?;
    let view = View::open(&root)?;
    let there = names(view.path())?;
    ensure!(there == ["only"], "it holds {there:?}");
    drop(view);
    clear(&subject, &[&id]).await
}

pub async fn a_draft_is_no_layer_before_it_is_kept(subject: StorageUnderTest) -> Verdict {
    let storage = &subject.storage;
    let id = random_layer();
    let Some(draft) = storage.draft_layer(&[], &id).await? else {
        return Err(Failure("a layer that nobody made is there".to_owned()));
    };
    write(&draft.root, "file", "half")?;
    let listed = storage.layers().await?;
    ensure!(listed.is_empty(), "with a draft it lists {listed:?}");
    let above = volume(&subject, std::slice::from_ref(&id)).await;
    ensure!(above.is_err(), "a volume stands on a draft");
    let root = draft.root.clone();
    storage.abort_layer(draft).await?;
    ensure!(!root.exists(), "an aborted draft is still there");
    let again = storage.draft_layer(&[], &id).await?;
    ensure!(again.is_some(), "an aborted draft became a layer");
    Ok(())
}

pub async fn a_layer_is_kept_once_and_for_all(subject: StorageUnderTest) -> Verdict {
    let storage = &subject.storage;
    let id = random_layer();
    let mut drafts = Vec::new();
    for text in ["first", "second"] {
        let draft = storage.draft_layer(&[], &id).await?;
        let draft = draft.ok_or_else(|| Failure("it is there before it is kept".to_owned()))?;
        write(&draft.root, "file", text)?;
        drafts.push(draft);
    }
    for draft in drafts {
        let root = draft.root.clone();
        storage.keep_layer(draft).await?;
        ensure!(!root.exists(), "a draft that was kept is still there as such");
    }
    ensure!(storage.draft_layer(&[], &id).await?.is_none(), "a layer is drafted that is kept");
    let key = storage.layer_key(std::slice::from_ref(&id));
    let listed = storage.layers().await?;
    ensure!(listed.first() == key.as_ref() && listed.len() == 1, "it lists {listed:?}");
    let (volume, root) = volume(&subject, std::slice::from_ref(&id)).await?;
    let held = read(&View::open(&root)?, "file");
    ensure!(held == "first", "the layer holds what {held} draft held");
    clear(&subject, &[&volume]).await
}

pub async fn a_missing_layer_is_named(subject: StorageUnderTest) -> Verdict {
    let mut layers = two_layers(&subject).await?;
    let missing = random_layer();
    layers.insert(1, missing.clone());
    let names_it = |answer: &Result<(), StorageError>| matches!(answer, Err(StorageError::LayerMissing { layer }) if *layer == missing);
    let base = Base::Layers(layers.clone());
    let id = SandboxId::random();
    let created = subject.storage.create(&id, &base, &Quota::NONE).await.map(drop);
    ensure!(names_it(&created), "create above {missing} answered {created:?}");
    let drafted = subject.storage.draft_layer(&layers, &random_layer()).await.map(drop);
    ensure!(names_it(&drafted), "a draft above {missing} answered {drafted:?}");
    clear(&subject, &[]).await
}

pub async fn a_removed_layer_is_gone_and_no_volume_breaks(subject: StorageUnderTest) -> Verdict {
    let storage = &subject.storage;
    let layers = two_layers(&subject).await?;
    let (id, root) = volume(&subject, &layers).await?;
    for key in storage.layers().await? {
        match storage.remove_layer(&key).await {
            Ok(()) => {}
            Err(StorageError::LayerInUse { layer, id: user }) => {
                ensure!(layer == key && user == id, "{key} is said to be {layer}, used by {user}");
            }
            Err(error) => return Err(error.into()),
        }
    }
    ensure_untouched(&View::open(&root)?)?;
    storage.destroy(&id).await?;
    // The caller decides which are needed; twice, because removal is idempotent.
    let keys: Vec<_> = (1..=layers.len()).filter_map(|n| storage.layer_key(&layers[..n])).collect();
    for key in keys.iter().chain(&keys) {
        storage.remove_layer(key).await?;
    }
    let left = storage.layers().await?;
    ensure!(left.is_empty(), "after all were removed it lists {left:?}");
    let again = storage.draft_layer(&[], &layers[0]).await?;
    ensure!(again.is_some(), "a layer that was removed is not made again");
    Ok(())
}

pub async fn a_draft_that_a_crash_left_is_swept(subject: StorageUnderTest) -> Verdict {
    let layers = two_layers(&subject).await?;
    let (id, _) = volume(&subject, &layers).await?;
    let new = random_layer();
    let draft = subject.storage.draft_layer(&layers, &new).await?;
    let draft = draft.ok_or_else(|| Failure("a layer that nobody made is there".to_owned()))?;
    write(&draft.root, "half/made", "x")?;
    let left = draft.root.clone();
    // As after a kill: nothing of this process happens to it any more.
    std::mem::forget(draft);
    let storage = (subject.reopen)();
    ensure!(!left.exists(), "{} is still there", left.display());
    let kept = storage.layers().await?.len();
    ensure!(kept == 2, "of 2 layers it lists {kept}");
    ensure_untouched(&View::open(&storage.root(&id).await?)?)?;
    clear(&subject, &[&id]).await
}

/// Fills a volume with everything that a layer has to preserve.
pub(super) fn fill_with_everything(view: &View) -> io::Result<()> {
    fs::write(view.join("lower"), "changed")?;
    fs::remove_file(view.join("both"))?;
    fs::remove_dir_all(view.join("dir"))?;
    fs::create_dir(view.join("dir"))?;
    fs::write(view.join("dir/own"), "own")?;
    fs::write(view.join("linked"), "two names")?;
    fs::hard_link(view.join("linked"), view.join("dir/linked"))?;
    symlink("/nowhere/at/all", view.join("link"))?;
    mknodat(CWD, view.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0)?;
    let mut sparse = File::create(view.join("sparse"))?;
    sparse.set_len(64 * MIB)?;
    sparse.write_all(b"begins")?;
    fs::write(view.join("odd"), "odd")?;
    setxattr(view.join("odd"), "user.note", b"kept", XattrFlags::empty())?;
    if rustix::process::geteuid().is_root() {
        chown(view.join("odd"), Some(1234), Some(4321))?;
        chown(view.join("dir"), Some(77), Some(78))?;
    }
    fs::set_permissions(view.join("odd"), fs::Permissions::from_mode(0o6751))?;
    fs::set_permissions(view.join("dir"), fs::Permissions::from_mode(0o1770))
}

pub async fn what_a_volume_holds_becomes_a_layer(subject: StorageUnderTest) -> Verdict {
    let storage = &subject.storage;
    let mut layers = two_layers(&subject).await?;
    let (id, root) = volume(&subject, &layers).await?;
    let view = View::open(&root)?;
    fill_with_everything(&view)?;
    let before = view.tell()?;
    drop(view);
    let new = random_layer();
    for _ in 0..2 {
        storage.layer_from(&id, None, &layers, &new).await?;
    }
    ensure!(View::open(&root)?.tell()? == before, "the volume itself was changed");
    layers.push(new);
    let (copy, above) = volume(&subject, &layers).await?;
    let view = View::open(&above)?;
    let after = view.tell()?;
    for (path, told) in &before {
        ensure!(after.get(path) == Some(told), "{path:?} was {told:?}, is {:?}", after.get(path));
    }
    ensure!(after.len() == before.len(), "it holds {:?}", after.keys());
    let blocks = fs::metadata(view.join("sparse"))?.blocks();
    ensure!(blocks * 512 < MIB, "a file of holes takes {blocks} blocks");
    let numbers = [view.join("linked"), view.join("dir/linked")].map(fs::metadata);
    let [one, other] = numbers;
    ensure!(one?.ino() == other?.ino(), "two names of one file are two files");
    drop(view);
    clear(&subject, &[&id, &copy]).await
}

pub async fn a_quota_holds_above_layers(subject: StorageUnderTest) -> Verdict {
    const QUOTA: u64 = 16 * MIB;
    if !subject.storage.capabilities().disk_quota {
        return Ok(());
    }
    let base = layer(&*subject.storage, &[], |draft| fill(&draft.root.join("large"), 24));
    let base = Base::Layers(vec![base.await?]);
    let id = SandboxId::random();
    let root = subject.storage.create(&id, &base, &Quota::of_tree(QUOTA)).await?;
    let usage = subject.storage.usage(&id).await?;
    ensure!(usage.tree.limit_bytes == Some(QUOTA), "the quota is told as {usage:?}");
    ensure!(usage.tree.used_bytes < MIB, "with nothing of its own it uses {usage:?}");
    let view = View::open(&root)?;
    fill(&view.join("within"), 8)?;
    let written = fill(&view.join("past"), 16);
    let full = matches!(
        written.as_ref().map_err(io::Error::kind),
        Err(io::ErrorKind::QuotaExceeded | io::ErrorKind::StorageFull)
    );
    ensure!(full, "24 MiB in a volume of 16 answered {written:?}");
    drop(view);
    clear(&subject, &[&id]).await
}
