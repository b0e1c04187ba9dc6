use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use rustix::fs::makedev;
use tempfile::TempDir;

use super::*;

/// A root of two layers and a volume, all empty.
fn overlay() -> (TempDir, Root) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let make = |name: &str| {
        let path = dir.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let root = Root::Overlay {
        lowers: vec![make("lower"), make("higher")],
        upper: make("upper"),
        work: make("work"),
    };
    (dir, root)
}

fn whiteout(path: PathBuf) {
    let (kind, device) = (FileType::CharacterDevice, makedev(0, 0));
    rustix::fs::mknodat(CWD, path, kind, Mode::empty(), device).expect("anybody may make one");
}

#[test]
fn a_directory_is_made_where_no_layer_has_it() {
    let (dir, root) = overlay();
    fs::create_dir(dir.path().join("lower/proc")).expect("a directory");
    for name in ["proc", "tmp", "tmp"] {
        root.make_directory(name, 0o1777).expect("it can be mounted on");
    }
    let made = fs::metadata(dir.path().join("upper/tmp")).expect("it was made");
    assert_eq!(made.mode() & 0o7777, 0o1777);
    assert!(!dir.path().join("upper/proc").exists(), "one that a layer has was made again");
}

#[test]
fn a_directory_that_was_taken_away_is_there_again() {
    let (dir, root) = overlay();
    fs::create_dir(dir.path().join("lower/dev")).expect("a directory");
    whiteout(dir.path().join("higher/dev"));
    fs::create_dir(dir.path().join("lower/proc")).expect("a directory");
    whiteout(dir.path().join("upper/proc"));
    for name in ["dev", "proc"] {
        root.make_directory(name, 0o755).expect("it can be mounted on");
        assert!(dir.path().join("upper").join(name).is_dir());
    }
}

#[test]
fn what_is_no_directory_is_neither_followed_nor_replaced() {
    let (dir, root) = overlay();
    symlink("/etc", dir.path().join("lower/tmp")).expect("a link");
    fs::write(dir.path().join("higher/proc"), "").expect("a file");
    for name in ["tmp", "proc"] {
        let refused = root.make_directory(name, 0o755).expect_err("it is something else");
        assert!(refused.to_string().contains(&format!("/{name} is there")), "{refused}");
    }
    let plain = Root::Dir(dir.path().join("lower"));
    plain.make_directory("tmp", 0o755).expect_err("a link is no directory");
    assert!(fs::read_dir(dir.path().join("upper")).expect("a directory").next().is_none());
}
