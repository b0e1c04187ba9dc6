use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use proptest::prelude::*;
use serde_json::json;
use tempfile::TempDir;

use super::staging::PLACE;
use super::*;
use sandkeep_storage::conformance::acts::{Act as TreeAct, act, carry_out};
use sandkeep_tree::diff;

/// A sandbox before and after, and the caller's directory.
struct World {
    before: TempDir,
    after: TempDir,
    home: TempDir,
}

impl World {
    fn new(fill: impl Fn(&Path)) -> Self {
        let make = || {
            let dir = tempfile::tempdir().expect("a directory");
            fill(dir.path());
            dir
        };
        Self { before: make(), after: make(), home: make() }
    }

    fn bundle(&self) -> Vec<u8> {
        let view = |dir: &TempDir| View::of_dir(dir.path()).expect("a view");
        let (from, to) = (view(&self.before), view(&self.after));
        let diff = diff::compare(&from, &to, &diff::Options::default()).expect("two trees");
        let changes = diff::told_with_digests(&diff, &from, &to).expect("digests");
        let manifest = json!({ "changes": changes, "truncated": diff.truncated });
        let mut bytes = Vec::new();
        let manifest = serde_json::to_vec(&manifest).expect("plain data");
        diff::bundle((MANIFEST, manifest), diff, to).read_to_end(&mut bytes).expect("a bundle");
        bytes
    }

    fn apply(&self) -> Result<Report, ApplyError> {
        self.apply_bytes(&self.bundle())
    }

    fn apply_bytes(&self, bundle: &[u8]) -> Result<Report, ApplyError> {
        self.apply_as(bundle, Intent::Apply, Selection::all())
    }

    fn apply_as(
        &self,
        bundle: &[u8],
        intent: Intent,
        selection: Selection,
    ) -> Result<Report, ApplyError> {
        let directory = open(self.home.path()).expect("a directory");
        let guard = Guard::Refuse(self.home.path().to_owned());
        bring(
            bundle,
            directory,
            &TreePath::default(),
            intent,
            &Rules { selection, guard, asks: Asks::Nothing },
        )
    }
}

/// What a tree holds, as far as it comes home.
fn held(root: &Path) -> BTreeMap<PathBuf, (char, Vec<u8>)> {
    let mut held = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let kind = fs::symlink_metadata(&path).expect("it is there").file_type();
            let told = match () {
                () if kind.is_dir() => {
                    left.push(path.clone());
                    ('d', Vec::new())
                }
                () if kind.is_symlink() => {
                    let target = fs::read_link(&path).expect("a link");
                    ('l', target.into_os_string().into_encoded_bytes())
                }
                () => ('f', fs::read(&path).expect("a file")),
            };
            held.insert(path.strip_prefix(root).expect("beneath").to_owned(), told);
        }
    }
    held
}

fn write(root: &Path, name: &str, text: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("a file");
}

fn conflicts(report: &Report) -> Vec<String> {
    report.plan.conflicts.iter().map(|conflict| conflict.path.shown()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_diff_that_is_applied_gives_the_second_tree(
        begun in proptest::collection::vec(act(), 0..16),
        changed in proptest::collection::vec(act(), 0..16),
    ) {
        let is_for_all = |act: &&TreeAct| !matches!(act, TreeAct::Owner(..) | TreeAct::Note(..));
        let world = World::new(|root| begun.iter().filter(is_for_all).for_each(|act| carry_out(root, act)));
        changed.iter().filter(is_for_all).for_each(|act| carry_out(world.after.path(), act));
        let report = world.apply().expect("it can be applied");
        prop_assert_eq!(conflicts(&report), [""; 0]);
        prop_assert_eq!(held(world.home.path()), held(world.after.path()));
        let again = world.apply().expect("it can be repeated");
        prop_assert!(again.plan.conflicts.is_empty(), "{:?}", again.plan.conflicts);
        let left: Vec<_> = again.plan.steps.iter().filter(|step| !matches!(step.act, Act::Mode { .. })).collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn with_one_conflict_nothing_is_changed() {
    let world = World::new(|root| {
        for name in ["both", "only-there", "only-here", "gone-here"] {
            write(root, name, "base");
        }
    });
    let (after, home) = (world.after.path(), world.home.path());
    for name in ["both", "only-there", "gone-here"] {
        write(after, name, "theirs");
    }
    write(after, "new", "theirs");
    write(home, "both", "mine");
    write(home, "only-here", "mine");
    write(home, "new", "mine");
    fs::remove_file(home.join("gone-here")).expect("it goes");
    let before = held(home);
    let all = || world.apply_as(&world.bundle(), Intent::ApplyAll, Selection::all());
    let report = all().expect("it can be judged");
    assert_eq!(conflicts(&report), ["both", "gone-here", "new"]);
    assert_eq!(held(home), before, "something was changed");
    write(home, "both", "theirs");
    write(home, "new", "theirs");
    write(home, "gone-here", "base");
    assert_eq!(conflicts(&all().expect("no conflict is left")), [""; 0]);
    let after_all = held(home);
    assert_eq!(after_all[Path::new("only-there")].1, b"theirs");
    assert_eq!(after_all[Path::new("only-here")].1, b"mine");
}

/// Both sides change files, move them, and put a directory in the place of a file.
fn disputed() -> World {
    let world = World::new(|root| {
        for name in ["both.txt", "cache/a.pyc", "there", "old-name", "goes/stays", "goes/too"] {
            write(root, name, "base");
        }
        write(root, "moved", "a file that is long enough to be known again");
    });
    let (after, home) = (world.after.path(), world.home.path());
    write(after, "both.txt", "theirs");
    write(after, "cache/a.pyc", "theirs");
    write(after, "there", "theirs");
    fs::rename(after.join("moved"), after.join("target")).expect("it moves");
    fs::remove_dir_all(after.join("goes")).expect("it goes");
    fs::remove_file(after.join("old-name")).expect("it goes");
    write(after, "old-name/inside/file", "theirs");
    write(home, "both.txt", "mine");
    write(home, "cache/a.pyc", "mine");
    write(home, "target", "mine");
    write(home, "goes/stays", "mine");
    write(home, "old-name", "mine");
    world
}

#[test]
fn a_conflict_stays_as_it_is_and_blocks_nothing_else() {
    let world = disputed();
    let home = world.home.path();
    let report = world.apply().expect("it can be applied");
    let expected = ["both.txt", "cache/a.pyc", "goes/stays", "old-name", "target"];
    let mut found = conflicts(&report);
    found.sort();
    found.dedup();
    assert_eq!(found, expected);
    let held = held(home);
    let text = |name: &str| held.get(Path::new(name)).map(|(_, text)| text.as_slice());
    assert_eq!(text("there"), Some(&b"theirs"[..]), "what is not disputed arrives");
    for name in ["both.txt", "cache/a.pyc", "goes/stays", "old-name", "target"] {
        assert_eq!(text(name), Some(&b"mine"[..]), "{name}");
    }
    assert!(text("moved").is_some(), "half of a rename would lose the file");
    assert!(!held.contains_key(Path::new("goes/too")), "it went in the sandbox");
    assert!(!home.join(PLACE).exists(), "it leaves nothing behind");
}

#[test]
fn a_conflict_is_decided_by_the_side_that_is_named() {
    let world = disputed();
    let home = world.home.path();
    let selection = SelectArgs::of(&["--theirs", "*.txt", "--ours", "cache/"]).beneath(home);
    let selection = selection.expect("valid");
    let report = world.apply_as(&world.bundle(), Intent::Apply, selection).expect("it works");
    assert!(!conflicts(&report).iter().any(|path| path.contains("both") || path.contains("cache")));
    assert_eq!(held(home)[Path::new("both.txt")].1, b"theirs");
    assert_eq!(held(home)[Path::new("cache/a.pyc")].1, b"mine");
    let force = SelectArgs::of(&["--force"]).beneath(home).expect("valid");
    let report = world.apply_as(&world.bundle(), Intent::Apply, force).expect("it works");
    assert_eq!(conflicts(&report), [""; 0]);
    assert_eq!(held(home), held(world.after.path()));
}

#[test]
fn what_is_left_out_or_ignored_does_not_arrive() {
    let world = World::new(|root| write(root, "kept", "a file that is long enough to be known"));
    let (after, home) = (world.after.path(), world.home.path());
    for name in ["src/a.py", "src/a.pyc", "build/x", "notes.md", "debug.log"] {
        write(after, name, "theirs");
    }
    // A rename to an ignored name would remove the file here and bring it nowhere.
    fs::rename(after.join("kept"), after.join("kept.log")).expect("it moves");
    write(home, ".gitignore", "*.log\n/build/\n");
    let select = |arguments: &[&str]| SelectArgs::of(arguments).beneath(home).expect("valid");
    let apply = |arguments: &[&str]| {
        let report = world.apply_as(&world.bundle(), Intent::Apply, select(arguments));
        report.expect("it can be applied").ignored
    };
    assert_eq!(apply(&["--exclude", "*.pyc", "--include", "src/"]), 0);
    let names: Vec<_> = held(home).into_keys().collect();
    assert_eq!(names, [".gitignore", "kept", "src", "src/a.py"].map(PathBuf::from));
    assert!(apply(&[]) > 0, "some are ignored");
    assert!(home.join("notes.md").exists() && home.join("kept").exists());
    assert!(!home.join("build").exists() && !home.join("debug.log").exists());
    assert_eq!(apply(&["--no-ignore"]), 0);
    assert!(home.join("build/x").exists() && home.join("kept.log").exists());
    assert!(!home.join("kept").exists());
}

#[test]
fn a_directory_with_files_of_the_callers_own_stays() {
    let world = World::new(|root| write(root, "dir/file", "base"));
    fs::remove_dir_all(world.after.path().join("dir")).expect("it goes");
    write(world.home.path(), "dir/mine", "mine");
    let report = world.apply().expect("it can be applied");
    assert_eq!(conflicts(&report), [""; 0]);
    let names: Vec<_> = held(world.home.path()).into_keys().collect();
    assert_eq!(names, [Path::new("dir"), Path::new("dir/mine")]);
    write(world.after.path(), "dir", "a file now");
    assert_eq!(conflicts(&world.apply().expect("it can be judged")), ["dir"]);
}

#[test]
fn nobody_gets_another_identity_from_a_sandbox() {
    let world = World::new(|_| {});
    write(world.after.path(), "tool", "#!/bin/sh\n");
    let mode = fs::Permissions::from_mode(0o6755);
    fs::set_permissions(world.after.path().join("tool"), mode).expect("a mode");
    world.apply().expect("it can be applied");
    let brought = fs::metadata(world.home.path().join("tool")).expect("it came");
    assert_eq!(brought.mode() & 0o7777, 0o755);
}

#[test]
fn nothing_outside_of_the_directory_is_written() {
    let outside = tempfile::tempdir().expect("a directory");
    let world = World::new(|root| fs::create_dir(root.join("dir")).expect("a directory"));
    write(world.after.path(), "dir/file", "theirs");
    // The caller has a link where the sandbox has a directory.
    fs::remove_dir(world.home.path().join("dir")).expect("it goes");
    symlink(outside.path(), world.home.path().join("dir")).expect("a link");
    let report = world.apply().expect("it can be judged");
    assert_eq!(conflicts(&report), ["dir"]);
    assert_eq!(fs::read_dir(outside.path()).expect("a directory").count(), 0);
    // A daemon that lies about paths leads nowhere else.
    let digest = sandkeep_tree::digest::Digest::of(b"x");
    for path in ["/../../escaped", "/dir/../../escaped", "/.sandkeep-apply/journal"] {
        let facts = json!({
            "type": "file", "mode": "0644", "uid": 0, "gid": 0, "bytes": 1, "digest": digest,
        });
        let change = json!({ "kind": "added", "path": path, "after": facts });
        let manifest = json!({ "changes": [change], "truncated": false }).to_string();
        let tar = sandkeep_tree::archive::building::Tar::new()
            .file(MANIFEST, manifest.as_bytes())
            .file(path.trim_start_matches('/'), "x")
            .end();
        let world = World::new(|_| {});
        let _ = world.apply_bytes(&tar);
        let above = world.home.path().parent().expect("a parent");
        assert!(!above.join("escaped").exists(), "{path} led out");
        assert!(!world.home.path().join(PLACE).exists(), "something is left of {path}");
    }
}

#[test]
fn a_stream_that_is_cut_off_or_damaged_changes_nothing() {
    let world = World::new(|root| write(root, "file", "base"));
    write(world.after.path(), "file", "theirs");
    write(world.after.path(), "more", &"long ".repeat(1000));
    let bundle = world.bundle();
    let before = held(world.home.path());
    for cut in [0, 100, 600, bundle.len() / 2, bundle.len() - 1024] {
        world.apply_bytes(&bundle[..cut]).expect_err("it is not whole");
        assert_eq!(held(world.home.path()), before, "cut off at {cut}");
    }
    let mut damaged = bundle;
    let at = damaged.windows(6).rposition(|window| window == b"theirs").expect("its content");
    damaged[at] = b'T';
    let error = world.apply_bytes(&damaged).expect_err("it is damaged");
    assert!(matches!(error, ApplyError::Mismatch { .. }), "{error}");
    assert_eq!(held(world.home.path()), before);
}

/// If the program dies at any step, the next apply finds the directory as it was.
#[test]
fn what_was_cut_off_is_undone_by_the_next_one() {
    let build = || {
        let world = World::new(|root| {
            write(root, "changed", "base");
            write(root, "gone/file", "base");
            write(root, "mode", "base");
            write(root, "becomes-dir", "base");
        });
        let after = world.after.path();
        write(after, "changed", "theirs");
        fs::remove_dir_all(after.join("gone")).expect("it goes");
        fs::set_permissions(after.join("mode"), fs::Permissions::from_mode(0o600)).expect("a mode");
        fs::remove_file(after.join("becomes-dir")).expect("it goes");
        write(after, "becomes-dir/new", "theirs");
        symlink("changed", after.join("link")).expect("a link");
        world
    };
    let mut died_at = 0;
    loop {
        let world = build();
        let home = world.home.path();
        let before = held(home);
        let bundle = world.bundle();
        let mut entries = Entries::new(bundle.as_slice());
        let manifest: Manifest = read_list(&mut entries, MANIFEST).expect("a manifest");
        let (view, top) = (View::of_dir(home).expect("a view"), TreePath::default());
        let looked = look(&view, &manifest.changes, &top, &Selection::all()).expect("a look");
        let here =
            Here::new(looked.files, Scope::Listed, OnConflict::Report).expect("no path twice");
        let plan = apply::plan(&here, &manifest.changes, &top).expect("a plan");
        let (staging, _) = Staging::begin(open(home).expect("a directory")).expect("a place");
        stage(&staging, &plan.steps, &mut entries).expect("all is there");
        staging.die_at(&plan.steps, died_at);
        let (staging, found) = Staging::begin(open(home).expect("a directory")).expect("a place");
        assert_eq!(found, Interrupted::CutOff);
        staging.clear();
        assert_eq!(held(home), before, "after dying at step {died_at}");
        let mode = fs::metadata(home.join("mode")).expect("it is there").mode() & 0o777;
        assert_eq!(
            mode,
            fs::metadata(world.before.path().join("mode")).expect("too").mode() & 0o777
        );
        if died_at == plan.steps.len() {
            break;
        }
        died_at += 1;
    }
    assert!(died_at > 6, "there are steps");
}

#[test]
fn two_at_once_do_not_disturb_each_other() {
    let world = World::new(|_| {});
    let home = || open(world.home.path()).expect("a directory");
    let (first, _) = Staging::begin(home()).expect("a place");
    assert!(matches!(Staging::begin(home()), Err(ApplyError::UnderWay)));
    first.clear();
    Staging::begin(home()).expect("the first is over").0.clear();
}

#[test]
fn nothing_is_brought_home_beside_a_hook() {
    let world = World::new(|root| write(root, ".git/config", "[core]\n"));
    let (after, home) = (world.after.path(), world.home.path());
    write(after, "file", "theirs");
    write(after, ".git/config", "[core]\nfsmonitor = /tmp/evil\n");
    symlink("../file", after.join(".git/commondir")).expect("a link");
    let before = held(home);
    let error = world.apply().expect_err("it would run commands").to_string();
    assert!(error.contains(".git/commondir, .git/config;"), "{error}");
    assert_eq!(held(home), before, "something was changed");
    let directory = open(home).expect("a directory");
    let top = TreePath::default();
    let rules = Rules { selection: Selection::all(), guard: Guard::Allow, asks: Asks::Nothing };
    bring(world.bundle().as_slice(), directory, &top, Intent::Apply, &rules).expect("asked for");
    assert_eq!(held(home), held(after));
}
