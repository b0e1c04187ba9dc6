//! Bombs. Each affects only its own sandbox, and is reported as what it was.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Setup, processes_in_cgroup, until};

/// The neighbour notices nothing.
fn assert_unharmed(daemon: &Daemon, neighbour: &str) {
    let command = "head -c 1000000 /dev/zero > ~/file && (true & wait) && wc -c < ~/file";
    assert_eq!(daemon.sh(neighbour, command).ok(), "1000000");
}

#[test]
fn a_memory_bomb_ends_as_oom_killed_and_hurts_nobody_else() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "memory_mb": 64 } }));
    let bomb = daemon.sh(&id, "echo before; tail /dev/zero");
    assert_eq!(bomb.outcome, "oom_killed", "{bomb:?}");
    assert_eq!(bomb.stdout_text(), "before\n");
    assert_unharmed(&daemon, &neighbour);
    assert_eq!(daemon.state(&id), "running");
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
}

#[test]
fn memory_in_files_of_a_memory_filesystem_counts_as_well() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "memory_mb": 64 } }));
    let bomb = daemon.sh(&id, "head -c 500000000 /dev/zero > /dev/shm/bomb");
    assert_ne!(bomb.exit_code, Some(0), "{bomb:?}");
    assert_unharmed(&daemon, &neighbour);
    daemon.sh(&id, "rm -f /dev/shm/bomb");
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
}

#[test]
fn a_fork_bomb_is_contained_and_can_be_cleared_away() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "pids": 64 } }));
    let inside = || processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len();
    // The first shell forks once, while it is alone: what it could not fork later would end it.
    let bomb = "f() { f | f & }; (f) & exec sleep 1000";
    let body = json!({ "command": bomb, "timeout_ms": 3_000 });
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| daemon.exec(&id, &body));
        assert_unharmed(&daemon, &neighbour);
        // The guest and what an exec needs of its own may come on top.
        assert!(inside() <= 64 + 8, "{} processes", inside());
        assert_eq!(bomb.join().expect("no panic").outcome, "timed_out");
    });
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive", "the timeout ended the whole bomb");
}

#[test]
fn a_fork_bomb_that_fills_the_sandbox_can_still_be_destroyed() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "pids": 64 } }));
    let script = "import os, time\n\
        while True:\n    \
            try:\n        os.fork()\n    \
            except OSError:\n        time.sleep(0.01)\n";
    let body = json!({ "argv": ["/usr/bin/python3", "-c", script], "timeout_ms": 60_000 });
    let target = format!("/api/v1/sandboxes/{id}/execs");
    std::thread::scope(|scope| {
        let bomb = scope.spawn(|| daemon.request("POST", &target, &body));
        until("the bomb has filled the sandbox", Patience::Short, || {
            processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() >= 60
        });
        // The guest is outside of the limit, so whoever comes to help gets in; but the help is
        // inside and cannot fork.
        let (_, answer) = daemon.request("POST", &target, &json!({ "argv": ["/bin/true"] }));
        assert_eq!(answer["exit_code"], 0, "{answer}");
        let (_, answer) = daemon.request("POST", &target, &json!({ "command": "true | true" }));
        assert_ne!(answer["exit_code"], 0, "{answer}");
        assert_unharmed(&daemon, &neighbour);
        daemon.destroy(&id);
        let (status, answer) = bomb.join().expect("no panic");
        assert!(status != 200 || answer["outcome"] != "exited", "{status} {answer}");
    });
    assert_eq!(daemon.ids(), [neighbour]);
    daemon.assert_no_leaks();
}

#[test]
fn a_full_disk_is_an_error_inside_and_nowhere_else() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 16 } }));
    let full = daemon.sh(&id, "head -c 100000000 /dev/zero > ~/big && sync ~/big").refused();
    assert!(full.contains("No space left") || full.contains("quota exceeded"), "{full}");
    let used = daemon.sh(&id, "wc -c < ~/big").ok();
    assert!(used.parse::<u64>().expect("a size") <= 17 * 1024 * 1024, "{used} bytes were written");
    assert_unharmed(&daemon, &neighbour);
    daemon.sh(&id, "rm ~/big && sync && head -c 1000000 /dev/zero > ~/small && sync ~/small").ok();
}

#[test]
fn many_small_files_do_not_pass_the_quota() {
    let daemon = daemon!();
    let neighbour = daemon.create();
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 8 } }));
    let script = "import os\n\
        os.chdir('/home/user')\n\
        for i in range(200000):\n    \
            with open(f'f{i}', 'w') as f: f.write('x' * 3000)\n";
    let finished = daemon.exec(&id, &json!({ "argv": ["/usr/bin/python3", "-c", script] }));
    assert!(finished.refused().contains("Errno"), "{finished:?}");
    assert_unharmed(&daemon, &neighbour);
}

#[test]
fn a_disk_limit_is_refused_where_it_would_not_hold() {
    crate::skip_if!(crate::support::obstacle());
    let daemon = Daemon::start_with(&Setup::default().argument("--storage").argument("local"));
    let spec = json!({ "resources": { "disk_mb": 16 } });
    let problem = daemon.expect(400, "POST", "/api/v1/sandboxes", &spec);
    assert!(problem.to_string().contains("btrfs"), "it does not name who can: {problem}");
    let id = daemon.create();
    assert_eq!(daemon.sh(&id, "echo works > ~/f && cat ~/f").ok(), "works");
}

#[test]
fn the_kernel_holds_the_limits_that_were_asked_for() {
    let daemon = daemon!();
    let resources = json!({ "memory_mb": 100, "cpus": 0.5, "pids": 77 });
    let id = daemon.create_with(&json!({ "resources": resources }));
    assert_eq!(daemon.get(&id)["resources"]["pids"], 77);
    let values = cgroup_values(&format!("sandkeep/{}/{id}", daemon.instance()));
    let has = |names: &[&str], expected: &[&str]| {
        values.iter().any(|(name, value)| names.contains(&&**name) && expected.contains(&&**value))
    };
    assert!(has(&["memory.limit_in_bytes", "memory.max"], &["104857600"]), "{values:?}");
    assert!(has(&["pids.max"], &["77"]), "{values:?}");
    assert!(has(&["cpu.cfs_quota_us", "cpu.max"], &["50000", "50000 100000"]), "{values:?}");
}

#[test]
fn limits_are_as_described_to_whoever_asks() {
    let daemon = daemon!();
    let listing = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let runtimes = listing["runtimes"].as_array().expect("runtimes");
    let native = runtimes.iter().find(|r| r["name"] == "native").expect("native");
    for capability in ["memory_limit", "cpu_limit", "pids_limit", "own_id_range", "isolation"] {
        assert_eq!(native["capabilities"][capability], true, "{capability}: {native}");
    }
    assert_eq!(native["capabilities"]["id_range"], "own", "{native}");
    let limits = native["capabilities"]["limits"].as_array().expect("a list").clone();
    assert!(["memory_mb", "cpus", "pids"].iter().all(|name| limits.contains(&json!(name))));
}

#[test]
fn a_runtime_has_a_browser_exactly_if_its_sandboxes_find_one() {
    let daemon = daemon!();
    let listing = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let told = &listing["runtimes"][0]["capabilities"]["has_browser"];
    let id = daemon.create();
    let look = "command -v chromium chromium-browser google-chrome firefox firefox-esr; true";
    let found = daemon.exec(&id, &json!({ "argv": ["sh", "-c", look] }));
    assert_eq!(told, &json!(!found.stdout.is_empty()), "found: {:?}", found.stdout);
}

/// All single-line files beneath the cgroups of this name, in every hierarchy.
pub fn cgroup_values(name: &str) -> Vec<(String, String)> {
    let mut pending: Vec<PathBuf> = vec![Path::new("/sys/fs/cgroup").join(name)];
    pending.extend(list(Path::new("/sys/fs/cgroup")).into_iter().map(|h| h.join(name)));
    let mut values = Vec::new();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(list(&path))
        } else {
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
            let value = fs::read_to_string(&path).unwrap_or_default();
            values.extend(name.map(|name| (name, value.trim().to_owned())));
        }
    }
    values
}

fn list(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
