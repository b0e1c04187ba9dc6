use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};

use super::harness::Daemon;
use sandkeep_core::limits::{OUTPUT_HEAD_MAX_BYTES, OUTPUT_TAIL_MAX_BYTES};

/// All events of a live exec.
async fn live(daemon: &Daemon, sandbox: &str, body: Value) -> Vec<Value> {
    let request = daemon.request(Method::POST, &format!("{sandbox}/execs"));
    let request = request.header("accept", "text/html, application/x-ndjson;q=0.9").json(&body);
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/x-ndjson");
    let text = response.text().await.expect("the whole stream");
    text.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[tokio::test]
async fn an_exec_is_answered_with_its_output_and_its_end() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let body = json!({ "command": "echo out; echo err >&2; exit 3" });
    let mut answer = daemon.exec(&sandbox, body).await;
    let fields = answer.as_object_mut().expect("an object");
    let id = fields.remove("id").expect("an id");
    assert_eq!(fields.remove("exec_id").as_ref(), Some(&id), "its former name");
    assert!(id.as_str().is_some_and(|id| id.parse::<sandkeep_core::ExecId>().is_ok()));
    assert!(fields.remove("duration_ms").is_some_and(|ms| ms.is_u64()));
    let expected = json!({
        "status": "exited",
        "outcome": "exited",
        "exit_code": 3,
        "stdout": "out\n",
        "stderr": "err\n",
        "truncated": false,
    });
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn a_command_that_does_not_exist_exits_127_and_says_why() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let answer = daemon.exec(&sandbox, json!({ "argv": ["no-such-command"] })).await;
    assert_eq!((&answer["outcome"], &answer["exit_code"]), (&json!("exited"), &json!(127)));
    assert!(answer["error"].is_string());
}

#[tokio::test]
async fn a_timeout_has_no_exit_code() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let body = json!({ "argv": ["sleep", "3600"], "timeout_ms": 5 });
    let answer = daemon.exec(&sandbox, body).await;
    assert_eq!((&answer["outcome"], &answer["exit_code"]), (&json!("timed_out"), &Value::Null));
}

#[tokio::test]
async fn env_cwd_and_user_reach_the_command() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let body = json!({ "command": "env; pwd; whoami", "env": { "A": "b" }, "cwd": "/tmp", "user": "root" });
    let answer = daemon.exec(&sandbox, body).await;
    let stdout = answer["stdout"].as_str().expect("text");
    assert!(stdout.contains("A=b\n") && stdout.ends_with("/tmp\nroot\n"), "{stdout}");
}

#[tokio::test]
async fn stdin_is_passed_whole_and_closed() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let answer = daemon.exec(&sandbox, json!({ "argv": ["cat"], "stdin": "grüße" })).await;
    assert_eq!(answer["stdout"], "grüße");
    let answer = daemon.exec(&sandbox, json!({ "argv": ["cat"], "stdin": "" })).await;
    assert_eq!((&answer["stdout"], &answer["exit_code"]), (&json!(""), &json!(0)));
}

#[tokio::test]
async fn bytes_that_are_not_text_come_as_base64_both_ways() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let bytes = STANDARD.encode(b"\x00\xff\xfe text");
    let body = json!({ "argv": ["cat"], "stdin_b64": bytes });
    let answer = daemon.exec(&sandbox, body.clone()).await;
    assert_eq!((&answer["stdout_b64"], &answer["stdout"]), (&json!(bytes), &Value::Null));
    let events = live(&daemon, &sandbox, body).await;
    assert_eq!((&events[1]["data_b64"], &events[1]["data"]), (&json!(bytes), &Value::Null));
}

#[tokio::test]
async fn a_flood_is_cut_in_the_middle_and_says_so() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let extra = 300_000;
    let flood = "x".repeat(OUTPUT_HEAD_MAX_BYTES + OUTPUT_TAIL_MAX_BYTES + extra);
    let answer = daemon.exec(&sandbox, json!({ "argv": ["cat"], "stdin": flood })).await;
    assert_eq!((&answer["truncated"], &answer["exit_code"]), (&json!(true), &json!(0)));
    assert_eq!(answer["stdout_omitted_bytes"], extra);
    assert_eq!(answer["stdout_omitted_at"], OUTPUT_HEAD_MAX_BYTES);
    let kept = answer["stdout"].as_str().expect("text").len();
    assert_eq!(kept, OUTPUT_HEAD_MAX_BYTES + OUTPUT_TAIL_MAX_BYTES);
    assert_eq!(answer["stderr_omitted_bytes"], Value::Null);
}

#[tokio::test]
async fn a_live_exec_starts_tells_and_ends_exactly_once() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let body = json!({ "command": "echo one; echo two >&2; echo three; exit 5" });
    let events = live(&daemon, &sandbox, body).await;
    let id = &events[0]["exec_id"];
    assert_eq!(events[0], json!({ "type": "started", "exec_id": id }));
    assert_eq!(events[1], json!({ "type": "stdout", "offset": 0, "data": "one\n" }));
    assert_eq!(events[2], json!({ "type": "stderr", "offset": 0, "data": "two\n" }));
    assert_eq!(events[3], json!({ "type": "stdout", "offset": 4, "data": "three\n" }));
    let end = &events[4];
    assert_eq!((&end["type"], &end["exec_id"]), (&json!("exited"), id));
    assert_eq!((&end["exit_code"], &end["truncated"]), (&json!(5), &json!(false)));
    assert!(end["duration_ms"].is_u64());
    assert_eq!(events.len(), 5);
}

#[tokio::test]
async fn a_live_exec_loses_nothing_however_much_it_says() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let flood = "€".repeat((OUTPUT_HEAD_MAX_BYTES + OUTPUT_TAIL_MAX_BYTES) / 3 + 1_000);
    let events = live(&daemon, &sandbox, json!({ "argv": ["cat"], "stdin": flood })).await;
    let text: String = events.iter().filter_map(|event| event["data"].as_str()).collect();
    assert!(text == flood, "{} of {} bytes came through", text.len(), flood.len());
}

#[tokio::test]
async fn live_events_come_while_the_command_runs() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let request = daemon.request(Method::POST, &format!("{sandbox}/execs?stream=true"));
    let body = json!({ "command": "echo now; sleep 3600" });
    let mut response = request.json(&body).send().await.expect("an answer");
    let mut seen = String::new();
    while !seen.contains("now") {
        let chunk = response.chunk().await.expect("a live stream").expect("it goes on");
        seen.push_str(std::str::from_utf8(&chunk).expect("text"));
    }
    drop(response);
    // The client has left; the sandbox is as it was.
    let answer = daemon.exec(&sandbox, json!({ "argv": ["echo", "still here"] })).await;
    assert_eq!(answer["stdout"], "still here\n");
}

/// The bytes of stdout in a list of events.
fn bytes_of(events: &[Value]) -> Vec<u8> {
    let piece = |event: &Value| match (event["data"].as_str(), event["data_b64"].as_str()) {
        (Some(text), _) => text.as_bytes().to_vec(),
        (None, Some(text)) => STANDARD.decode(text).expect("base64"),
        (None, None) => Vec::new(),
    };
    events.iter().filter(|event| event["type"] == "stdout").flat_map(piece).collect()
}

#[tokio::test]
async fn binary_output_survives_every_form_of_the_answer() {
    let daemon = Daemon::start().await;
    let sandbox = daemon.sandbox().await;
    let bytes: Vec<u8> =
        (0..200_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let body = json!({ "argv": ["cat"], "stdin_b64": STANDARD.encode(&bytes) });
    let answer = daemon.exec(&sandbox, body.clone()).await;
    assert!(
        STANDARD.decode(answer["stdout_b64"].as_str().expect("base64")).expect("base64") == bytes
    );
    let events = live(&daemon, &sandbox, body).await;
    assert!(bytes_of(&events) == bytes, "NDJSON");
    let exec = events[0]["exec_id"].as_str().expect("an id");
    let output = async |accept: &str| {
        let path = format!("{sandbox}/execs/{exec}/output?stream=stdout");
        let request = daemon.request(Method::GET, &path).header("accept", accept);
        request.send().await.expect("an answer").bytes().await.expect("all of it")
    };
    assert!(output("application/octet-stream").await == bytes, "raw");
    let told = output("text/event-stream").await;
    let told = std::str::from_utf8(&told).expect("text");
    let data = told.lines().filter_map(|line| line.strip_prefix("data: "));
    let told: Vec<Value> = data.map(|json| serde_json::from_str(json).expect("JSON")).collect();
    assert!(bytes_of(&told) == bytes, "SSE");
}
