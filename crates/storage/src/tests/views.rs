//! Views of layered roots compared with the kernel's.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::fs::FileType;
use tempfile::TempDir;

use crate::conformance::acts::{Act, act, carry_out};
use crate::conformance::view::{View as Mounted, told};
use sandkeep_tree::view::Last;
use sandkeep_tree::{Node, Root, TreePath, View};

fn path(text: &str) -> TreePath {
    TreePath::clean(text.as_bytes()).expect("a path")
}

fn read(view: &View, at: &str) -> String {
    let node = view.look(&path(at)).expect("it can be read").expect("it is there");
    let mut text = String::new();
    node.open().expect("a file").read_to_string(&mut text).expect("a text");
    text
}

fn names(node: &Node) -> Vec<String> {
    let entries = node.entries().expect("a directory");
    entries.into_iter().map(|entry| entry.name.into_string().expect("a text")).collect()
}

#[test]
fn names_come_in_order_and_links_are_what_they_are() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["b", "a", "B", "a.txt"] {
        fs::write(dir.path().join(name), name).expect("a file");
    }
    symlink("/etc/passwd", dir.path().join("link")).expect("a link");
    let view = View::of_dir(dir.path()).expect("a view");
    assert_eq!(names(&view.root().expect("a root")), ["B", "a", "a.txt", "b", "link"]);
    let link = view.look(&path("link")).expect("it can be read").expect("it is there");
    assert_eq!(link.read_link().expect("a link"), b"/etc/passwd");
    link.open().expect_err("a link is not opened");
}

#[test]
fn no_link_leads_out_of_the_tree() {
    let outer = tempfile::tempdir().expect("a directory");
    let root = outer.path().join("root");
    fs::create_dir_all(root.join("etc/deep")).expect("directories");
    fs::write(outer.path().join("secret"), "outside").expect("a file");
    fs::write(root.join("etc/secret"), "inside").expect("a file");
    fs::write(root.join("secret"), "the root's").expect("a file");
    for (name, target) in [
        ("abs", "/etc"),
        ("up", "../../.."),
        ("etc/deep/far", "../../../../../secret"),
        ("round", "round"),
        ("dangling", "/nowhere"),
    ] {
        symlink(target, root.join(name)).expect("a link");
    }
    symlink(outer.path(), root.join("host")).expect("a link");
    let view = View::of_dir(&root).expect("a view");
    let resolved = |text: &str| {
        let found = view.resolve(&path(text), Last::Followed).expect("it leads somewhere");
        found.map(|path| path.shown())
    };
    assert_eq!(resolved("abs/secret").as_deref(), Some("etc/secret"));
    assert_eq!(resolved("up/etc").as_deref(), Some("etc"));
    assert_eq!(resolved("etc/deep/far").as_deref(), Some("secret"));
    assert_eq!(resolved("host/secret"), None);
    assert_eq!(resolved("dangling"), None);
    view.resolve(&path("round"), Last::Followed).expect_err("it goes round");
    let itself = view.resolve(&path("abs/deep/far"), Last::Itself).expect("it is there");
    assert_eq!(itself.map(|path| path.shown()).as_deref(), Some("etc/deep/far"));
    assert!(view.look(&path("abs/secret")).expect("it can be asked").is_none());
}

#[test]
fn a_tree_that_changes_is_read_to_an_end() {
    let dir = tempfile::tempdir().expect("a directory");
    let (root, done) = (dir.path().to_owned(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for at in 0..8 {
                    let name = root.join(format!("n{at}"));
                    let _ = fs::create_dir(&name);
                    let _ = fs::write(name.join("file"), "x");
                    let _ = fs::remove_dir_all(&name);
                    let _ = symlink("/etc", &name);
                    let _ = fs::remove_file(&name);
                    let _ = fs::write(&name, "x");
                    let _ = fs::remove_file(&name);
                }
            }
        });
        let view = View::of_dir(&root).expect("a view");
        for _ in 0..300 {
            let top = view.root().expect("a root");
            for entry in top.entries().expect("names") {
                let Some(child) = top.child(entry.name.to_bytes()).expect("an answer") else {
                    continue;
                };
                match child.kind() {
                    FileType::Directory => drop(child.entries().expect("names")),
                    FileType::RegularFile => drop(child.open().expect("a file")),
                    _ => {}
                }
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// A view keeps its resources alive.
#[test]
fn what_a_view_keeps_goes_with_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().to_owned();
    fs::write(place.join("file"), "held").expect("a file");
    let view = View::of_dir(&place).expect("a view").keeping(dir).keeping(());
    assert_eq!(read(&view, "file"), "held");
    drop(view);
    assert!(!place.exists(), "it outlives its reader");
}

/// Applies each list of acts on top of those before it, in a real overlay, and reads the result in both ways.
fn compare(stages: &[Vec<Act>]) {
    let top = TempDir::new().expect("a directory");
    let make = |name: String| {
        let path = top.path().join(name);
        fs::create_dir(&path).expect("a directory");
        path
    };
    let mut lowers: Vec<PathBuf> = Vec::new();
    for (number, acts) in stages.iter().enumerate() {
        let upper = make(format!("upper{number}"));
        let root = if lowers.is_empty() {
            Root::Dir(upper.clone())
        } else {
            Root::Overlay {
                lowers: lowers.clone(),
                upper: upper.clone(),
                work: make(format!("work{number}")),
            }
        };
        let mounted = Mounted::open(&root).expect("it can be mounted");
        acts.iter().for_each(|act| carry_out(mounted.path(), act));
        // It fails if the two differ.
        mounted.tell().expect("the same both ways");
        lowers.push(upper);
    }
    // Without a mount the same can be said of what lies below.
    let trees =
        lowers.iter().rev().map(|path| std::fs::File::open(path).expect("a tree").into()).collect();
    told(&View::of_trees(trees)).expect("it can be read");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_view_shows_what_an_overlay_shows(
        stages in proptest::collection::vec(proptest::collection::vec(act(), 0..14), 1..4)
    ) {
        if rustix::process::geteuid().is_root() { compare(&stages) } else { println!("SKIP a_view_shows_what_an_overlay_shows: mounting needs root") }
    }
}
