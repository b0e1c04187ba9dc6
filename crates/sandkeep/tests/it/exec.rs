//! Commands: input reaches them, output comes back, and every one has exactly one outcome.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Patience, bytes, processes_in_cgroup, until};

#[test]
fn output_and_exit_code_come_back_apart() {
    let daemon = daemon!();
    let id = daemon.create();
    let finished = daemon.sh(&id, "echo out; echo err >&2; exit 7");
    assert_eq!(finished.outcome, "exited");
    assert_eq!(finished.exit_code, Some(7));
    assert_eq!(finished.stdout_text(), "out\n");
    assert_eq!(finished.stderr_text(), "err\n");
    assert_eq!(finished.answer["truncated"], false);
    assert!(finished.answer["duration_ms"].is_u64());
    assert!(finished.answer["exec_id"].as_str().is_some_and(|id| id.starts_with("ex")));
}

#[test]
fn stdin_reaches_the_command_and_ends() {
    let daemon = daemon!();
    let id = daemon.create();
    let text = "line\n".repeat(100_000);
    let finished = daemon.exec(&id, &json!({ "argv": ["wc", "-c"], "stdin": text }));
    assert_eq!(finished.ok(), text.len().to_string());
    assert_eq!(daemon.exec(&id, &json!({ "argv": ["cat"] })).ok(), "", "no stdin is the end of it");
    // A command that does not read its input must not be harmed by it, nor harm us.
    assert_eq!(daemon.exec(&id, &json!({ "argv": ["echo", "hi"], "stdin": text })).ok(), "hi");
}

#[test]
fn environment_directory_and_user_are_as_asked() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "env": { "FROM": "sandbox", "BOTH": "sandbox" } }));
    let body =
        json!({ "command": "echo $FROM $BOTH $ONLY", "env": { "BOTH": "exec", "ONLY": "é" } });
    assert_eq!(daemon.exec(&id, &body).ok(), "sandbox exec é");

    assert_eq!(
        daemon.sh(&id, "pwd; id -u; id -un; echo $HOME $USER").ok(),
        "/home/user\n1000\nuser\n/home/user user"
    );
    let root = daemon.root_sh(&id, "pwd; id -u; id -un; echo $HOME");
    assert_eq!(root.ok(), "/root\n0\nroot\n/root");
    assert_eq!(
        daemon.exec(&id, &json!({ "command": "id -u; id -g", "user": "1234:99" })).ok(),
        "1234\n99"
    );
    assert_eq!(daemon.exec(&id, &json!({ "argv": ["pwd"], "cwd": "/usr" })).ok(), "/usr");
}

#[test]
fn what_cannot_be_started_says_why() {
    let daemon = daemon!();
    let id = daemon.create();
    let missing = daemon.exec(&id, &json!({ "argv": ["no-such-command"] }));
    assert_eq!((missing.outcome.as_str(), missing.exit_code), ("exited", Some(127)));
    assert!(missing.answer["error"].is_string(), "{missing:?}");
    let not_executable = daemon.exec(&id, &json!({ "argv": ["/etc/passwd"] }));
    assert_eq!(not_executable.exit_code, Some(126));
    assert!(not_executable.answer["error"].is_string(), "{not_executable:?}");

    let target = format!("/api/v1/sandboxes/{id}/execs");
    for bad in [
        json!({}),
        json!({ "argv": [] }),
        json!({ "command": "true", "argv": ["true"] }),
        json!({ "argv": ["a\u{0}b"] }),
        json!({ "command": "true", "env": { "A=B": "c" } }),
        json!({ "command": "true", "timeout_ms": 0 }),
        json!({ "command": "true", "tiemout_ms": 1 }),
    ] {
        let problem = daemon.expect(400, "POST", &target, &bad);
        assert!(problem["detail"].is_string(), "{problem}");
    }
}

#[test]
fn an_exec_in_no_such_place_or_as_nobody_known_is_refused_or_ends_with_a_reason() {
    let daemon = daemon!();
    let id = daemon.create();
    for body in [
        json!({ "command": "true", "cwd": "/no/such/place" }),
        json!({ "command": "true", "user": "no-such-user" }),
    ] {
        let (status, answer) =
            daemon.request("POST", &format!("/api/v1/sandboxes/{id}/execs"), &body);
        let reason = if status == 200 { &answer["error"] } else { &answer["detail"] };
        assert!(reason.as_str().is_some_and(|r| r.contains("no")), "{body}: {status} {answer}");
        assert_ne!(answer["exit_code"], 0, "{body}: {answer}");
    }
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
}

#[test]
fn a_signal_is_told_from_an_exit_code() {
    let daemon = daemon!();
    let id = daemon.create();
    let killed = daemon.sh(&id, "kill -9 $$");
    assert_eq!(killed.outcome, "signaled");
    assert_eq!(killed.answer["signal"], 9);
    assert_eq!(killed.exit_code, None);
}

#[test]
fn exec_timeout_kills_the_whole_tree() {
    let daemon = daemon!();
    let id = daemon.create();
    // Children that left the process group and the session, and one that ignores SIGTERM.
    let command = "echo before; setsid sh -c 'trap \"\" TERM; sleep 4321 & wait' & \
                   (sh -c 'sleep 4322' &) ; sleep 4323";
    let finished = daemon.exec(&id, &json!({ "command": command, "timeout_ms": 500 }));
    assert_eq!(finished.outcome, "timed_out", "{finished:?}");
    assert_eq!(finished.stdout_text(), "before\n", "output before the timeout is kept");
    let left = daemon.sh(&id, "ps -e -o args= | grep 'sleep [4]32' | wc -l");
    assert_eq!(left.ok(), "0");
}

#[test]
fn bytes_that_are_no_text_arrive_unchanged() {
    let daemon = daemon!();
    let id = daemon.create();
    let finished = daemon.sh(&id, r"printf '\000\377\376abc\200'; printf '\355\240\200' >&2");
    assert_eq!(finished.stdout, b"\x00\xff\xfeabc\x80");
    assert_eq!(finished.stderr, b"\xed\xa0\x80");
    assert!(finished.answer["stdout_b64"].is_string() && finished.answer["stdout"].is_null());
}

#[test]
fn a_flood_is_capped_and_says_so() {
    let daemon = daemon!();
    let id = daemon.create();
    let finished = daemon.sh(&id, "head -c 60000000 /dev/zero | tr '\\0' x; echo END; echo e >&2");
    assert_eq!(finished.exit_code, Some(0));
    assert_eq!(finished.answer["truncated"], true);
    assert!(finished.stdout.len() < 8_000_000, "{} bytes were kept", finished.stdout.len());
    assert!(finished.stdout.starts_with(b"xxx") && finished.stdout.ends_with(b"xEND\n"));
    assert_eq!(finished.stderr_text(), "e\n");
}

#[test]
fn a_live_exec_tells_things_as_they_happen_and_ends_once() {
    let daemon = daemon!();
    let id = daemon.create();
    // The command goes on only when the test has seen its first line, so the line came live.
    let command =
        "echo first; while ! [ -e /tmp/go ]; do sleep 0.05; done; echo second >&2; exit 3";
    let mut events = daemon.events(&id, &json!({ "command": command }));
    let started = events.next().expect("an event");
    assert_eq!(started["type"], "started");
    assert!(started["exec_id"].is_string());
    let first = events.next().expect("an event");
    assert_eq!(first, json!({ "type": "stdout", "offset": 0, "data": "first\n" }));
    daemon.sh(&id, "touch /tmp/go").ok();
    let rest: Vec<Value> = events.collect();
    assert_eq!(rest[0], json!({ "type": "stderr", "offset": 0, "data": "second\n" }));
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert_eq!(rest[1]["type"], "exited");
    assert_eq!(rest[1]["exit_code"], 3);
}

#[test]
fn a_live_exec_has_no_gap_and_keeps_its_order() {
    let daemon = daemon!();
    let id = daemon.create();
    let command = "seq 1 200000; printf '\\377\\n'";
    let mut expected: Vec<u8> = (1..=200_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    expected.extend_from_slice(b"\xff\n");
    let mut received = Vec::new();
    let mut ends = Vec::new();
    for event in daemon.events(&id, &json!({ "command": command })) {
        match event["type"].as_str() {
            Some("stdout") => {
                assert_eq!(event["offset"], received.len(), "a gap or a repetition");
                received.extend(bytes(&event, "data"));
            }
            Some("started") => assert!(received.is_empty() && ends.is_empty()),
            _ => ends.push(event),
        }
    }
    assert!(received == expected, "{} bytes of {}", received.len(), expected.len());
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["type"], "exited");
}

#[test]
fn a_client_that_leaves_does_not_end_the_command() {
    let daemon = daemon!();
    let id = daemon.create();
    let command = "echo on; sleep 0.3; yes | head -c 5000000; echo done > /tmp/done";
    let mut events = daemon.events(&id, &json!({ "command": command }));
    assert_eq!(events.next().expect("an event")["type"], "started");
    assert_eq!(events.next().expect("an event")["data"], "on\n");
    drop(events);
    until("the command has gone on to its end", Patience::Short, || {
        daemon.sh(&id, "cat /tmp/done 2>/dev/null").stdout_text() == "done\n"
    });
}

#[test]
fn a_background_process_does_not_hold_the_exec_and_survives_it() {
    let daemon = daemon!();
    let id = daemon.create();
    // It holds the pipes of the exec, and writes to them later: no SIGPIPE may end it.
    let command = "(sleep 0.5; echo late; echo late >&2; sleep 1000) & echo now";
    let finished = daemon.sh(&id, command);
    assert_eq!(finished.ok(), "now");
    until("the background process has written and lives", Patience::Short, || {
        daemon.sh(&id, "ps -e -o args=").stdout_text().contains("sleep 1000")
    });
}

#[test]
fn execs_run_side_by_side() {
    let daemon = daemon!();
    let id = daemon.create();
    // Each waits for the other: one after the other they would wait for ever.
    let meet = |own: &str, other: &str| {
        json!({
            "command": format!("touch /tmp/{own}; while ! [ -e /tmp/{other} ]; do sleep 0.05; done"),
            "timeout_ms": 20_000,
        })
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| daemon.exec(&id, &meet("one", "two")));
        let two = scope.spawn(|| daemon.exec(&id, &meet("two", "one")));
        one.join().expect("no panic").ok();
        two.join().expect("no panic").ok();
    });
}

#[test]
fn an_idle_sandbox_costs_no_processor_time_on_the_host() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "true").ok();
    let inside = || processes_in_cgroup(&format!("{}/{id}", daemon.instance()));
    let guests = inside();
    assert_eq!(guests.len(), 1, "an idle sandbox is its guest alone: {guests:?}");
    let before = crate::support::cpu_seconds(guests[0]);
    // Other work on the daemon passes the time; the idle sandbox takes no part in it.
    let busy = daemon.create();
    for _ in 0..20 {
        daemon.sh(&busy, "true").ok();
    }
    assert!(crate::support::cpu_seconds(guests[0]) - before < 0.05, "the idle guest is busy");
}
