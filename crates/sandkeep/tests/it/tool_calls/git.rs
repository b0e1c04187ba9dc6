//! The git tools, with the sandbox's own git, and with a git server inside the sandbox.

use std::path::Path;

use serde_json::{Value, json};

use super::{done, refused};
use crate::daemon;
use crate::skip_if;
use crate::support::Daemon;

/// Why sandboxes of the host's own system have no git.
fn obstacle() -> Option<&'static str> {
    let has =
        Path::new("/usr/bin/git").exists() && Path::new("/usr/lib/git-core/git-daemon").exists();
    (!has).then_some("needs the package git")
}

fn serve_repositories(daemon: &Daemon, id: &str) {
    daemon.sh(id, "git init -q --bare srv/repo.git").ok();
    let server = json!({
        "argv": ["git", "daemon", "--base-path=/home/user/srv", "--export-all", "--enable=receive-pack",
                 "--listen=127.0.0.1", "--reuseaddr"],
        "port": 9418,
        "ready": { "tcp": true, "timeout_secs": 60 },
    });
    let target = format!("/api/v1/sandboxes/{id}/processes");
    let process = daemon.expect(201, "POST", &target, &server);
    assert_eq!(process["status"], "running", "{process:#}");
}

#[test]
fn a_repository_is_cloned_changed_pushed_and_pulled() {
    skip_if!(obstacle());
    let daemon = daemon!();
    let id = daemon.create();
    serve_repositories(&daemon, &id);
    let git = |verb: &str, cwd: &str, rest: Value| {
        let mut arguments = rest;
        arguments["cwd"] = json!(format!("/home/user/{cwd}"));
        done(&daemon, &id, &format!("git_{verb}"), &arguments)
    };
    let url = "git://127.0.0.1/repo.git";
    done(&daemon, &id, "git_clone", &json!({ "url": url, "path": "work" }));
    let write = |path: &str, content: &str| {
        done(&daemon, &id, "write_file", &json!({ "path": path, "content": content }))
    };
    write("work/a b.txt", "one\n");
    assert!(git("status", "work", json!({})).contains("?? \"a b.txt\""));
    git("add", "work", json!({ "paths": ["a b.txt"] }));
    assert!(git("diff", "work", json!({ "staged": true })).contains("+one"));
    git("commit", "work", json!({ "message": "-first: with 'quotes'\n\nand a body" }));
    git("push", "work", json!({ "remote": "origin", "branch": "HEAD", "set_upstream": true }));

    done(&daemon, &id, "git_clone", &json!({ "url": url, "path": "other", "depth": 1 }));
    write("other/a b.txt", "one\ntwo\n");
    assert!(git("diff", "other", json!({ "paths": ["a b.txt"] })).contains("+two"));
    git("add", "other", json!({ "paths": ["."] }));
    git("commit", "other", json!({ "message": "second" }));
    git("push", "other", json!({}));

    git("fetch", "work", json!({}));
    assert!(git("status", "work", json!({})).contains("behind 1"));
    git("pull", "work", json!({}));
    assert_eq!(daemon.sh(&id, "cat 'work/a b.txt'").ok(), "one\ntwo");
    let log = git("log", "work", json!({}));
    let subjects: Vec<&str> = log.lines().collect();
    assert_eq!(subjects.len(), 2, "{log}");
    assert!(
        subjects[0].contains("second") && subjects[1].contains("-first: with 'quotes'"),
        "{log}"
    );
    assert_eq!(git("log", "work", json!({ "max_count": 1 })).lines().count(), 1);
    assert!(git("show", "work", json!({})).contains("+two"));
    assert_eq!(git("show", "work", json!({ "revision": "HEAD~1:a b.txt" })), "one\n");
}

#[test]
fn what_git_cannot_do_says_what_to_do_instead() {
    skip_if!(obstacle());
    let daemon = daemon!();
    let id = daemon.create();
    let refused = |verb: &str, arguments: Value, code: &str| {
        refused(&daemon, &id, &format!("git_{verb}"), &arguments, code)
    };
    refused("status", json!({ "cwd": "/tmp" }), "not_repository");
    daemon.sh(&id, "git init -q /tmp/r").ok();
    refused("commit", json!({ "message": "x", "cwd": "/tmp/r" }), "nothing_to_commit");
    refused("log", json!({ "revision": "nothing", "cwd": "/tmp/r" }), "command_failed");
    let outside = refused("clone", json!({ "url": "git://192.0.2.1/x.git" }), "no_network");
    assert!(outside.contains("loopback"), "{outside}");
    refused("clone", json!({ "url": "https://example.invalid/x.git" }), "no_network");
    refused("push", json!({ "cwd": "/tmp/r" }), "command_failed");
}
