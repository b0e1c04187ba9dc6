//! Limits of a single command, within those of its sandbox: the kernel enforces them, exceeding one ends only that
//! command, and nothing is left of them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon;
use crate::limits::cgroup_values;
use crate::support::{Daemon, Patience, Setup, binary, until};

/// The groups of commands with limits of their own, in every hierarchy.
fn own_leaves(daemon: &Daemon, id: &str) -> Vec<PathBuf> {
    let work = Path::new("sandkeep").join(daemon.instance()).join(id).join("work");
    let mut tops = vec![PathBuf::from("/sys/fs/cgroup")];
    tops.extend(list(Path::new("/sys/fs/cgroup")));
    let mut found: Vec<PathBuf> = tops.into_iter().flat_map(|top| list(&top.join(&work))).collect();
    found.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        path.is_dir() && name.starts_with('m') && name[1..].parse::<u32>().is_ok()
    });
    found
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// A group that somebody was still in is removed by who comes next.
fn assert_no_leaf_stays(daemon: &Daemon, id: &str) {
    until("the groups of the command are gone", Patience::Long, || {
        daemon.sh(id, "true").ok();
        own_leaves(daemon, id).is_empty()
    });
}

#[test]
fn the_kernel_holds_the_limits_of_one_command_for_as_long_as_it_runs() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let resources = json!({ "memory_mb": 33, "cpus": 0.25, "pids": 9 });
    let body = json!({ "command": "sleep 1000 & sleep 1000", "resources": resources });
    let held = |daemon: &Daemon| {
        let values = cgroup_values(&format!("sandkeep/{}/{id}/work", daemon.instance()));
        let has = |names: &[&str], expected: &[&str]| {
            let fits = |(name, value): &(String, String)| {
                names.contains(&&**name) && expected.contains(&&**value)
            };
            values.iter().any(fits)
        };
        has(&["memory.limit_in_bytes", "memory.max"], &["34603008"])
            && has(&["pids.max"], &["9"])
            && has(&["cpu.cfs_quota_us", "cpu.max"], &["25000", "25000 100000"])
    };
    let exec = daemon.begin(&id, &body);
    assert!(held(&daemon), "{:?}", own_leaves(&daemon, &id));
    daemon.expect(200, "GET", &daemon.exec_path(&id, &exec), &Value::Null);
    daemon.request("DELETE", &daemon.exec_path(&id, &exec), &Value::Null);
    assert_no_leaf_stays(&daemon, &id);
    assert!(!held(&daemon));

    let exec = daemon.begin(&id, &body);
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert!(held(&daemon), "the next daemon finds the command as it was");
    daemon.request("DELETE", &daemon.exec_path(&id, &exec), &Value::Null);
    assert_no_leaf_stays(&daemon, &id);
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

#[test]
fn who_passes_the_limit_of_its_command_ends_alone_and_is_told_why() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "resources": { "memory_mb": 256 } }));
    let greedy = "echo before; tail /dev/zero";
    let resources = json!({ "memory_mb": 32 });
    let ended = daemon.exec(&id, &json!({ "command": greedy, "resources": resources }));
    assert_eq!((&*ended.outcome, &*ended.stdout_text()), ("oom_killed", "before\n"), "{ended:?}");
    let same = "head -c 100000000 /dev/zero | tail | wc -c";
    assert_eq!(daemon.sh(&id, same).ok(), "100000000", "others have what the sandbox has");

    let forks = "true | cat | cat | cat | cat | cat | cat | cat && echo all";
    let few = daemon.exec(&id, &json!({ "command": forks, "resources": { "pids": 4 } }));
    assert!(few.refused().contains("fork"), "{few:?}");
    assert_eq!(daemon.sh(&id, forks).ok(), "all");

    let call = json!({ "command": greedy, "resources": resources });
    let target = format!("/api/v1/sandboxes/{id}/tools/bash");
    let answer = daemon.expect(200, "POST", &target, &call);
    assert_eq!((&answer["is_error"], &answer["refusal"]), (&json!(true), &json!("out_of_memory")));
    let said = answer["content"].to_string();
    assert!(said.contains("limit of this call: 32 MiB") && said.contains("instead: "), "{said}");
    let target = format!("/api/v1/sandboxes/{id}/tools/ls");
    let files = json!({ "path": "/", "resources": { "memory_mb": 16, "cpus": 0.5, "pids": 8 } });
    assert_eq!(daemon.expect(200, "POST", &target, &files)["is_error"], false);
    assert_no_leaf_stays(&daemon, &id);

    let mut cli = binary();
    cli.env("SANDKEEP_URL", daemon.url());
    cli.args(["exec", "--memory", "32", "--cpus", "0.5", "--pids", "16"]);
    let ran = cli.args([&*id, "--", "tail", "/dev/zero"]).output().expect("it runs");
    assert_eq!(ran.status.code(), Some(137), "{ran:?}");
    let mut cli = binary();
    cli.env("SANDKEEP_URL", daemon.url()).args(["tool", "--memory", "32", &id, "bash"]);
    let ran = cli.arg("command=tail /dev/zero").output().expect("it runs");
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("resources.memory_mb"), "{ran:?}");
}

#[test]
fn a_command_may_not_have_more_than_its_sandbox_nor_next_to_nothing() {
    let daemon = daemon!();
    let of_sandbox = json!({ "memory_mb": 64, "cpus": 0.5, "pids": 32 });
    let id = daemon.create_with(&json!({ "resources": of_sandbox }));
    let wrong = [
        ("resources.memory_mb", json!({ "memory_mb": 65 })),
        ("resources.memory_mb", json!({ "memory_mb": 1 })),
        ("resources.cpus", json!({ "cpus": 0.6 })),
        ("resources.cpus", json!({ "cpus": 0 })),
        ("resources.pids", json!({ "pids": 33 })),
        ("resources.pids", json!({ "pids": 0 })),
    ];
    for (field, resources) in wrong {
        let exec = json!({ "command": "true", "resources": resources });
        let tool = json!({ "command": "true", "resources": resources });
        for (path, body) in [("execs", exec), ("tools/bash", tool)] {
            let target = format!("/api/v1/sandboxes/{id}/{path}");
            let problem = daemon.expect(400, "POST", &target, &body);
            assert_eq!(problem["code"], "invalid_field", "{problem}");
            let detail = problem["detail"].as_str().expect("detail");
            assert!(detail.contains(field) && detail.contains("sandbox has"), "{detail}");
        }
    }
    let all = json!({ "command": "echo all", "resources": of_sandbox });
    assert_eq!(daemon.exec(&id, &all).ok(), "all", "as much as the sandbox has is fine");
    assert!(own_leaves(&daemon, &id).is_empty(), "{:?}", own_leaves(&daemon, &id));
}
