//! What is asked of a person, and what is told to one or to a program.

use std::fs;

use serde_json::Value;

use super::{call, ok};
use crate::daemon;
use crate::support::{Daemon, Ran, binary, run_with_stdin};

fn apply(daemon: &Daemon, to: &std::path::Path, answers: &str) -> Ran {
    let mut command = binary();
    command.env("SANDKEEP_URL", daemon.url()).args(["apply", "web", "-i", "--to"]).arg(to);
    run_with_stdin(&mut command, answers.as_bytes())
}

#[test]
fn apply_asks_for_each_hunk_and_each_file() {
    let daemon = daemon!();
    let app = tempfile::tempdir().expect("a directory");
    let at = |name: &str| app.path().join(name);
    let text = |first: &str, last: &str| {
        let middle: String = (0..20).map(|n| format!("{n}\n")).collect();
        format!("{first}\n{middle}{last}\n")
    };
    fs::write(at("f"), text("a", "z")).expect("a file");
    fs::write(at("gone"), "here\n").expect("a file");
    let path = app.path().to_str().expect("UTF-8");
    ok(&daemon, &["create", "--name", "web", "--source-dir", path, "--source-path", "app"]);
    let change =
        "sed -i 's/^a$/A/; s/^z$/Z/' f; rm gone; mkdir d; echo new > d/new; echo bin > other";
    ok(&daemon, &["exec", "web", "--", "sh", "-c", change]);

    let ran = apply(&daemon, app.path(), "q\n");
    assert_eq!((ran.code, fs::read_dir(app.path()).expect("it").count()), (0, 2), "{ran:?}");
    assert!(at("gone").exists() && fs::read_to_string(at("f")).expect("f") == text("a", "z"));

    // In order: gone goes, d/new comes, the hunks of f, other comes.
    let ran = apply(&daemon, app.path(), "n\ny\nn\ny\nn\n");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("- a\n+ A\n") && ran.stderr.contains("hunk 2 of 2"), "{ran:?}");
    assert_eq!(fs::read_to_string(at("f")).expect("f"), text("a", "Z"), "{ran:?}");
    assert_eq!(fs::read_to_string(at("d/new")).expect("new"), "new\n");
    assert!(at("gone").exists() && !at("other").exists(), "{ran:?}");
    assert!(!at(".sandkeep-apply").exists(), "nothing is left");
}

#[test]
fn errors_name_commands_and_are_json_for_a_program() {
    let daemon = daemon!();
    let told = call(&daemon, &["show", "nobody"]);
    assert!(told.complaint().contains("`sandkeep ls`"), "{told:?}");
    assert!(!told.stderr.contains("/api/v1") && !told.stderr.contains("GET "), "{told:?}");
    for arguments in [&["show", "nobody", "--json"][..], &["snapshot", "nobody", "--json"]] {
        let told = call(&daemon, arguments);
        assert_eq!((told.code, &*told.stdout), (1, ""), "{told:?}");
        let error: Value = serde_json::from_str(&told.stderr).expect("JSON");
        assert_eq!((&error["code"], &error["exit_code"]), (&"not_found".into(), &1.into()));
        assert!(error["remediation"].to_string().contains("sandkeep ls"), "{error}");
    }
}
