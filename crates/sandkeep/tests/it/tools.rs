//! Sandboxes created by external tools (bwrap, crun, runc), through the real daemon: they behave like all others, even
//! after the daemon was killed.

use std::process::Command;

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{
    Daemon, Raw, Setup, binary, doctor, file_server, obstacle, processes_in_cgroup,
};

/// Why the tool cannot be used here, by the daemon's own words.
pub fn missing(daemon: &Daemon, runtime: &str) -> Option<String> {
    let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let items = listed["runtimes"].as_array().expect("runtimes");
    let found = items.iter().find(|item| item["name"] == runtime).expect("it is listed");
    found["reason"].as_str().map(str::to_owned)
}

fn page(daemon: &Daemon, id: &str) -> u16 {
    let target = format!("/api/v1/sandboxes/{id}/ports/8000/");
    let head = format!("GET {target} HTTP/1.1\r\nHost: {}\r\n\r\n", daemon.address());
    Raw::open(daemon.address()).send(head.as_bytes()).reply("GET").status
}

/// Checks what every sandbox shows of itself, whoever made it.
fn looks_like_any_other(daemon: &Daemon, id: &str) {
    let inside = "id -u; hostname; cat /proc/1/comm; ls /sys 2>&1 | wc -l; \
                  grep -c . /proc/net/dev; grep NoNewPrivs /proc/self/status | cut -f2; \
                  grep 'Seccomp:' /proc/1/status | cut -f2";
    let said = daemon.sh(id, inside).ok();
    assert_eq!(said, format!("1000\n{id}\nsandkeep-guest\n1\n3\n1\n2"));
    daemon.sh(id, "mount -t tmpfs x /mnt 2>&1; unshare -U true").refused();
    daemon.sh(id, "echo x > /usr/x").refused();
    daemon.root_sh(id, "echo 1 > /proc/sys/kernel/panic").refused();
    daemon.root_sh(id, "ls -A /proc/1/fd | grep . && readlink /proc/1/fd/3").refused();
}

fn outlives_the_daemon(mut daemon: Daemon, runtime: &str) {
    let id = daemon.create_with(&json!({ "runtime": runtime }));
    looks_like_any_other(&daemon, &id);
    daemon.sh(&id, "echo kept > ~/note").ok();
    let target = format!("/api/v1/sandboxes/{id}/processes");
    let process = daemon.expect(201, "POST", &target, &file_server(8000));
    assert_eq!(process["status"], "running", "{process:#}");
    assert_eq!(page(&daemon, &id), 200);

    let group = format!("{}/{id}", daemon.instance());
    let before = processes_in_cgroup(&group);
    assert_eq!(before.len(), 2, "the guest and the server, and nothing of the tool");
    daemon.kill_9();
    assert_eq!(processes_in_cgroup(&group), before);
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.state(&id), "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
    assert_eq!(page(&daemon, &id), 200);
    assert_eq!(daemon.verb(&id, "pause")["state"], "paused");
    assert_eq!(page(&daemon, &id), 409, "nobody would answer");
    daemon.verb(&id, "resume");
    assert_eq!(page(&daemon, &id), 200);

    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
    daemon.destroy(&id);
    let (clean, said) = doctor(&daemon.data_dir());
    assert!(clean, "doctor found leaks: {said:#}");
}

macro_rules! tests_of_each_tool {
    ($($tool:ident)*) => {$(
        mod $tool {
            use super::*;

            #[test]
            fn a_sandbox_outlives_the_daemon_and_leaves_nothing() {
                let daemon = daemon!();
                crate::skip_if!(missing(&daemon, stringify!($tool)));
                outlives_the_daemon(daemon, stringify!($tool));
            }

            #[test]
            fn a_run_passes_everything_through_and_leaves_nothing() {
                crate::skip_if!(obstacle());
                runs(stringify!($tool));
            }
        }
    )*};
}

tests_of_each_tool!(bwrap crun runc);

/// With nobody but the command that waits for it.
fn runs(runtime: &str) {
    let place = tempfile::tempdir().expect("a directory");
    let run = |command: &[&str]| -> Command {
        let mut run = binary();
        run.env("TMPDIR", place.path()).args(["run", "--runtime", runtime, "--"]).args(command);
        run
    };
    let output = run(&["sh", "-c", "echo out; echo err >&2; exit 5"]).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    if err.contains("is not installed") {
        eprintln!("SKIP tools::{runtime}::a_run_passes_everything_through: {err}");
        return;
    }
    assert_eq!((output.status.code(), &*out, &*err), (Some(5), "out\n", "err\n"));
    let left: Vec<_> = std::fs::read_dir(place.path()).expect("it is there").collect();
    assert!(left.is_empty(), "{left:?}");
}
