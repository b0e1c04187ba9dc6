//! Directories of the host.

use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::time::{Duration, SystemTime};

use super::*;
use sandkeep_tree::archive::{Kept, TreeArchive, TreeOwner};

/// A tree with one of everything, all from one second that is long gone.
pub(super) fn tree() -> TempDir {
    let tree = tempfile::tempdir().unwrap();
    let top = tree.path();
    let deep = format!("deep/{}", "d".repeat(90));
    fs::create_dir_all(top.join(&deep)).unwrap();
    fs::write(top.join(&deep).join("n".repeat(90)), "long").unwrap();
    fs::write(top.join("file"), "content").unwrap();
    fs::hard_link(top.join("file"), top.join("same")).unwrap();
    symlink("../outside", top.join("link")).unwrap();
    fs::set_permissions(top.join("file"), fs::Permissions::from_mode(0o4755)).unwrap();
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    sparse.write_all_at(b"data", 1 << 20).unwrap();
    run("mkfifo", &[top.join("fifo").to_str().unwrap()]);
    let when = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for name in names(top).into_iter().chain([".".to_owned()]) {
        let path = top.join(name);
        if path.is_dir() || (path.is_file() && !path.is_symlink()) {
            File::open(path).unwrap().set_modified(when).unwrap();
        }
    }
    tree
}

/// Everything about the files of a tree but when links and fifos were made.
pub(super) fn listing(root: &Path) -> String {
    let script = r"find . -mindepth 1 \( -type l -o -type p \) -printf '%P %y %m %U:%G %l\n' | sort;
        find . -mindepth 1 ! -type l ! -type p -printf '%P %y %m %U:%G %T@ %n\n' | sort;
        find . -type f | sort | xargs sha256sum";
    let output = Command::new("sh").args(["-c", script]).current_dir(root).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_directory_comes_out_as_it_was() {
    let tree = tree();
    let (form, image) = read(tree.path(), None).await.unwrap();
    assert_eq!(form, Form::Directory);
    let root = applied(&image).await.unwrap();
    assert_eq!(listing(root.path()), listing(tree.path()));
}

#[tokio::test]
async fn the_same_content_is_the_same_layer() {
    let (one, other) = (tree(), tree());
    let id = |image: &Image| image.layers[0].diff_id;
    let (_, first) = read(one.path(), None).await.unwrap();
    // Links and fifos have a time of their own, so only what is the same can be asked to be.
    for name in ["link", "fifo"] {
        fs::remove_file(one.path().join(name)).unwrap();
        fs::remove_file(other.path().join(name)).unwrap();
    }
    let when = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for tree in [&one, &other] {
        File::open(tree.path()).unwrap().set_modified(when).unwrap();
    }
    let (_, second) = read(one.path(), None).await.unwrap();
    let (_, third) = read(other.path(), None).await.unwrap();
    assert_eq!(id(&second), id(&third));
    assert_eq!(second.id, third.id);
    assert_ne!(id(&first), id(&second));
}

#[tokio::test]
async fn a_directory_that_changes_meanwhile_is_refused() {
    let tree = tree();
    let (_, image) = read(tree.path(), None).await.unwrap();
    fs::write(tree.path().join("file"), "CONTENT").unwrap();
    let error = applied(&image).await.expect_err("another content");
    assert!(matches!(error, LayerError::Mismatch(_)), "{error}");
}

#[tokio::test]
async fn a_name_that_would_hide_another_is_refused() {
    let tree = tree();
    fs::write(tree.path().join(".wh.file"), "").unwrap();
    assert!(refusal(tree.path(), None).await.contains(".wh.file: no layer can hold it"));
}

#[test]
fn a_filter_leaves_out_what_it_names_and_all_beneath() {
    let tree = tree();
    let directory = File::open(tree.path()).unwrap().into();
    let filter = |path: &[u8]| match path {
        b"deep" | b"sparse" => Kept::No,
        _ => Kept::Yes,
    };
    let owner = TreeOwner::All { uid: 7, gid: 8 };
    let mut archive = TreeArchive::new(directory, owner, Box::new(filter)).unwrap();
    let mut bytes = Vec::new();
    archive.read_to_end(&mut bytes).unwrap();
    let mut entries = sandkeep_tree::archive::Entries::new(bytes.as_slice());
    let mut found = Vec::new();
    while let Some(entry) = entries.next().unwrap() {
        assert_eq!((entry.attributes.uid, entry.attributes.gid), (7, 8));
        found.push(String::from_utf8(entry.path).unwrap());
    }
    assert_eq!(found, ["./", "fifo", "file", "link", "same"]);
}
