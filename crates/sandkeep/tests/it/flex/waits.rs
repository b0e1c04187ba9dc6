//! Calls that wait for others, and readers that others do not wait for.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use super::{FRAMED, LONG, SERVICE, STREAM, frame, rpc};
use crate::daemon;
use crate::support::{Daemon, Patience, until};

const SAID: usize = 20_000_000;

fn bash(id: &str, command: &str) -> Value {
    json!({ "SessionID": "s", "ToolCallID": id, "ToolName": "bash", "Params": { "cmd": command } })
}

/// A stream whose head was sent, and of whose answer nothing was read.
fn begin(daemon: &Daemon, request: &Value) -> TcpStream {
    let body = frame(0, request.to_string().as_bytes());
    let mut stream = TcpStream::connect(daemon.address()).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a time-out");
    let head = format!(
        "POST {STREAM} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{FRAMED}content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)).expect("it is sent");
    stream
}

/// Reads until the answer contains a text; what was read so far.
fn read_until(stream: &mut TcpStream, text: &str) -> String {
    let (mut read, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let count = stream.read(&mut buffer).expect("it answers in time");
        assert_ne!(count, 0, "it ended before it said {text}: {}", String::from_utf8_lossy(&read));
        read.extend_from_slice(&buffer[..count]);
        let so_far = String::from_utf8_lossy(&read);
        if so_far.contains(text) {
            return so_far.into_owned();
        }
    }
}

#[test]
fn a_pause_waits_for_tools_and_lets_no_new_one_in() {
    let daemon = daemon!();
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    // Processes are none of its business: they stand still and go on. This one lets the tool end.
    let script = "trap 'touch ~/go' TERM; touch ~/ready; while :; do sleep 0.02; done";
    let sleeper = json!({ "SessionID": "s", "Binary": "sh", "Args": ["-c", script] });
    let sleeper = rpc(&daemon, 200, "LaunchProcess", sleeper);
    let process = json!({ "SessionID": "s", "ProcessID": sleeper["ProcessID"], "Signal": 15 });
    let ready = bash("ready", "while [ ! -e ~/ready ]; do sleep 0.02; done");
    assert_eq!(rpc(&daemon, 200, "ExecuteTool", ready)["ExitCode"], 0);
    let mut tool = begin(
        &daemon,
        &bash("running", "echo begun; while [ ! -e ~/go ]; do sleep 0.02; done; echo done"),
    );
    read_until(&mut tool, "begun");
    std::thread::scope(|scope| {
        let pause = || rpc(&daemon, 200, "PauseSession", json!({ "SessionID": "s" }));
        let paused = scope.spawn(pause);
        let mut tries = 0;
        until("no new tool is let in", Patience::Long, || {
            tries += 1;
            let new = bash(&format!("new-{tries}"), "true");
            let (status, answer) = daemon.request("POST", &format!("{SERVICE}/ExecuteTool"), &new);
            assert!(status == 200 || answer["code"] == "failed_precondition", "{status} {answer}");
            status != 200
        });
        let session = rpc(&daemon, 200, "GetSession", json!({ "SessionID": "s" }));
        assert_eq!(session["Session"]["State"], "active", "the pause waits for the tool");
        rpc(&daemon, 200, "KillProcess", process.clone());
        let rest = read_until(&mut tool, "\"Response\":{");
        assert!(rest.contains("done"), "the pause cut the tool off: {rest}");
        paused.join().expect("it is paused");
    });
    let session = rpc(&daemon, 200, "GetSession", json!({ "SessionID": "s" }));
    assert_eq!(session["Session"]["State"], "paused");
    rpc(&daemon, 200, "ResumeSession", json!({ "SessionID": "s" }));
    assert_eq!(rpc(&daemon, 200, "GetProcessStatus", process)["Status"], "running");
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
}

#[test]
fn a_pause_is_refused_while_a_tool_does_not_end() {
    let daemon = daemon!();
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    let mut tool = begin(&daemon, &bash("endless", "echo begun; sleep 1000"));
    read_until(&mut tool, "begun");
    let refused = rpc(&daemon, 400, "PauseSession", json!({ "SessionID": "s" }));
    assert_eq!(refused["code"], "failed_precondition", "{refused}");
    assert_eq!(rpc(&daemon, 200, "ExecuteTool", bash("after", "true"))["ExitCode"], 0);
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
    daemon.assert_no_leaks();
}

#[test]
fn a_slow_reader_slows_nobody_but_its_own_call() {
    let daemon = daemon!();
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    let say = format!("head -c {SAID} /dev/zero | tr '\\0' x");
    let mut slow = begin(&daemon, &bash("slow", &say));
    let never = begin(&daemon, &bash("never", &say));
    for n in 0..10 {
        let answer = rpc(&daemon, 200, "ExecuteTool", bash(&format!("beside-{n}"), "echo quick"));
        assert_eq!(answer["Content"], "quick\n", "{answer}");
    }
    // A little at a time, with a call of its own in between: far slower than it is said.
    let (mut end, mut total, mut buffer) = (Vec::new(), 0, vec![0; 256 * 1024]);
    loop {
        let count = slow.read(&mut buffer).expect("it goes on");
        if count == 0 {
            break;
        }
        total += count;
        end.extend_from_slice(&buffer[..count]);
        end.drain(..end.len().saturating_sub(64 * 1024));
        rpc(&daemon, 200, "GetSession", json!({ "SessionID": "s" }));
    }
    let end = String::from_utf8_lossy(&end);
    assert!(end.contains("\"Response\":{") && end.contains("\"ExitCode\":0"), "{end}");
    assert!(total > 100_000, "only {total} bytes came");
    drop(never);
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
    daemon.assert_no_leaks();
}
