use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, Mode, XattrFlags, mknodat, setxattr};
use tempfile::TempDir;

use super::*;
use sandkeep_core::Owner;
use sandkeep_core::ledger::{Ledger, Over, Shares};

/// Two trees that start out the same.
struct Trees {
    before: TempDir,
    after: TempDir,
}

impl Trees {
    fn new(fill: impl Fn(&Path)) -> Self {
        let trees = Self {
            before: tempfile::tempdir().expect("a directory"),
            after: tempfile::tempdir().expect("a directory"),
        };
        fill(trees.before.path());
        fill(trees.after.path());
        trees
    }

    fn views(&self) -> (View, View) {
        let view = |dir: &TempDir| View::of_dir(dir.path()).expect("a view");
        (view(&self.before), view(&self.after))
    }

    fn diff(&self, options: &Options) -> Diff {
        let (from, to) = self.views();
        compare(&from, &to, options).expect("two trees")
    }

    /// Each change as `<kind> <path>[ <- path] [aspects]`.
    fn told(&self) -> Vec<String> {
        self.diff(&Options::default()).changes.iter().map(told).collect()
    }
}

pub(super) fn told(change: &Change) -> String {
    let from = change.from_path.as_ref().map(|path| format!(" <- {}", path.shown()));
    let differs: Vec<String> =
        change.differs.iter().map(|aspect| format!(" {aspect:?}").to_lowercase()).collect();
    let kind = format!("{:?}", change.kind).to_lowercase();
    format!("{kind} {}{}{}", change.path.shown(), from.unwrap_or_default(), differs.concat())
}

fn path(text: &str) -> TreePath {
    TreePath::clean(text.as_bytes()).expect("a path")
}

fn write(root: &Path, name: &str, text: impl AsRef<[u8]>) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("a file");
}

#[test]
fn trees_that_hold_the_same_do_not_differ() {
    let trees = Trees::new(|root| {
        write(root, "a/b/c", "text");
        symlink("/nowhere", root.join("link")).expect("a link");
    });
    assert_eq!(trees.told(), [""; 0]);
}

#[test]
fn every_kind_of_change_is_told_in_one_order() {
    let trees = Trees::new(|root| {
        write(root, "same", "same");
        write(root, "content", "old");
        write(root, "mode", "mode");
        write(root, "gone/file", "with its directory");
        write(root, "becomes-directory", "x");
        write(root, "becomes-file/inner", "x");
        write(root, "old-name", "a content of its own");
        symlink("here", root.join("link")).expect("a link");
    });
    let after = trees.after.path();
    write(after, "content", "new");
    fs::set_permissions(after.join("mode"), fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::remove_dir_all(after.join("gone")).expect("it goes");
    fs::remove_file(after.join("becomes-directory")).expect("it goes");
    write(after, "becomes-directory/new", "y");
    fs::remove_dir_all(after.join("becomes-file")).expect("it goes");
    write(after, "becomes-file", "y");
    fs::rename(after.join("old-name"), after.join("new-name")).expect("a name");
    fs::remove_file(after.join("link")).expect("it goes");
    symlink("there", after.join("link")).expect("a link");
    write(after, "new/deep", "z");
    let expected = [
        "modified becomes-directory type mode",
        "added becomes-directory/new",
        "modified becomes-file type mode",
        "deleted becomes-file/inner",
        "modified content content",
        "deleted gone",
        "deleted gone/file",
        "modified link target",
        "mode mode mode",
        "added new",
        "added new/deep",
        "renamed new-name <- old-name",
    ];
    assert_eq!(trees.told(), expected);
    assert_eq!(trees.told(), expected, "twice the same");
}

#[test]
fn owners_and_attributes_are_part_of_a_file() {
    let trees = Trees::new(|root| write(root, "noted", "x"));
    let noted = trees.after.path().join("noted");
    setxattr(&noted, "user.note", b"y", XattrFlags::empty()).expect("an attribute");
    assert_eq!(trees.told(), ["mode noted attributes"]);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&noted, Some(7), Some(8)).expect("an owner");
        assert_eq!(trees.told(), ["mode noted attributes owner"]);
    }
}

#[test]
fn what_is_hidden_or_not_asked_for_is_not_told() {
    let trees = Trees::new(|root| write(root, "home/user/kept", "x"));
    for name in ["usr/bin/tool", "home/user/project/file", "home/user/other", "home/username"] {
        write(trees.after.path(), name, "x");
    }
    let paths = |options: &Options| -> Vec<String> {
        trees.diff(options).changes.iter().map(|change| change.path.shown()).collect()
    };
    let hidden = Options { hidden: vec![path("usr")], ..Options::default() };
    let all = ["home/user/other", "home/user/project", "home/user/project/file", "home/username"];
    assert_eq!(paths(&hidden), all);
    let beneath = Options { beneath: vec![path("/home/user")], ..Options::default() };
    assert_eq!(paths(&beneath), all[..3]);
    let new = Options { beneath: vec![path("usr/bin")], ..Options::default() };
    assert_eq!(paths(&new), ["usr", "usr/bin", "usr/bin/tool"], "what leads there is new");
}

#[test]
fn what_is_kept_of_a_diff_counts_to_somebody_and_has_an_end() {
    let trees = Trees::new(|_| {});
    for number in 0..3000 {
        write(trees.after.path(), &format!("{number:0250}"), "");
    }
    let shares = Shares { organization_mb: None, user_mb: Some(1) };
    let ledger = Ledger::new("answers", shares, |_| Ok(()));
    let memory = || Some(Arc::new(ledger.open(&Owner::local())));
    let some = Options { changes_max: 500, memory: memory(), ..Options::default() };
    assert_eq!(trees.diff(&some).changes.len(), 500);
    let (from, to) = trees.views();
    let all = Options { memory: memory(), ..Options::default() };
    let refused = compare(&from, &to, &all).expect_err("more than a user may have");
    let over = refused.get_ref().and_then(|inner| inner.downcast_ref());
    assert!(matches!(over, Some(Over::Quota { limit_mb: 1, .. })), "{refused}");
    drop((some, all));
    let again = Options { changes_max: 500, memory: memory(), ..Options::default() };
    assert_eq!(trees.diff(&again).changes.len(), 500, "it was not given back");
}

#[test]
fn a_limit_is_kept_and_said() {
    let trees = Trees::new(|_| {});
    for number in 0..20 {
        write(trees.after.path(), &format!("file{number:02}"), "x");
    }
    let options = Options { changes_max: 5, ..Options::default() };
    let diff = trees.diff(&options);
    assert_eq!((diff.changes.len(), diff.truncated), (5, true));
    let whole = trees.diff(&Options { changes_max: 100, ..Options::default() });
    assert_eq!((whole.changes.len(), whole.truncated), (20, false));
}

#[test]
fn of_several_files_alike_the_one_that_kept_its_name_was_moved() {
    let trees = Trees::new(|root| {
        write(root, "old/a", "alike");
        write(root, "old/b", "alike");
        write(root, "empty", "");
    });
    let after = trees.after.path();
    fs::create_dir(after.join("new")).expect("a directory");
    fs::rename(after.join("old/b"), after.join("new/b")).expect("a name");
    fs::remove_file(after.join("old/a")).expect("it goes");
    fs::rename(after.join("empty"), after.join("void")).expect("a name");
    assert_eq!(
        trees.told(),
        ["deleted empty", "added new", "renamed new/b <- old/b", "deleted old/a", "added void"]
    );
}

/// The same inode number and times are only trusted if the file was unchanged for long.
#[test]
fn a_file_that_was_just_written_is_read() {
    let stat = |trees: &Trees, name: &str| {
        let (from, _) = trees.views();
        *from.look(&path(name)).expect("an answer").expect("it is there").stat()
    };
    let trees = Trees::new(|root| write(root, "file", "x"));
    let stat = stat(&trees, "file");
    let long_after = SystemTime::now() + limits::DIFF_SETTLED + limits::DIFF_SETTLED;
    let settled = Lineage::SameInodes { since: long_after };
    let racing = Lineage::SameInodes { since: SystemTime::now() };
    assert!(content::is_untouched(&stat, &stat, settled));
    assert!(!content::is_untouched(&stat, &stat, racing));
    assert!(!content::is_untouched(&stat, &stat, Lineage::Unrelated));
    let mut other = stat;
    other.st_ctime_nsec += 1;
    assert!(!content::is_untouched(&stat, &other, settled));
}

#[test]
fn directories_that_only_layers_have_are_not_looked_into() {
    let dirs: Vec<TempDir> = (0..3).map(|_| tempfile::tempdir().expect("a directory")).collect();
    write(dirs[0].path(), "shared/unseen", "x");
    write(dirs[0].path(), "touched/file", "x");
    write(dirs[2].path(), "touched/file", "y");
    fs::set_permissions(dirs[0].path().join("shared"), fs::Permissions::from_mode(0o000))
        .expect("a mode");
    let view = |upper: &TempDir| {
        let tree = |dir: &TempDir| fs::File::open(dir.path()).expect("a tree").into();
        View::of_trees(vec![tree(upper), tree(&dirs[0])])
    };
    let diff = compare(&view(&dirs[1]), &view(&dirs[2]), &Options::default()).expect("views");
    let changes: Vec<String> = diff.changes.iter().map(told).collect();
    assert_eq!(changes, ["modified touched/file content"]);
    assert_eq!(diff.unreadable, 0);
}

fn texts(trees: &Trees) -> Vec<Option<Text>> {
    let (from, to) = trees.views();
    let mut diff = compare(&from, &to, &Options::default()).expect("two trees");
    add_text(&mut diff, &from, &to).expect("texts");
    diff.changes.into_iter().map(|change| change.text).collect()
}

#[test]
fn lines_that_differ_are_shown_as_diff_shows_them() {
    let numbered: Vec<String> = (1..=20).map(|number| format!("line {number}\n")).collect();
    let trees = Trees::new(|root| write(root, "file", numbered.concat()));
    let mut changed = numbered.clone();
    changed[9] = "another\n".to_owned();
    changed.push("no end".to_owned());
    write(trees.after.path(), "file", changed.concat());
    let [Some(Text::Unified(text))] = &texts(&trees)[..] else { panic!("one text") };
    let output = std::process::Command::new("diff")
        .args(["-u", "--label", "a/file", "--label", "b/file"])
        .args([trees.before.path().join("file"), trees.after.path().join("file")])
        .output()
        .expect("diff is everywhere");
    assert_eq!(*text, String::from_utf8(output.stdout).expect("a text"));
}

#[test]
fn what_is_no_text_is_said_to_be_so() {
    let trees = Trees::new(|root| {
        write(root, "binary", b"a\0b");
        write(root, "latin", b"caf\xe9\n");
    });
    write(trees.after.path(), "binary", b"a\0c");
    write(trees.after.path(), "latin", b"caf\xe8\n");
    let large = vec![b'x'; usize::try_from(limits::DIFF_TEXT_FILE_MAX_BYTES).expect("small") + 1];
    write(trees.after.path(), "large", large);
    write(trees.after.path(), "new", "one\n");
    let latin = "--- a/latin\n+++ b/latin\n@@ -1 +1 @@\n-caf\u{fffd}\n+caf\u{fffd}\n";
    let new = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+one\n";
    assert_eq!(
        texts(&trees),
        [
            Some(Text::Binary),
            Some(Text::TooLarge),
            Some(Text::Unified(latin.to_owned())),
            Some(Text::Unified(new.to_owned())),
        ]
    );
}

#[test]
fn names_need_not_be_texts_and_files_need_not_be_regular() {
    let trees = Trees::new(|_| {});
    let after = trees.after.path();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    fs::write(after.join(odd), "x").expect("a file");
    mknodat(CWD, after.join("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
    let diff = trees.diff(&Options::default());
    let names: Vec<&[u8]> = diff.changes.iter().map(|change| change.path.bytes()).collect();
    assert_eq!(names, [&b"odd\xff"[..], b"pipe"]);
}
