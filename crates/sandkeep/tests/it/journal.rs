//! The output of an exec is kept: for its client, for others, for later, and through crashes.

use std::fs;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{
    Daemon, Patience, Ran, Setup, binary, joined, kill_sandbox, obstacle, processes_in_cgroup,
    until, until_some,
};

/// Says a line to each stream for every number, waits for a sign in the middle, and exits with 7.
const TALK: &str = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo \"out $i\"; echo \"err $i\" >&2; \
                    if [ $i = 200 ]; then while ! [ -e /tmp/go ]; do sleep 0.02; done; fi; done; exit 7";

fn talked(stream: &str) -> Vec<u8> {
    (1..=400).flat_map(|n| format!("{stream} {n}\n").into_bytes()).collect()
}

fn ended(daemon: &Daemon, id: &str, exec: &str) -> Value {
    until_some("the exec has ended", Patience::Short, || {
        let view = daemon.exec_view(id, exec);
        (view["status"] != "running").then_some(view)
    })
}

#[test]
fn an_exec_that_is_not_waited_for_is_found_again_with_all_it_said() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = json!({
        "command": "echo out; echo err >&2; exit 3", "env": { "SECRET": "hunter2" },
        "cwd": "/tmp", "timeout_ms": 60_000,
    });
    let exec = daemon.begin(&id, &body);
    let view = ended(&daemon, &id, &exec);
    assert_eq!(view["exec_id"], exec.as_str());
    assert_eq!((&view["status"], &view["exit_code"]), (&json!("exited"), &json!(3)));
    assert_eq!(view["argv"], json!(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]));
    assert_eq!((&view["cwd"], &view["user"]), (&json!("/tmp"), &json!("user")));
    assert_eq!((&view["stdout_bytes"], &view["stderr_bytes"]), (&json!(4), &json!(4)));
    assert_eq!(view["truncated"], false);
    for field in ["started_at", "ended_at"] {
        assert!(view[field].as_str().is_some_and(|at| at.ends_with('Z')), "{view}");
    }
    assert!(view["duration_ms"].is_u64(), "{view}");
    let events: Vec<Value> = daemon.output(&id, &exec, "").collect();
    assert_eq!(joined(&events, "stdout", 0), b"out\n");
    assert_eq!(joined(&events, "stderr", 0), b"err\n");
    assert_eq!(events.last().expect("an end")["type"], "exited");
    let path = daemon.home(&id).join("execs").join(&exec);
    let journal = fs::read(path).expect("a journal");
    assert!(!String::from_utf8_lossy(&journal).contains("hunter2"), "a secret was written down");
}

#[test]
fn an_exec_that_runs_is_shown_with_the_pid_that_it_has_inside() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "command": "echo $$; exec sleep 1000" }));
    let pid = daemon.exec_view(&id, &exec)["pid"].as_u64().expect("a pid");
    // It may not have said anything yet.
    let mut events = daemon.output(&id, &exec, "follow=true");
    let said = events.find(|event| event["type"] == "stdout").expect("output");
    drop(events);
    assert_eq!(joined(&[said], "stdout", 0), format!("{pid}\n").as_bytes());
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let again = until_some("the next daemon has taken over", Patience::Short, || {
        daemon.exec_view(&id, &exec)["pid"].as_u64()
    });
    assert_eq!(again, pid);
    daemon.expect(204, "DELETE", &daemon.exec_path(&id, &exec), &Value::Null);
    assert_eq!(daemon.exec_view(&id, &exec).get("pid"), None);
}

#[test]
fn a_list_has_running_and_ended_execs_in_pages() {
    let daemon = daemon!();
    let id = daemon.create();
    let list = format!("/api/v1/sandboxes/{id}/execs");
    assert_eq!(daemon.expect(200, "GET", &list, &Value::Null)["items"], json!([]));
    let mut all = vec![daemon.begin(&id, &json!({ "argv": ["sleep", "1000"] }))];
    all.extend((0..4).map(|_| {
        let answer = daemon.sh(&id, "true").answer;
        answer["exec_id"].as_str().expect("an id").to_owned()
    }));
    let mut listed = Vec::new();
    let mut query = String::from("?limit=2");
    for pages in 0.. {
        assert!(pages < 4, "there is no end to it");
        let page = daemon.expect(200, "GET", &format!("{list}{query}"), &Value::Null);
        let items = page["items"].as_array().expect("items");
        listed.extend(items.iter().map(|v| v["exec_id"].as_str().expect("an id").to_owned()));
        let Some(next) = page["next_cursor"].as_str() else { break };
        query = format!("?limit=2&cursor={next}");
    }
    assert_eq!(listed, all, "the oldest first, each once");
    let newest =
        daemon.expect(200, "GET", &format!("{list}?sort=-created_at&limit=3"), &Value::Null);
    let ids = |page: &Value| -> Vec<String> {
        let items = page["items"].as_array().expect("items");
        items.iter().map(|v| v["exec_id"].as_str().expect("an id").to_owned()).collect()
    };
    let cursor = newest["next_cursor"].as_str().expect("there are more");
    let next = format!("{list}?sort=-created_at&limit=3&cursor={cursor}");
    let rest = daemon.expect(200, "GET", &next, &Value::Null);
    let reversed: Vec<String> = all.iter().rev().cloned().collect();
    assert_eq!([ids(&newest), ids(&rest)].concat(), reversed, "the newest first, each once");
    assert_eq!(rest.get("next_cursor"), None);
    assert_eq!(daemon.exec_view(&id, &all[0])["status"], "running");
    for bad in ["?limit=0", "?limit=100000", "?sort=name", "?cursor=nonsense", "?page=2"] {
        daemon.expect(400, "GET", &format!("{list}{bad}"), &Value::Null);
    }
    let nobody = daemon.exec_path(&id, "exaaaaaaaaaaaaaaaaaaaaaaaaaa");
    let problem = daemon.expect(404, "GET", &nobody, &Value::Null);
    assert_eq!(problem["code"], "exec_not_found");
    assert!(problem["detail"].as_str().is_some_and(|d| d.contains("are kept")), "{problem}");
}

#[test]
fn attaching_at_any_offset_gives_the_same_bytes_before_and_after_kill_9() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "command": TALK }));
    until("half of it is said", Patience::Short, || {
        let half: usize = (1..=200).map(|n| format!("out {n}\n").len()).sum();
        daemon.exec_view(&id, &exec)["stdout_bytes"] == half
    });
    let watched = daemon.output(&id, &exec, "follow=true");
    daemon.kill_9();
    let before: Vec<Value> = watched.collect();
    let types: Vec<&str> = before.iter().filter_map(|event| event["type"].as_str()).collect();
    assert!(
        types.iter().all(|t| ["stdout", "stderr"].contains(t)),
        "an end was invented: {types:?}"
    );
    daemon.start_again(&Setup::default());
    let follower = daemon.output(&id, &exec, "follow=true");
    daemon.sh(&id, "touch /tmp/go").ok();
    let after: Vec<Value> = follower.collect();
    for (stream, name) in [("out", "stdout"), ("err", "stderr")] {
        let said = talked(stream);
        assert!(said.starts_with(&joined(&before, name, 0)));
        assert_eq!(joined(&after, name, 0), said);
        for offset in [0, 1, 999, 2_000, said.len() - 1, said.len(), said.len() + 10] {
            let query = format!("stream={name}&offset={offset}&follow=true");
            let events: Vec<Value> = daemon.output(&id, &exec, &query).collect();
            let expected = said.get(offset..).unwrap_or_default();
            assert_eq!(joined(&events, name, offset as u64), expected, "from {offset}");
            let ends = events.iter().filter(|event| event["type"] == "exited").count();
            assert_eq!(ends, 1, "exactly one end: {events:?}");
        }
    }
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let once_more: Vec<Value> = daemon.output(&id, &exec, "follow=true").collect();
    for name in ["stdout", "stderr"] {
        assert_eq!(joined(&once_more, name, 0), joined(&after, name, 0));
    }
    assert_eq!(once_more.last(), after.last(), "the end stays the same");
    assert_eq!(once_more.last().expect("an end")["exit_code"], 7);
}

#[test]
fn watchers_see_the_same_and_none_slows_another() {
    let daemon = daemon!();
    let id = daemon.create();
    // More than all sockets hold: the one who never reads would block whoever waited for him.
    let command = "seq 1 1000000";
    let exec = daemon.begin(&id, &json!({ "command": command }));
    let _never_reads = daemon.output(&id, &exec, "follow=true");
    let watch = || {
        let events: Vec<Value> = daemon.output(&id, &exec, "follow=true").collect();
        (joined(&events, "stdout", 0), events.last().cloned())
    };
    let (one, other) = std::thread::scope(|scope| {
        let (one, other) = (scope.spawn(watch), scope.spawn(watch));
        (one.join().expect("no panic"), other.join().expect("no panic"))
    });
    assert!(one == other, "{} and {} bytes", one.0.len(), other.0.len());
    assert_eq!(one.0.iter().filter(|byte| **byte == b'\n').count(), 1_000_000);
    assert_eq!(ended(&daemon, &id, &exec)["status"], "exited");
}

#[test]
fn output_comes_as_bytes_and_as_server_sent_events_too() {
    let daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "command": r"printf 'a\377b'; echo err >&2" }));
    ended(&daemon, &id, &exec);
    let output = format!("{}/output", daemon.exec_path(&id, &exec));
    let bytes = |query: &str| {
        daemon.fetch(&format!("{output}?{query}"), "application/octet-stream").expect("an answer")
    };
    assert_eq!(bytes("stream=stdout"), (200, b"a\xffb".to_vec()));
    assert_eq!(bytes("stream=stdout&offset=1&follow=true"), (200, b"\xffb".to_vec()));
    assert_eq!(bytes("stream=stderr"), (200, b"err\n".to_vec()));
    assert_eq!(bytes("").0, 400, "bytes of two streams cannot be told apart");
    for bad in ["offset=1", "stream=both", "stream=stdout&from=3", "stream=stdout&stdout_offset=1"]
    {
        let problem = daemon.expect(400, "GET", &format!("{output}?{bad}"), &Value::Null);
        assert_eq!(problem["code"], "invalid_query", "{bad}");
    }
    let (status, text) = daemon.fetch(&output, "text/event-stream").expect("an answer");
    let text = String::from_utf8(text).expect("events are text");
    assert_eq!(status, 200);
    assert!(
        text.contains("event: stderr\nid: 3-4\ndata: {")
            || text.contains("event: stderr\nid: 0-4\n"),
        "{text}"
    );
    assert!(text.contains("event: exited\nid: 3-4\ndata: {") && text.ends_with("}\n\n"), "{text}");
    let resumed = format!("{output}?stdout_offset=3&stderr_offset=1");
    let (_, text) = daemon.fetch(&resumed, "text/event-stream").expect("an answer");
    let text = String::from_utf8(text).expect("events are text");
    assert!(text.starts_with("event: stderr\nid: 3-4\n"), "who comes back again: {text}");
    let live = daemon.request(
        "POST",
        &format!("/api/v1/sandboxes/{id}/execs?wait=false&stream=true"),
        &json!({ "command": "true" }),
    );
    assert_eq!(live.0, 400, "{live:?}");
}

#[test]
fn stdin_can_be_sent_while_it_runs_and_closed_once() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let exec =
        daemon.begin(&id, &json!({ "argv": ["cat"], "stdin": "first ", "stdin_open": true }));
    let stdin = format!("{}/stdin", daemon.exec_path(&id, &exec));
    assert_eq!(daemon.exec_view(&id, &exec)["stdin_closed"], false);
    // More than any window, so it has to be passed on as it is read.
    let long = vec![b'x'; 3_000_000];
    assert_eq!(daemon.send_bytes(&stdin, long.clone()).0, 204);
    let whole = [b"first ", &long[..], b" last"].concat();
    // The stdin stays open when the daemon goes, and the next one knows how much has arrived.
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    let arrived = until_some("the next daemon has taken over", Patience::Short, || {
        daemon.exec_view(&id, &exec)["stdin_bytes"].as_u64()
    });
    let rest = whole[usize::try_from(arrived).expect("small")..].to_vec();
    assert_eq!(daemon.send_bytes(&stdin, rest).0, 204);
    assert_eq!(daemon.exec_view(&id, &exec)["stdin_bytes"], whole.len());
    assert_eq!(daemon.send_bytes(&format!("{stdin}?close=true"), Vec::new()).0, 204);
    let view = ended(&daemon, &id, &exec);
    assert_eq!((&view["exit_code"], &view["stdin_closed"]), (&json!(0), &json!(true)));
    let events: Vec<Value> = daemon.output(&id, &exec, "").collect();
    let said = joined(&events, "stdout", 0);
    assert!(said == whole, "{} bytes", said.len());
    let (status, text) = daemon.send_bytes(&stdin, b"too late".to_vec());
    assert_eq!(status, 409, "{text}");
    assert!(text.contains("stdin_closed"), "{text}");
    let without = daemon.begin(&id, &json!({ "argv": ["sleep", "1000"] }));
    let target = format!("{}/stdin", daemon.exec_path(&id, &without));
    assert_eq!(daemon.send_bytes(&target, b"x".to_vec()).0, 409, "it never was open");
}

#[test]
fn stdin_that_is_sent_right_after_a_restart_arrives() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "argv": ["cat"], "stdin": "a", "stdin_open": true }));
    let stdin = format!("{}/stdin", daemon.exec_path(&id, &exec));
    until("the first of it has gone in", Patience::Short, || {
        daemon.exec_view(&id, &exec)["stdin_bytes"] == 1
    });
    for word in [b"b", b"c", b"d"] {
        daemon.kill_9();
        daemon.start_again(&Setup::default());
        // The daemon may not have joined it yet, and does not know whether it still runs.
        assert_eq!(daemon.exec_view(&id, &exec)["stdin_closed"], false);
        let (status, text) = daemon.send_bytes(&stdin, word.to_vec());
        assert_eq!(status, 204, "{text}");
    }
    assert_eq!(daemon.send_bytes(&format!("{stdin}?close=true"), Vec::new()).0, 204);
    assert_eq!(ended(&daemon, &id, &exec)["exit_code"], 0);
    let events: Vec<Value> = daemon.output(&id, &exec, "").collect();
    assert_eq!(joined(&events, "stdout", 0), b"abcd");
}

#[test]
fn execs_are_signaled_by_name_or_number_and_canceled_as_a_whole() {
    let daemon = daemon!();
    let id = daemon.create();
    for signal in [json!("SIGTERM"), json!("TERM"), json!(15)] {
        let exec = daemon.begin(&id, &json!({ "argv": ["sleep", "1000"] }));
        let target = format!("{}/signal", daemon.exec_path(&id, &exec));
        daemon.expect(204, "POST", &target, &json!({ "signal": signal }));
        let view = ended(&daemon, &id, &exec);
        assert_eq!((&view["status"], &view["signal"]), (&json!("signaled"), &json!(15)));
        let problem = daemon.expect(409, "POST", &target, &json!({ "signal": signal }));
        assert_eq!(problem["code"], "exec_ended");
        for bad in [json!({ "signal": "SIGNOPE" }), json!({ "signal": 99 }), json!({})] {
            daemon.expect(400, "POST", &target, &bad);
        }
    }
    let exec = daemon.begin(&id, &json!({ "command": "setsid sleep 4711 & sleep 4712" }));
    until("its tree is there", Patience::Short, || {
        daemon.sh(&id, "ps -e -o args= | grep -c '^sleep [4]71'").stdout_text() == "2\n"
    });
    for _ in 0..2 {
        daemon.expect(204, "DELETE", &daemon.exec_path(&id, &exec), &Value::Null);
        assert_eq!(daemon.exec_view(&id, &exec)["status"], "canceled");
    }
    assert_eq!(daemon.sh(&id, "ps -e -o args= | grep -c '^sleep [4]71'").stdout_text(), "0\n");
}

#[test]
fn a_client_that_leaves_takes_the_exec_along_only_if_it_asked_for_that() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = |on_disconnect: &str| json!({ "command": "echo on; sleep 1000", "on_disconnect": on_disconnect });
    let leave = |on_disconnect: &str| {
        let mut events = daemon.events(&id, &body(on_disconnect));
        let exec = events.next().expect("an event")["exec_id"].as_str().expect("it").to_owned();
        assert_eq!(events.next().expect("an event")["data"], "on\n");
        exec
    };
    let (stays, goes) = (leave("continue"), leave("kill"));
    assert_eq!(ended(&daemon, &id, &goes)["status"], "canceled");
    assert_eq!(daemon.exec_view(&id, &stays)["status"], "running");
    let target = format!("/api/v1/sandboxes/{id}/execs?wait=false");
    let problem = daemon.expect(400, "POST", &target, &body("kill"));
    assert!(problem["detail"].as_str().is_some_and(|d| d.contains("on_disconnect")), "{problem}");
    daemon.expect(400, "POST", &target, &body("explode"));
}

#[test]
fn a_daemon_that_shuts_down_sends_watchers_away_and_ends_nothing() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let mut events =
        daemon.events(&id, &json!({ "command": "echo on; sleep 1000", "on_disconnect": "kill" }));
    let exec = events.next().expect("an event")["exec_id"].as_str().expect("it").to_owned();
    assert_eq!(events.next().expect("an event")["data"], "on\n");
    assert!(daemon.stop().success());
    let last: Vec<Value> = events.collect();
    assert_eq!(last, [json!({ "type": "detached", "exec_id": exec, "reason": "shutting_down" })]);
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.exec_view(&id, &exec)["status"], "running");
    let mut again = daemon.output(&id, &exec, "follow=true");
    assert_eq!(again.next().expect("an event")["data"], "on\n");
}

#[test]
fn what_nobody_can_know_is_lost_and_says_why() {
    let mut daemon = daemon!();
    let (id, stopped) = (daemon.create(), daemon.create());
    let exec = daemon.begin(&id, &json!({ "command": "echo on; sleep 1000" }));
    let other = daemon.begin(&stopped, &json!({ "command": "echo on; sleep 1000" }));
    until("both have begun", Patience::Short, || {
        [(&id, &exec), (&stopped, &other)]
            .iter()
            .all(|(id, exec)| daemon.exec_view(id, exec)["stdout_bytes"] == 3)
    });
    daemon.verb(&stopped, "stop");
    let end = ended(&daemon, &stopped, &other);
    assert!(["signaled", "lost"].contains(&end["status"].as_str().unwrap_or("")), "{end}");
    kill_sandbox(&mut daemon, &id);
    daemon.start_again(&Setup::default());
    let view = ended(&daemon, &id, &exec);
    assert_eq!(view["status"], "lost");
    assert!(view["error"].as_str().is_some_and(|why| why.contains("no daemon")), "{view}");
    let events: Vec<Value> = daemon.output(&id, &exec, "follow=true").collect();
    assert_eq!(joined(&events, "stdout", 0), b"on\n", "what it said is kept");
    assert_eq!(events.last().expect("an end")["type"], "lost");
}

#[test]
fn a_long_output_says_what_is_missing() {
    crate::skip_if!(obstacle());
    let daemon =
        Daemon::start_with(&Setup::default().argument("--journal-max-bytes-per-exec=1048576"));
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "command": "seq 1 1000000; exit 4" }));
    let view = ended(&daemon, &id, &exec);
    let whole: Vec<u8> = (1..=1_000_000).flat_map(|n| format!("{n}\n").into_bytes()).collect();
    assert_eq!((&view["exit_code"], &view["truncated"]), (&json!(4), &json!(true)));
    assert_eq!(view["stdout_bytes"], whole.len());
    let events: Vec<Value> = daemon.output(&id, &exec, "").collect();
    let gap = events.iter().find(|event| event["type"] == "gap").expect("a gap");
    let (from, to) = (gap["from"].as_u64().expect("it"), gap["to"].as_u64().expect("it"));
    assert_eq!(
        (&gap["stream"], &view["stdout_dropped_bytes"]),
        (&json!("stdout"), &json!(to - from))
    );
    let at = events.iter().position(|event| event == gap).expect("it is there");
    let (head, tail) = (joined(&events[..at], "stdout", 0), joined(&events[at..], "stdout", to));
    assert!(head == whole[..head.len()] && head.len() as u64 == from);
    assert!(!tail.is_empty() && whole.ends_with(&tail));
    assert_eq!(events.last().expect("an end")["truncated"], true);
    let raw = format!("{}/output?stream=stdout", daemon.exec_path(&id, &exec));
    daemon.fetch(&raw, "application/octet-stream").expect_err("bytes with a hole are not whole");
    let after = daemon.fetch(&format!("{raw}&offset={to}"), "application/octet-stream");
    assert!(after.expect("whole from there on").1 == tail);
}

#[test]
fn a_client_that_is_waited_for_gets_all_of_a_long_output() {
    crate::skip_if!(obstacle());
    let setup = Setup::default().argument("--journal-max-bytes-per-exec=1048576");
    let daemon = Daemon::start_with(&setup);
    let id = daemon.create();
    let body = json!({ "command": "seq 1 1000000", "backpressure": true });
    let events: Vec<Value> = daemon.events(&id, &body).collect();
    let said = joined(&events, "stdout", 0);
    assert_eq!(said.iter().filter(|byte| **byte == b'\n').count(), 1_000_000);
    let exec = events[0]["exec_id"].as_str().expect("an id");
    assert_eq!(daemon.exec_view(&id, exec)["truncated"], true, "the journal has its own bound");
    let target = format!("/api/v1/sandboxes/{id}/execs");
    daemon.expect(400, "POST", &target, &body);
}

#[test]
fn the_command_line_leaves_lists_reads_and_kills_execs() {
    let daemon = daemon!();
    let id = daemon.create();
    let url = daemon.url();
    let cli = |arguments: &[&str]| {
        let mut command = binary();
        let ran =
            Ran::from(command.args(["--url", &url]).args(arguments).output().expect("it runs"));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout
    };
    let exec = cli(&["exec", "-d", &id, "--", "sh", "-c", "echo out; echo err >&2; sleep 1000"]);
    let exec = exec.trim();
    until("it has spoken", Patience::Short, || cli(&["logs", &id, exec]) == "out\n");
    assert!(cli(&["ps", &id]).lines().any(|line| line.contains(exec) && line.contains("running")));
    cli(&["kill", "--signal", "USR1", &id, &exec[..8]]);
    assert_eq!(ended(&daemon, &id, exec)["signal"], 10);
    assert_eq!(cli(&["logs", "-f", &id, exec]), "out\n");
    assert!(cli(&["ps", &id]).contains("signaled (10)"));
    let other = cli(&["exec", "--detach", &id, "--", "sleep", "1000"]);
    cli(&["kill", "--all", &id, other.trim()]);
    assert_eq!(daemon.exec_view(&id, other.trim())["status"], "canceled");
}

#[test]
fn only_the_last_execs_are_kept_and_a_lost_one_says_so() {
    crate::skip_if!(obstacle());
    let daemon = Daemon::start_with(&Setup::default().argument("--journal-max-execs=5"));
    let id = daemon.create();
    let all: Vec<Value> =
        (0..12).map(|_| daemon.sh(&id, "true").answer["exec_id"].clone()).collect();
    let exec = |at: usize| all[at].as_str().expect("an id");
    until("the first is gone", Patience::Short, || {
        !daemon.home(&id).join("execs").join(exec(0)).exists()
    });
    let problem = daemon.expect(404, "GET", &daemon.exec_path(&id, exec(0)), &Value::Null);
    assert!(
        problem["detail"].as_str().is_some_and(|d| d.contains("the last 5 ended execs are kept")),
        "{problem}"
    );
    assert_eq!(daemon.exec_view(&id, exec(11))["status"], "exited");
}

#[test]
fn a_full_disk_neither_hangs_an_exec_nor_lies_about_it() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "true").ok();
    let dir = daemon.home(&id).join("execs");
    mount("none", &dir, c"tmpfs", MountFlags::empty(), c"size=1m,mode=700").expect("a small disk");
    let exec = daemon.begin(&id, &json!({ "command": "seq 1 500000; exit 9" }));
    let view = ended(&daemon, &id, &exec);
    assert_eq!((&view["status"], &view["exit_code"]), (&json!("exited"), &json!(9)), "{view}");
    assert_eq!(view["truncated"], true);
    assert!(view["error"].as_str().is_some_and(|why| why.contains("No space left")), "{view}");
    let events: Vec<Value> = daemon.output(&id, &exec, "").collect();
    let missing: u64 = events
        .iter()
        .filter(|event| event["type"] == "gap")
        .map(|gap| gap["to"].as_u64().expect("it") - gap["from"].as_u64().expect("it"))
        .sum();
    assert_eq!(view["stdout_dropped_bytes"], missing);
    // Nothing is left for even the first page of another.
    let filler = dir.join("filler");
    let _ = fs::write(&filler, vec![0; 1 << 20]);
    let (status, problem) = daemon.request(
        "POST",
        &format!("/api/v1/sandboxes/{id}/execs"),
        &json!({ "command": "touch /tmp/ran" }),
    );
    assert_eq!((status, &problem["code"]), (507, &json!("journal_failed")), "{problem}");
    unmount(&dir, UnmountFlags::DETACH).expect("it is mounted");
    assert_eq!(daemon.sh(&id, "ls /tmp/ran 2>/dev/null; echo no").ok(), "no", "it was not begun");
}

#[test]
fn journals_go_with_their_sandbox_and_the_doctor_knows_them() {
    let daemon = daemon!();
    let id = daemon.create();
    let exec = daemon.begin(&id, &json!({ "command": "seq 1 100000000" }));
    until("it is talking", Patience::Short, || {
        daemon.exec_view(&id, &exec)["stdout_bytes"].as_u64() > Some(1_000_000)
    });
    daemon.assert_no_leaks();
    let home = daemon.home(&id);
    fs::write(home.join("execs/what-is-this"), "?").expect("root writes anywhere");
    let (clean, said) = crate::support::doctor(&daemon.data_dir());
    assert!(!clean && said.to_string().contains("what-is-this"), "{said:#}");
    daemon.destroy(&id);
    assert!(!home.exists());
    daemon.assert_no_leaks();
    assert!(processes_in_cgroup(&format!("{}/{id}", daemon.instance())).is_empty());
}
