//! The changes of a codebase: shown, applied to a directory, and the one-liner that does all of it.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CODEBASES, call, with_codebase, write};
use crate::support::{Daemon, Ground, Ran, binary, obstacle};
use crate::{on_each_storage, skip_if};

on_each_storage!(changes_come_home_three_way);

fn project() -> TempDir {
    let project = tempfile::Builder::new().prefix("skcb-").tempdir().expect("a directory");
    fs::create_dir_all(project.path().join("src")).expect("a directory");
    for (path, content) in
        [("src/a", "1\n"), ("src/b", "1\n"), ("gone", "1\n"), (".env", "secret\n")]
    {
        fs::write(project.path().join(path), content).expect("a file");
    }
    project
}

fn text(project: &TempDir, path: &str) -> String {
    fs::read_to_string(project.path().join(path)).unwrap_or_default()
}

fn changes_come_home_three_way(ground: &Ground) {
    let (daemon, project) = (Daemon::start_with(&ground.setup()), project());
    let dir = project.path().to_str().expect("text");
    daemon.expect(201, "POST", CODEBASES, &json!({ "name": "site", "source": { "dir": dir } }));
    daemon.assert_no_leaks();
    let sandbox = with_codebase(&daemon, "site");
    daemon.sh(&sandbox, "echo 2 > src/a; echo 2 > src/b; rm gone; mkdir new; echo n > new/n").ok();
    write(&daemon, "site", "by-api", "api");
    let shown = call(&daemon, &["codebase", "diff", "site"]);
    let expected = "A  /by-api\nD  /gone\nA  /new/\nA  /new/n\nM  /src/a\nM  /src/b\n";
    assert_eq!(shown.stdout, expected, "{} {shown:?}", ground.name());
    // The directory has changed meanwhile, too.
    fs::write(project.path().join("src/b"), "mine\n").expect("a file");
    let dry = call(&daemon, &["codebase", "apply", "site", "--to", dir, "--dry-run"]);
    assert_eq!((dry.code, text(&project, "src/a").as_str()), (8, "1\n"), "{dry:?}");
    let applied = call(&daemon, &["codebase", "apply", "site", "--to", dir]);
    assert_eq!(applied.code, 8, "{applied:?}");
    assert!(applied.stdout.contains("conflict") && applied.stdout.contains("src/b"), "{applied:?}");
    let texts = ["src/a", "src/b", "gone", "new/n", "by-api"].map(|path| text(&project, path));
    assert_eq!(texts, ["2\n", "mine\n", "", "n\n", "api"]);
    // Again there is nothing left to do but the conflict.
    let again = call(&daemon, &["codebase", "apply", "site", "--to", dir, "--theirs", "src/b"]);
    assert_eq!((again.code, text(&project, "src/b").as_str()), (0, "2\n"), "{again:?}");
    daemon.expect(201, "POST", CODEBASES, &json!({ "name": "empty" }));
    let refused = daemon.expect(400, "GET", &format!("{CODEBASES}/empty/diff"), &Value::Null);
    assert!(refused["detail"].as_str().is_some_and(|d| d.contains("source")), "{refused}");
}

fn run(arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.arg("run").args(arguments).env_remove("SANDKEEP_URL");
    command.output().expect("the binary runs").into()
}

#[test]
fn run_works_on_a_copy_and_brings_changes_home_only_if_told() {
    skip_if!(obstacle());
    let project = project();
    let dir = project.path().to_str().expect("text");
    let change = ["--", "sh", "-c", "pwd; cat src/a; echo 2 > src/a; exit 3"];
    let discarded = run(&[&["--codebase", dir, "--discard"], &change[..]].concat());
    assert_eq!((discarded.code, text(&project, "src/a").as_str()), (3, "1\n"), "{discarded:?}");
    assert!(discarded.stdout.starts_with("/workspace\n1\n"), "{discarded:?}");
    assert!(
        discarded.stdout.contains("write     src/a"),
        "what would change is shown: {discarded:?}"
    );
    let applied =
        run(&[&["--codebase", dir, "--mount", "/srv/x", "--apply"], &change[..]].concat());
    assert_eq!((applied.code, text(&project, "src/a").as_str()), (3, "2\n"), "{applied:?}");
    assert!(applied.stdout.starts_with("/srv/x\n1\n"), "{applied:?}");
    let read_only = ["--codebase", dir, "--rules", "read-only", "--apply", "--", "sh", "-c"];
    let refused = run(&[&read_only[..], &["echo 3 > src/a || cat src/a"]].concat());
    assert_eq!((refused.stdout.as_str(), text(&project, "src/a").as_str()), ("2\n", "2\n"));
    for (arguments, said) in [
        (["--apply", "--", "true"].as_slice(), "--apply is for"),
        (&["--codebase", "/nowhere/at/all", "--", "true"], "No such file"),
        (&["--codebase", "/etc/passwd", "--", "true"], "no directory"),
    ] {
        let wrong = run(arguments);
        assert!(wrong.code != 0 && wrong.stderr.contains(said), "{wrong:?}");
    }
}

#[test]
fn run_hides_what_rules_hide() {
    skip_if!(super::rules::no_server());
    let project = project();
    let dir = project.path().to_str().expect("text");
    fs::create_dir(project.path().join("output")).expect("a directory");
    let command = "ls -A; cat .env 2>/dev/null || echo hidden; echo done > output/report";
    let ran =
        run(&["--codebase", dir, "--rules", "agent-safe", "--apply", "--", "sh", "-c", command]);
    assert!(ran.stdout.starts_with("gone\noutput\nsrc\nhidden\n"), "{ran:?}");
    assert_eq!(text(&project, "output/report"), "done\n");
    assert_eq!(text(&project, ".env"), "secret\n", "what was hidden is not gone");
}
