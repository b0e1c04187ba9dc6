//! Diffs of a sandbox: shown, applied locally and reverted, on each storage.

#[cfg(feature = "failpoints")]
mod killed;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Daemon, Ground, Ran, binary};
use crate::{on_btrfs_and_local, on_each_storage};

#[cfg(feature = "failpoints")]
pub use killed::points as killed_at;

on_each_storage!(
    every_change_since_a_snapshot_is_told,
    files_that_are_reverted_are_as_they_were_and_processes_go_on,
);
on_btrfs_and_local!(
    changes_are_brought_home_whole_or_not_at_all,
    a_workspace_and_a_fork_are_compared_with_what_they_began_with,
);

fn at(id: &str, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{rest}")
}

fn snapshot(daemon: &Daemon, id: &str, name: &str) {
    daemon.expect(201, "POST", &at(id, "snapshots"), &json!({ "name": name }));
}

fn diff(daemon: &Daemon, id: &str, query: &str) -> Value {
    daemon.expect(200, "GET", &at(id, &format!("diff?{query}")), &Value::Null)
}

/// Each change as `<kind> <path>`.
fn told(diff: &Value) -> Vec<String> {
    let changes = diff["changes"].as_array().unwrap_or_else(|| panic!("{diff:#}")).iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    changes.map(|change| format!("{} {}", text(&change["kind"]), text(&change["path"]))).collect()
}

fn revert(daemon: &Daemon, id: &str, paths: &[&str]) -> Vec<String> {
    let wish = json!({ "snapshot": "first", "paths": paths });
    let answer = daemon.expect(200, "POST", &at(id, "revert"), &wish);
    let reverted = answer["reverted"].as_array().unwrap_or_else(|| panic!("{answer:#}")).iter();
    reverted.map(|path| path.as_str().expect("a path").to_owned()).collect()
}

const FILL: &str = "cd ~ && mkdir dir && echo one > dir/changed && echo two > dir/gone \
                    && echo three > dir/mode && ln -s changed dir/link && echo a longer text > old-name";
const CHANGE: &str = "cd ~ && echo more >> dir/changed && rm dir/gone && chmod 600 dir/mode \
                      && ln -sfn gone dir/link && mv old-name new-name && mkdir new && echo x > new/file";

fn every_change_since_a_snapshot_is_told(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    let fresh = diff(&daemon, &id, "");
    assert_eq!((told(&fresh), &fresh["from"]["kind"]), (vec![], &json!("base")));
    daemon.sh(&id, FILL).ok();
    assert!(told(&diff(&daemon, &id, "")).contains(&"added /home/user/dir/gone".to_owned()));
    snapshot(&daemon, &id, "first");
    assert_eq!(told(&diff(&daemon, &id, "from=first")), [""; 0]);
    daemon.sh(&id, CHANGE).ok();
    let expected = [
        "modified /home/user/dir/changed",
        "deleted /home/user/dir/gone",
        "modified /home/user/dir/link",
        "mode /home/user/dir/mode",
        "added /home/user/new",
        "added /home/user/new/file",
        "renamed /home/user/new-name",
    ];
    let now = diff(&daemon, &id, "from=first&text=true");
    assert_eq!((told(&now), &now["frozen"]), (expected.map(String::from).to_vec(), &json!(true)));
    assert_eq!(now["changes"][6]["from_path"], "/home/user/old-name");
    let text =
        "--- a/home/user/dir/changed\n+++ b/home/user/dir/changed\n@@ -1 +1,2 @@\n one\n+more\n";
    assert_eq!(now["changes"][0]["text"], text);
    snapshot(&daemon, &id, "second");
    daemon.sh(&id, "rm -r ~/*").ok();
    let between = diff(&daemon, &id, "from=first&to=second");
    assert_eq!(told(&between), expected, "the present is none of its business");
    let back = diff(&daemon, &id, "from=second&to=first&path=/home/user/new");
    assert_eq!(told(&back), ["deleted /home/user/new", "deleted /home/user/new/file"]);
    daemon.verb(&id, "stop");
    let stopped = diff(&daemon, &id, "from=second&path=/home/user/new");
    assert_eq!(told(&stopped), told(&back), "a stopped one can be looked at");
    let refused = daemon.expect(404, "GET", &at(&id, "diff?from=nowhere"), &Value::Null);
    assert_eq!(refused["code"], "snapshot_not_found");
    let listing = daemon.expect(200, "GET", &at(&id, "snapshots"), &Value::Null);
    assert_eq!(listing["items"].as_array().map(Vec::len), Some(2), "a diff leaves no snapshot");
    daemon.assert_no_leaks();
}

fn files_that_are_reverted_are_as_they_were_and_processes_go_on(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, FILL).ok();
    snapshot(&daemon, &id, "first");
    daemon.sh(&id, CHANGE).ok();
    let process = daemon.sh(&id, "sleep 100000 >/dev/null 2>&1 & echo $!").ok();
    let reverted = revert(&daemon, &id, &["/home/user/dir", "/home/user/new"]);
    let expected = [
        "/home/user/dir/changed",
        "/home/user/dir/gone",
        "/home/user/dir/link",
        "/home/user/dir/mode",
        "/home/user/new",
        "/home/user/new/file",
    ];
    assert_eq!(reverted, expected);
    let left = told(&diff(&daemon, &id, "from=first"));
    assert_eq!(left, ["renamed /home/user/new-name"], "nothing else is touched");
    assert_eq!(
        daemon.sh(&id, "cd ~/dir; cat changed gone; readlink link; stat -c %U:%a gone mode").ok(),
        "one\ntwo\nchanged\nuser:644\nuser:644"
    );
    assert_eq!(daemon.sh(&id, &format!("cat /proc/{process}/comm")).ok(), "sleep");
    assert_eq!(revert(&daemon, &id, &["/home/user/dir"]), [""; 0], "nothing is left to do");
    daemon.sh(&id, "rm -r ~/dir && echo no directory > ~/dir").ok();
    daemon.verb(&id, "stop");
    revert(&daemon, &id, &["/home/user/dir/gone", "/home/user/new-name"]);
    daemon.verb(&id, "start");
    assert_eq!(daemon.sh(&id, "cd; ls; cat dir/gone").ok(), "dir\ntwo", "stopped");
    let rest = ["/home/user/dir/changed", "/home/user/dir/link", "/home/user/dir/mode"];
    assert_eq!(revert(&daemon, &id, &["dir", "./new-name"]), rest, "from the working directory");
    for wrong in [json!([]), json!([""])] {
        let wish = json!({ "snapshot": "first", "paths": wrong });
        daemon.expect(400, "POST", &at(&id, "revert"), &wish);
    }
}

fn apply(daemon: &Daemon, id: &str, home: &Path, more: &[&str]) -> Ran {
    let mut command = binary();
    command.args(["--url", &daemon.url(), "apply", id, "--to"]).arg(home).args(more);
    command.output().expect("the binary runs").into()
}

fn changes_are_brought_home_whole_or_not_at_all(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, FILL).ok();
    snapshot(&daemon, &id, "first");
    daemon.sh(&id, CHANGE).ok();
    let home = tempfile::tempdir().expect("a directory");
    let home = home.path();
    let read = |name: &str| fs::read_to_string(home.join(name)).unwrap_or_default();
    fs::create_dir(home.join("dir")).expect("a directory");
    for (name, text) in [
        ("dir/changed", "one\n"),
        ("dir/gone", "two\n"),
        ("dir/mode", "three\n"),
        ("old-name", "mine\n"),
    ] {
        fs::write(home.join(name), text).expect("a file");
    }
    std::os::unix::fs::symlink("changed", home.join("dir/link")).expect("a link");
    let first = ["--from", "first"];
    let conflicting = apply(&daemon, &id, home, &["--from", "first", "--all-or-nothing"]);
    assert_eq!(conflicting.code, 8, "{conflicting:?}");
    assert!(conflicting.stdout.contains("conflict  old-name"), "{conflicting:?}");
    assert_eq!((read("dir/changed").as_str(), read("dir/gone").as_str()), ("one\n", "two\n"));
    fs::write(home.join("old-name"), "a longer text\n").expect("a file");
    let dry = apply(&daemon, &id, home, &["--from", "first", "--dry-run"]);
    assert_eq!((dry.code, read("dir/gone").as_str()), (0, "two\n"), "{dry:?}");
    let done = apply(&daemon, &id, home, &first);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(read("dir/changed"), "one\nmore\n");
    assert_eq!((read("new/file"), read("new-name")), ("x\n".into(), "a longer text\n".into()));
    assert!(!home.join("dir/gone").exists() && !home.join("old-name").exists());
    assert!(!home.join(".sandkeep-apply").exists(), "it leaves nothing behind");
    let again = apply(&daemon, &id, home, &first);
    assert_eq!((again.code, again.stdout.as_str()), (0, ""), "{again:?}");
}

/// The loop of somebody who has a project on this machine: bring it, change it, compare, fork, bring it home.
fn a_workspace_and_a_fork_are_compared_with_what_they_began_with(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let place = tempfile::Builder::new().prefix("skloop-").tempdir().expect("a directory");
    let app = place.path().join("app");
    fs::create_dir_all(app.join("src")).expect("a directory");
    fs::write(app.join("src/main.py"), "one\n").expect("a file");
    fs::write(app.join(".gitignore"), "__pycache__/\n").expect("a file");
    let id = daemon.create_with(&json!({ "source": { "dir": app } }));
    assert_eq!(daemon.get(&id)["workdir"], "/home/user/app");
    assert_eq!(daemon.sh(&id, "pwd").ok(), "/home/user/app", "commands run in the workspace");
    let fresh = diff(&daemon, &id, "");
    assert_eq!((told(&fresh), &fresh["from"]["name"]), (vec![], &json!("base")));
    let change =
        "echo two >> src/main.py; echo new > notes; mkdir __pycache__; echo x > __pycache__/a.pyc";
    daemon.sh(&id, change).ok();
    let changed = ["modified /home/user/app/src/main.py", "added /home/user/app/notes"];
    let all = told(&diff(&daemon, &id, ""));
    assert!(changed.iter().all(|line| all.contains(&(*line).to_owned())), "{all:?}");
    assert_eq!(told(&diff(&daemon, &id, "path=src")), changed[..1], "from the workspace");
    snapshot(&daemon, &id, "good");

    let made = daemon.expect(201, "POST", &at(&id, "fork"), &json!({ "snapshot": "good" }));
    let fork = made["sandboxes"][0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(daemon.get(&fork)["forked_from"], json!({ "sandbox": id, "snapshot": "good" }));
    assert_eq!(told(&diff(&daemon, &fork, "")), [""; 0], "nothing has changed since the fork");
    daemon.sh(&fork, "echo three >> src/main.py").ok();
    let since = ["modified /home/user/app/src/main.py"];
    assert_eq!(told(&diff(&daemon, &fork, "")), since);
    assert_eq!(told(&diff(&daemon, &fork, "from=good")), since, "a snapshot of its source");
    daemon.expect(404, "GET", &at(&fork, "diff?from=nowhere"), &Value::Null);

    let dry = apply(&daemon, &id, &app, &["--dry-run"]);
    assert_eq!(dry.code, 0, "{dry:?}");
    let done = apply(&daemon, &id, &app, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(fs::read_to_string(app.join("src/main.py")).expect("a file"), "one\ntwo\n");
    assert!(app.join("notes").exists() && !app.join("__pycache__").exists(), "{done:?}");
    fs::write(app.join("src/main.py"), "mine\n").expect("a file");
    daemon.sh(&id, "echo four >> src/main.py; echo more > more").ok();
    let disputed = apply(&daemon, &id, &app, &[]);
    assert_eq!(disputed.code, 8, "{disputed:?}");
    assert!(app.join("more").exists(), "a conflict blocks nothing else: {disputed:?}");
    assert_eq!(fs::read_to_string(app.join("src/main.py")).expect("a file"), "mine\n");
    let theirs = apply(&daemon, &id, &app, &["--theirs", "src/"]);
    assert_eq!(theirs.code, 0, "{theirs:?}");
    assert_eq!(fs::read_to_string(app.join("src/main.py")).expect("a file"), "one\ntwo\nfour\n");
    let misspelt = apply(&daemon, &id, &app, &["--path", "scr"]);
    assert_ne!(misspelt.code, 0, "{misspelt:?}");
    let file = apply(&daemon, &id, &app, &["--path", "src/main.py"]);
    assert!(file.code != 0 && file.stderr.contains("is not a directory"), "{file:?}");

    daemon.expect(200, "POST", &at(&id, "rollback"), &json!({ "snapshot": "base" }));
    assert_eq!(daemon.sh(&id, "cat src/main.py; ls").ok(), "one\nsrc", "as it was brought");
    daemon.destroy(&id);
    daemon.expect(404, "GET", &at(&fork, "diff?from=good"), &Value::Null);
    assert_eq!(told(&diff(&daemon, &fork, "")), since, "a fork keeps what it began with");
    daemon.assert_no_leaks();
}
