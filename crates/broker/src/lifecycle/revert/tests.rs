use std::path::Path;

use proptest::prelude::*;

use super::*;
use sandkeep_storage::conformance::acts::{Act, act, carry_out};
use sandkeep_tree::OVERLAY_ATTRIBUTES;
use sandkeep_tree::diff::Change;

fn view(path: &Path) -> View {
    View::of_dir(path).expect("a view")
}

/// Brings all of `now` back to `then`, as a stopped sandbox is.
fn bring_back(now: &Path, then: &Path, paths: &[TreePath]) {
    let diff = compare(&view(now), &view(then), paths, Vec::new(), None).expect("two trees");
    ::toolbox::restore(now, archive::of(diff, view(then))).expect("it can be brought back");
}

fn differences(now: &Path, then: &Path) -> Vec<Change> {
    let all = [TreePath::default()];
    compare(&view(now), &view(then), &all, Vec::new(), None).expect("two trees").changes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_brought_back_is_as_it_was(
        begun in proptest::collection::vec(act(), 0..16),
        changed in proptest::collection::vec(act(), 0..16),
    ) {
        let root = rustix::process::geteuid().is_root();
        // Overlays' own bookkeeping is in no archive.
        let own = |act: &Act| matches!(act, Act::Note(_, name) if name.starts_with(OVERLAY_ATTRIBUTES));
        let can = |act: &&Act| (root || !matches!(act, Act::Owner(..))) && !own(act);
        let (now, then) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for tree in [&now, &then] {
            begun.iter().filter(can).for_each(|act| carry_out(tree.path(), act));
        }
        changed.iter().filter(can).for_each(|act| carry_out(now.path(), act));
        bring_back(now.path(), then.path(), &[TreePath::default()]);
        prop_assert_eq!(differences(now.path(), then.path()), []);
        bring_back(now.path(), then.path(), &[TreePath::default()]);
        prop_assert_eq!(differences(now.path(), then.path()), []);
    }
}

#[test]
fn only_what_was_asked_for_is_brought_back() {
    let (now, then) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |root: &Path, name: &str, text: &str| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        std::fs::write(path, text).expect("a file");
    };
    for name in ["dir/gone", "dir/changed", "beside"] {
        write(then.path(), name, "then");
    }
    for name in ["dir/changed", "dir/new", "beside", "dir-like"] {
        write(now.path(), name, "now");
    }
    let path = |text: &str| TreePath::clean(text.as_bytes()).expect("a path");
    bring_back(now.path(), then.path(), &[path("/dir")]);
    let left: Vec<String> =
        differences(now.path(), then.path()).iter().map(|change| change.path.shown()).collect();
    assert_eq!(left, ["beside", "dir-like"]);
    bring_back(now.path(), then.path(), &[path("/dir-like"), path("/nowhere/at/all")]);
    assert!(!now.path().join("dir-like").exists(), "what was not there stays");
}
