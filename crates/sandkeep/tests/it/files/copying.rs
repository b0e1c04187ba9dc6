//! `sandkeep cp`, both ways.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use super::Place;
use crate::daemon;
use crate::support::{Patience, Ran, binary, run_with_stdin, until};

fn cp(place: &Place<'_>, source: &str, target: &str) -> Ran {
    let mut command = binary();
    command.args(["--url", &place.daemon.url(), "cp", source, target]);
    command.output().expect("the binary runs").into()
}

fn copied(place: &Place<'_>, source: &str, target: &str) {
    let ran = cp(place, source, target);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
}

impl Place<'_> {
    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.id)
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_file_goes_in_and_out_with_its_mode() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let here = tempfile::tempdir().expect("a directory");
    let file = here.path().join("tool.sh");
    fs::write(&file, "#!/bin/sh\necho hi\n").expect("writable");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).expect("ours");
    copied(&place, &shown(&file), &place.at("/tmp"));
    copied(&place, &shown(&file), &place.at("renamed"));
    assert_eq!(place.sh("/tmp/tool.sh; stat -c %a renamed"), "hi\n750");
    place.sh("echo more >> renamed; chmod u+s renamed");
    copied(&place, &place.at("renamed"), &shown(here.path()));
    let back = here.path().join("renamed");
    assert_eq!(fs::read_to_string(&back).expect("it came"), "#!/bin/sh\necho hi\nmore\n");
    assert_eq!(fs::metadata(&back).expect("it came").permissions().mode() & 0o7777, 0o750);
}

#[test]
fn a_tree_goes_in_and_out_as_docker_has_it() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let here = tempfile::tempdir().expect("a directory");
    let tree = here.path().join("src");
    fs::create_dir_all(tree.join("a/empty")).expect("writable");
    fs::write(tree.join("a/one"), "1").expect("writable");
    symlink("a/one", tree.join("link")).expect("writable");
    copied(&place, &shown(&tree), &place.at("new"));
    copied(&place, &shown(&tree), &place.at("new"));
    copied(&place, &format!("{}/.", tree.display()), &place.at("flat"));
    let look = "find new flat -printf '%p %y %l\\n' | sort";
    let expected = "flat d \nflat/a d \nflat/a/empty d \nflat/a/one f \nflat/link l a/one\nnew d \nnew/a d \n\
        new/a/empty d \nnew/a/one f \nnew/link l a/one\nnew/src d \nnew/src/a d \nnew/src/a/empty d \n\
        new/src/a/one f \nnew/src/link l a/one";
    assert_eq!(place.sh(look), expected.replace("        ", ""));
    copied(&place, &place.at("flat"), &shown(here.path()));
    copied(&place, &place.at("flat/."), &shown(&here.path().join("again")));
    for out in ["flat", "again"] {
        let out = here.path().join(out);
        assert_eq!(fs::read_to_string(out.join("a/one")).expect("it came"), "1");
        assert_eq!(fs::read_link(out.join("link")).expect("a link"), Path::new("a/one"));
        assert!(out.join("a/empty").is_dir());
    }
}

#[test]
fn stdin_and_stdout_are_a_file() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let mut command = binary();
    command.args(["--url", &daemon.url(), "cp", "-", &place.at("piped")]);
    let ran = run_with_stdin(&mut command, b"through a pipe");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(cp(&place, &place.at("piped"), "-").stdout, "through a pipe");
    place.sh("mkdir d; touch d/x");
    let archive = cp(&place, &place.at("d"), "-").stdout;
    assert!(archive.starts_with("x\0"), "a directory is its archive");
}

#[test]
fn what_cannot_be_copied_says_why_and_exits_with_one() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let here = tempfile::tempdir().expect("a directory");
    let out = shown(&here.path().join("out"));
    daemon.root_sh(&place.id, "touch /tmp/secret; chmod 600 /tmp/secret").ok();
    for (source, target, code, said) in [
        (place.at("gone"), out.clone(), 1, "no such file"),
        (shown(&here.path().join("gone")), place.at("x"), 1, "no such file"),
        (place.at("/tmp/secret"), out.clone(), 1, "may not"),
        (shown(here.path()), place.at("/usr/x"), 1, "only read"),
        ("a".to_owned(), "b".to_owned(), 2, "neither is in a sandbox"),
        (place.at("a"), place.at("b"), 2, "both are in sandboxes"),
        ("sbzzzzzzzzzzzzzz:/x".to_owned(), out.clone(), 1, "no sandbox"),
    ] {
        let ran = cp(&place, &source, &target);
        assert_eq!(ran.code, code, "{source} {target}: {ran:?}");
        assert!(ran.stderr.contains(said), "{source} {target}: {ran:?}");
    }
    assert!(!Path::new(&out).exists());
}

#[test]
fn what_a_sandbox_sends_stays_beneath_the_directory_it_is_copied_to() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let here = tempfile::tempdir().expect("a directory");
    let outside = here.path().join("outside");
    fs::create_dir(&outside).expect("writable");
    // A link that was there before, where the sandbox has a directory of the same name.
    let target = here.path().join("target");
    fs::create_dir(&target).expect("writable");
    symlink(&outside, target.join("trap")).expect("writable");
    place.sh("mkdir -p t/trap; echo x > t/trap/file; ln -s / t/root");
    let ran = cp(&place, &place.at("t/."), &shown(&target));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert_eq!(fs::read_dir(&outside).expect("it is there").count(), 0);
}

#[test]
fn a_copy_that_is_interrupted_leaves_nothing() {
    let daemon = daemon!();
    let id = daemon.create();
    // An archive has no holes in it, so what is in the tree is written for real.
    daemon.sh(&id, "mkdir ~/tree; truncate -s 2G ~/one; head -c 96M /dev/zero > ~/tree/large").ok();
    let place = tempfile::tempdir().expect("a temp dir");
    let entries = |path: &std::path::Path| std::fs::read_dir(path).expect("it is there").count();
    for (what, to) in [("one", "one"), ("tree", "new")] {
        let mut command = binary();
        command.env("SANDKEEP_URL", daemon.url()).arg("cp").arg(format!("{id}:{what}"));
        let mut child = command.arg(place.path().join(to)).spawn().expect("the binary runs");
        until("it has begun", Patience::Short, || entries(place.path()) > 0);
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::INT,
        )
        .expect("it is our child");
        assert!(
            !child.wait().expect("it ends").success(),
            "all of {what} was copied before it was told"
        );
        assert_eq!(entries(place.path()), 0, "{what}");
    }
}
