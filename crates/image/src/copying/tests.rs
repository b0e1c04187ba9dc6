//! Plans on trees and contexts alone; tests with a daemon check the resulting layers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

use super::*;
use crate::recipe::{Archives, Copied, CopiedFrom, Ignore, Origin};
use crate::source::SpoolDir;
use sandkeep_core::limits;
use sandkeep_tree::{
    View,
    archive::{Entries, building::Tar},
};

fn context(archive: &[u8]) -> Result<Context, CopyError> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(archive).and_then(|()| file.rewind()).expect("it is written");
    let spool = tempfile::tempdir().expect("a directory");
    let spool = SpoolDir::new(File::open(spool.path()).expect("a directory").into(), unlimited());
    Context::read(file, &spool)
}

fn path(text: &str) -> TreePath {
    TreePath::clean(text.as_bytes()).expect("a path")
}

fn copied(sources: &[&str], to: &str) -> Copied {
    Copied {
        from: Origin::Context,
        sources: sources.iter().map(|path| CopiedFrom::Path((*path).to_owned())).collect(),
        to: to.to_owned(),
        owner: None,
        mode: None,
        archives: Archives::Kept,
    }
}

/// What an archive holds, by its paths: the owner, and the text of files.
fn written(plan: &Plan, files: &dyn Files) -> BTreeMap<String, (u64, String)> {
    let mut archive = Vec::new();
    plan.write(files, &mut archive).expect("it is written");
    let mut entries = Entries::new(archive.as_slice());
    let mut found = BTreeMap::new();
    while let Some(entry) = entries.next().expect("an entry") {
        let mut text = vec![0; 64];
        let read = entries.read_data(&mut text).expect("its bytes");
        let text = String::from_utf8_lossy(&text[..read]).into_owned();
        let path = String::from_utf8(entry.path).expect("text");
        found.insert(path, (entry.attributes.uid, text));
    }
    found
}

#[test]
fn a_context_is_its_archive_without_what_is_left_out() {
    let archive = Tar::new()
        .file("a/b/c", "deep")
        .file("a-b", "beside")
        .hardlink("hard", "a-b")
        .symlink("link", "a/b/../b/c")
        .symlink("out", "/../../etc/passwd")
        .file("a/skip.o", "object")
        .file(".sandkeep-build-file.Dockerfile", "FROM x")
        .end();
    let context = context(&archive).expect("an archive");
    let build_file = context.text(".sandkeep-build-file.Dockerfile", 100).expect("a text");
    assert_eq!(build_file.as_deref(), Some("FROM x"));
    let context = context.without(&Ignore::read("**/*.o\na\n!a/b").expect("a list"));
    let names = |directory: &str| -> Vec<String> {
        let names = context.names(&path(directory)).expect("names").into_iter();
        names.map(|name| String::from_utf8(name).expect("text")).collect()
    };
    assert_eq!(names("/"), ["a", "a-b", "hard", "link", "out"]);
    assert_eq!((names("a"), names("a/b")), (vec!["b".to_owned()], vec!["c".to_owned()]));
    let followed = context.resolve(&path("link")).expect("a look").expect("it is there");
    let mut text = String::new();
    context.open(&followed).and_then(|mut file| file.read_to_string(&mut text)).expect("a file");
    assert_eq!((followed, text.as_str()), (path("a/b/c"), "deep"));
    assert_eq!(context.resolve(&path("out")).expect("a look"), None, "nothing is outside");
    let digest = |name: &str| context.digest(&path(name)).expect("a digest");
    assert_eq!(digest("hard"), digest("a-b"));
}

#[test]
fn what_cannot_be_a_context_is_refused() {
    for archive in [
        Tar::new().hardlink("a", "nowhere").end(),
        Tar::new().file("a", "text").cut()[..700].to_vec(),
        vec![7; 2000],
        b"BZh91AY".to_vec(),
    ] {
        assert!(context(&archive).is_err());
    }
}

#[test]
fn a_copy_emits_what_is_missing_and_nothing_that_is_there() {
    let tree = tempfile::tempdir().expect("a directory");
    std::fs::create_dir_all(tree.path().join("real/there")).expect("directories");
    std::os::unix::fs::symlink("/real", tree.path().join("link")).expect("a link");
    std::fs::create_dir(tree.path().join("etc")).expect("a directory");
    std::fs::write(tree.path().join("etc/passwd"), "bad\nann:x:7:8::/:\n").expect("a file");
    let below = View::of_dir(tree.path()).expect("a tree");
    let archive = Tar::new().file("one", "1").file("dir/there/two", "2").dir("dir/new").end();
    let context = context(&archive).expect("an archive");
    let plan = |copied: &Copied| {
        let owner = copied.owner.as_deref().map(|owner| ids_of(owner, &below)).transpose()?;
        Planner::above(&below, owner, copied.mode).copy(copied, &context)
    };
    let shown = |copied: &Copied| {
        let plan = plan(copied).expect("a plan");
        assert_eq!(plan.files(&context).expect("digests").len(), plan.entries.len());
        written(&plan, &context)
    };
    let paths = |copied: &Copied| shown(copied).into_keys().collect::<Vec<_>>();
    assert_eq!(paths(&copied(&["one"], "/link/sub/")), ["real/sub/", "real/sub/one"]);
    assert_eq!(paths(&copied(&["one"], "/link/there")), ["real/there/one"]);
    assert_eq!(paths(&copied(&["one"], "/link/name")), ["real/name"]);
    assert_eq!(paths(&copied(&["dir"], "/link")), ["real/new/", "real/there/two"]);
    assert_eq!(
        paths(&copied(&["o*", "dir"], "/x/")),
        ["x/", "x/new/", "x/one", "x/there/", "x/there/two"]
    );
    let owned = Copied { owner: Some("ann".to_owned()), ..copied(&["one"], "/new/") };
    assert_eq!(shown(&owned)["new/one"], (7, "1".to_owned()));
    assert_eq!(shown(&owned)["new/"].0, 7);
    for (wrong, clue) in [
        (copied(&["none"], "/x"), "is not there"),
        (copied(&["n*"], "/x"), "matches nothing"),
        (copied(&["one", "dir"], "/x"), "must end with /"),
        (copied(&["one"], "/etc/passwd/x"), "cannot become a directory"),
        (copied(&["one"], "/real/"), ""),
        (Copied { owner: Some("eve".to_owned()), ..copied(&["one"], "/x") }, "/etc/passwd"),
    ] {
        match (plan(&wrong), clue) {
            (Ok(_), "") => {}
            (refused, clue) => {
                let refused = refused.expect_err(clue).to_string();
                assert!(refused.contains(clue), "{refused}");
            }
        }
    }
}

#[test]
fn the_same_content_has_the_same_digests_whenever_it_was_changed() {
    let tree = tempfile::tempdir().expect("a directory");
    let below = View::of_dir(tree.path()).expect("a tree");
    let digests = |archive: Vec<u8>| {
        let context = context(&archive).expect("an archive");
        let plan = Planner::above(&below, None, None).copy(&copied(&["f"], "/x/"), &context);
        plan.and_then(|plan| plan.files(&context)).expect("digests")
    };
    let later = |text: &str| {
        let mut header = Tar::header(b'0', "f", text.len() as u64);
        header.set_mtime(5);
        Tar::new().entry(header, text.as_bytes()).end()
    };
    let first = digests(Tar::new().file("f", "text").end());
    assert_eq!(first, digests(later("text")));
    assert_ne!(first, digests(later("test")));
}

#[test]
fn an_archive_that_is_added_lies_beneath_its_destination() {
    let tree = tempfile::tempdir().expect("a directory");
    let below = View::of_dir(tree.path()).expect("a tree");
    let inner = Tar::new().dir("./").file("../a", "x").hardlink("b", "a").end();
    let archive = Tar::new().file("inner.tar", &inner).file("plain", "no archive").end();
    let context = context(&archive).expect("an archive");
    let added = Copied { archives: Archives::Unpacked, ..copied(&["inner.tar", "plain"], "/to/") };
    let plan = Planner::above(&below, None, None).copy(&added, &context).expect("a plan");
    let paths: Vec<String> = written(&plan, &context).into_keys().collect();
    assert_eq!(paths, ["to/", "to/a", "to/b", "to/plain"]);
    let hidden = Tar::new().file("x/.wh.a", "").end();
    let outer = Tar::new().file("inner.tar", &hidden).end();
    let context = self::context(&outer).expect("an archive");
    let added = Copied { archives: Archives::Unpacked, ..copied(&["inner.tar"], "/to/") };
    let plan = Planner::above(&below, None, None).copy(&added, &context).expect("a plan");
    let refused = plan.write(&context, Vec::new()).expect_err("it would hide a file");
    assert!(matches!(refused, CopyError::Whiteout { .. }), "{refused}");
}

/// Space of which there is enough.
fn unlimited() -> std::sync::Arc<sandkeep_core::ledger::Reservation> {
    let ledger = sandkeep_core::ledger::Ledger::unlimited();
    std::sync::Arc::new(ledger.open(&sandkeep_core::Owner::local()))
}

#[test]
fn a_secret_is_known_by_its_id_and_is_no_file() {
    let archive = Tar::new()
        .file(".sandkeep-build-secret.token", "s3cret")
        .file("sub/.sandkeep-build-secret.other", "a file")
        .file("plain", "text")
        .end();
    let context = context(&archive).expect("an archive");
    assert_eq!(context.secret("token"), Some(&b"s3cret"[..]));
    assert_eq!((context.secret("other"), context.secret("plain")), (None, None));
    let names = context.names(&path("/")).expect("names");
    assert_eq!(names, [b"plain".to_vec(), b"sub".to_vec()]);
    assert!(!format!("{context:?}").contains("115, 51"), "its value is not shown");
    let large = vec![b'x'; limits::BUILD_SECRET_MAX_BYTES as usize + 1];
    let large = Tar::new().file(".sandkeep-build-secret.big", &large).end();
    let refused = self::context(&large).expect_err("it is too large").to_string();
    assert!(refused.contains("\"big\""), "{refused}");
}
