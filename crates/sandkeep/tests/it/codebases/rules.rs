//! Rules that mounts alone keep, and honest refusals of all others.

use std::collections::BTreeMap;

use sandkeep_core::limits;
use serde_json::{Value, json};

use super::{call, make, read, with_codebase, write};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, until};

#[test]
fn a_read_only_codebase_is_read_and_not_written() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "kept", "as it was");
    let spec = json!({ "codebase": "code", "rules": "read-only", "privilege": "root" });
    let sandbox = daemon.create_with(&spec);
    let attempts = "(echo x > kept) || (echo x > new) || rm kept || mv kept gone || chmod 777 kept || \
                    sudo -n sh -c 'echo x > kept' || mount -o remount,rw /workspace || cat kept";
    let said = daemon.sh(&sandbox, attempts);
    assert!(said.stdout.ends_with(b"as it was"), "{}", String::from_utf8_lossy(&said.stdout));
    assert_eq!(read(&daemon, "code", "kept").as_deref(), Ok("as it was"));
    let rules =
        daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{sandbox}/rules"), &Value::Null);
    let expected =
        json!({ "rules": { "preset": "read-only" }, "served": "bind", "effect": "next_start" });
    assert_eq!(rules, expected);
}

#[test]
fn a_directory_is_writable_in_a_codebase_that_is_read() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "output/first", "1");
    write(&daemon, "code", "src/a", "a");
    let rules = json!([
        { "pattern": "**/*", "permission": "read" },
        { "pattern": "output", "permission": "write" },
    ]);
    let sandbox = daemon.create_with(&json!({ "codebase": "code", "rules": rules }));
    let tried = "echo 2 > output/second; (echo x > src/b) 2>/dev/null; (echo x > top) 2>/dev/null; \
                 mv output gone 2>/dev/null; ls . output src";
    assert_eq!(
        daemon.sh(&sandbox, tried).ok(),
        ".:\noutput\nsrc\n\noutput:\nfirst\nsecond\n\nsrc:\na"
    );
    assert_eq!(read(&daemon, "code", "output/second").as_deref(), Ok("2\n"));
    let checked = call(&daemon, &["codebase", "check", &sandbox, "output/x", "src/a"]);
    assert!(checked.stdout.contains("output/x") && checked.stdout.contains("write"), "{checked:?}");
    // A directory with write permission must be a directory and no link to one.
    let other = with_codebase(&daemon, "code");
    daemon.sh(&other, "rm -rf output && ln -s /etc output").ok();
    let spec = json!({ "codebase": "code", "rules": rules });
    let refused = daemon.request("POST", "/api/v1/sandboxes", &spec);
    assert_eq!(refused.1["code"], "rules_not_served", "{refused:?}");
}

/// Why no server can keep rules here.
pub fn no_server() -> Option<String> {
    obstacle().map(str::to_owned).or_else(sandkeep_rulefs::unusable)
}

#[test]
fn a_server_hides_what_rules_hide_and_refuses_what_they_refuse() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    for (path, content) in
        [("src/a", "a"), ("src/.env", "secret"), ("secrets/key", "secret"), ("output/first", "1")]
    {
        write(&daemon, "code", path, content);
    }
    let sandbox = daemon.create_with(&json!({ "codebase": "code", "rules": "agent-safe" }));
    let rules = format!("/api/v1/sandboxes/{sandbox}/rules");
    let kept = daemon.expect(200, "GET", &rules, &Value::Null);
    let expected =
        json!({ "rules": { "preset": "agent-safe" }, "served": "fuse", "effect": "at_once" });
    assert_eq!(kept, expected);
    assert_eq!(daemon.get(&sandbox)["codebase"]["served"], "fuse");
    let tried = "ls -A . src; cat src/a; cat src/.env 2>/dev/null || echo hidden; \
                 cat secrets/key 2>/dev/null || echo hidden; (echo x > src/a) 2>/dev/null || echo refused; \
                 rm src/a 2>/dev/null || echo refused; echo 2 > output/second && cat output/second; \
                 stat -c %U src/a output/second";
    let expected = ".:\noutput\nsrc\n\nsrc:\na\nahidden\nhidden\nrefused\nrefused\n2\nnobody\nuser";
    assert_eq!(daemon.sh(&sandbox, tried).ok(), expected);
    assert_eq!(read(&daemon, "code", "output/second").as_deref(), Ok("2\n"));
    // Changes by the API are seen at once, also of files that were missing or different a moment ago.
    assert_eq!(daemon.sh(&sandbox, "cat src/new 2>/dev/null || ls src").ok(), "a");
    write(&daemon, "code", "src/new", "made by the API");
    write(&daemon, "code", "src/a", "b");
    assert_eq!(daemon.sh(&sandbox, "cat src/new src/a; ls src").ok(), "made by the APIba\nnew");
    daemon.verb(&sandbox, "stop");
    daemon.assert_no_leaks();
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.sh(&sandbox, "ls -A src").ok(), "a\nnew");
}

/// The limits of a process, by their names: those that it cannot raise.
fn limits_of(pid: u32) -> Option<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let row = |line: &str| {
        let (name, rest) = line.split_at_checked(26)?;
        let hard = rest.split_whitespace().nth(1)?;
        Some((name.trim().to_owned(), hard.to_owned()))
    };
    Some(text.lines().skip(1).filter_map(row).collect())
}

#[test]
fn a_server_has_bounds_for_memory_and_descriptors() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    daemon.create_with(&json!({ "codebase": "code", "rules": "agent-safe" }));
    let program = std::fs::canonicalize(env!("CARGO_BIN_EXE_sandkeep")).expect("it is there");
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = pids.filter(|pid| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program)
    });
    let descriptors = limits::RULEFS_DESCRIPTORS_MAX.to_string();
    let servers: Vec<_> = ours
        .filter_map(limits_of)
        .filter(|limits| limits.get("Max open files") == Some(&descriptors))
        .collect();
    assert!(servers.len() >= 2, "a keeper and its server: {servers:?}");
    for limits in servers {
        assert_eq!(limits["Max data size"], limits::RULEFS_MEMORY_MAX_BYTES.to_string());
    }
}

#[test]
fn rules_are_replaced_while_a_sandbox_runs() {
    skip_if!(no_server());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "src/a", "a");
    write(&daemon, "code", "notes", "n");
    let sandbox = daemon.create_with(&json!({ "codebase": "code", "rules": "development" }));
    assert_eq!(daemon.sh(&sandbox, "echo b > src/a && cat src/a notes").ok(), "b\nn");
    let rules = format!("/api/v1/sandboxes/{sandbox}/rules");
    let stricter = json!([
        { "pattern": "src/**", "permission": "read" },
        { "pattern": "notes", "permission": "none", "type": "file" },
    ]);
    daemon.expect(200, "PUT", &rules, &json!({ "rules": stricter }));
    let tried = "(echo c > src/a) 2>/dev/null || echo refused; cat src/a; ls";
    assert_eq!(daemon.sh(&sandbox, tried).ok(), "refused\nb\nsrc");
    // Mounts could keep these; the server that is there does, until the sandbox starts again.
    let kept = daemon.expect(200, "PUT", &rules, &json!({ "rules": "read-only" }));
    assert_eq!((&kept["served"], &kept["effect"]), (&json!("fuse"), &json!("at_once")));
    assert_eq!(
        daemon.sh(&sandbox, "(echo c > src/a) 2>/dev/null || echo refused; ls").ok(),
        "refused\nnotes\nsrc"
    );
    daemon.verb(&sandbox, "stop");
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.get(&sandbox)["codebase"]["served"], "bind");
    daemon.expect(400, "PUT", &rules, &json!({ "rules": "no-such-preset" }));
}

#[test]
fn a_server_outlives_the_daemon_and_its_end_is_that_of_the_sandbox() {
    skip_if!(no_server());
    let mut daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "a", "a");
    write(&daemon, "code", ".env", "secret");
    let sandbox = daemon.create_with(&json!({ "codebase": "code", "rules": "development" }));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.sh(&sandbox, "ls -A; cat a").ok(), "a\na");
    write(&daemon, "code", "b", "b");
    assert_eq!(daemon.sh(&sandbox, "cat b").ok(), "b");
    let socket =
        std::os::unix::net::UnixStream::connect(daemon.data_dir().join("rules").join(&sandbox));
    let peer = rustix::net::sockopt::socket_peercred(socket.expect("the server listens"));
    let keeper = peer.expect("a peer").pid;
    rustix::process::kill_process(keeper, rustix::process::Signal::KILL).expect("it runs");
    until("the sandbox has failed", Patience::Short, || daemon.state(&sandbox) == "failed");
    let reason = daemon.get(&sandbox)["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("the rules of its codebase"), "{reason}");
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.sh(&sandbox, "ls -A").ok(), "a\nb");
    daemon.destroy(&sandbox);
    daemon.assert_no_leaks();
}

#[test]
fn rules_are_judged_for_anybody_and_wrong_ones_are_refused_before_anything_is_made() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    for rules in [
        json!("no-such-preset"),
        json!([{ "pattern": "a" }]),
        json!([{ "pattern": "", "permission": "read" }]),
    ] {
        let spec = json!({ "codebase": "code", "rules": rules });
        daemon.expect(400, "POST", "/api/v1/sandboxes", &spec);
    }
    assert_eq!(daemon.ids(), [""; 0]);
    let request = json!({ "paths": ["src/.env", "src/a"], "rules": "development" });
    let said = daemon.expect(200, "POST", "/api/v1/codebases/code/check", &request);
    assert_eq!(said["items"][0]["permission"], "none");
    assert_eq!(said["items"][1]["permission"], "write");
    assert!(
        said["items"][0]["rule"].as_str().is_some_and(|rule| rule.contains("**/.env*")),
        "{said}"
    );
}

#[test]
fn rules_of_a_stopped_sandbox_are_replaced() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    let sandbox = with_codebase(&daemon, "code");
    let rules = format!("/api/v1/sandboxes/{sandbox}/rules");
    daemon.sh(&sandbox, "echo 1 > f").ok();
    let busy = daemon.expect(409, "PUT", &rules, &json!({ "rules": "read-only" }));
    assert_eq!(busy["code"], "wrong_state");
    daemon.verb(&sandbox, "stop");
    daemon.expect(200, "PUT", &rules, &json!({ "rules": "read-only" }));
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.sh(&sandbox, "(echo 2 > f) 2>/dev/null; cat f").ok(), "1");
    let plain = daemon.create();
    daemon.expect(400, "GET", &format!("/api/v1/sandboxes/{plain}/rules"), &Value::Null);
}
