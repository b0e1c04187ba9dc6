//! Traces, as a receiver gets them that decodes OTLP with OpenTelemetry's own classes (`tests/otlp/receive.py`).

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Patience, Raw, Reply, Setup, obstacle, top, until_some};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// What a caller sends that records its own steps.
fn sent() -> String {
    format!("00-{TRACE}-{SPAN}-01")
}

fn python() -> PathBuf {
    top().join("target/otlp/bin/python3")
}

pub fn missing() -> Option<&'static str> {
    let there = python().exists();
    (!there).then_some("opentelemetry-proto is not installed; ./test does it from PyPI")
}

/// The receiver, and all spans that it got.
pub struct Receiver {
    child: Child,
    port: u16,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    pub fn start() -> Self {
        let mut child = Command::new(python())
            .arg(top().join("tests/otlp/receive.py"))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let port = lines.next().expect("a line").expect("text").parse().expect("a port");
        let spans = Arc::<Mutex<Vec<Value>>>::default();
        let into = Arc::clone(&spans);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let span = serde_json::from_str(&line).expect("JSON");
                into.lock().unwrap_or_else(PoisonError::into_inner).push(span);
            }
        });
        Self { child, port, spans }
    }

    /// How a daemon is told of it.
    pub fn setup(&self) -> Setup {
        Setup::default()
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://127.0.0.1:{}/", self.port))
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-secret=open%20sesame")
            .env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
            .env("OTEL_SERVICE_NAME", "sandboxes")
    }

    /// The spans of a trace, once there is one of this name.
    pub fn trace(&self, trace: &str, last: &str) -> Vec<Value> {
        until_some(&format!("the span {last:?} of {trace}"), Patience::Long, || {
            let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
            let found: Vec<Value> =
                spans.iter().filter(|span| span["trace"] == trace).cloned().collect();
            found.iter().any(|span| span["name"] == last).then_some(found)
        })
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request with headers of its own.
fn ask(daemon: &Daemon, method: &str, target: &str, headers: &str, body: &Value) -> Reply {
    let body = body.to_string();
    let length = body.len();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n{headers}\r\n{body}"
    );
    Raw::open(daemon.address()).send(request.as_bytes()).reply(method)
}

fn named<'a>(spans: &'a [Value], name: &str) -> &'a Value {
    let found = spans.iter().find(|span| span["name"] == name);
    found.unwrap_or_else(|| {
        panic!("no {name}: {:?}", spans.iter().map(|span| &span["name"]).collect::<Vec<_>>())
    })
}

/// The names from a span up to the one that came from outside.
fn way_up(spans: &[Value], name: &str) -> Vec<String> {
    let mut way = vec![name.to_owned()];
    let mut at = named(spans, name);
    while let Some(parent) = spans.iter().find(|span| span["span"] == at["parent"]) {
        way.push(parent["name"].as_str().expect("a name").to_owned());
        at = parent;
    }
    way
}

/// The span in a traceparent of that trace.
fn span_of(traceparent: &str) -> String {
    let parts: Vec<&str> = traceparent.split('-').collect();
    assert_eq!((parts.len(), parts[0], parts[1], parts[3]), (4, "00", TRACE, "01"));
    parts[2].to_owned()
}

#[test]
fn a_request_is_traced_from_the_door_to_the_guest_in_its_callers_trace() {
    skip_if!(obstacle());
    skip_if!(missing());
    let receiver = Receiver::start();
    let mut daemon = Daemon::start_with(&receiver.setup().argument("--log").argument("debug"));
    let headers = format!("traceparent: {}\r\nx-correlation-id: c-4711\r\n", sent());
    let made = ask(&daemon, "POST", "/api/v1/sandboxes", &headers, &json!({}));
    assert_eq!(made.status, 201, "{}", made.text());
    let door = span_of(made.header("traceparent").expect("it is told"));
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let execs = format!("/api/v1/sandboxes/{id}/execs");
    let body = json!({ "command": "echo $TRACEPARENT; exit 3" });
    let ran = ask(&daemon, "POST", &execs, &headers, &body).json();
    let inside = span_of(ran["stdout"].as_str().expect("text").trim());
    daemon.destroy(&id);
    let instance = daemon.instance();
    let (ended, said) = daemon.stop_and_hear();
    assert!(ended.success(), "what is left is exported before it ends");

    let spans = receiver.trace(TRACE, "guest.exec");
    let create = named(&spans, "POST /api/v1/sandboxes");
    assert_eq!((&create["span"], &create["parent"]), (&json!(door), &json!(SPAN)));
    assert_eq!((&create["kind"], &create["flags"]), (&json!("SPAN_KIND_SERVER"), &json!(1)));
    assert_eq!(create["resource"]["service.name"], "sandboxes");
    assert_eq!(create["resource"]["deployment.environment.name"], "test");
    assert_eq!(create["resource"]["service.instance.id"], instance);
    let attributes = &create["attributes"];
    assert_eq!(attributes["http.response.status_code"], 201);
    assert_eq!(attributes["http.route"], "/api/v1/sandboxes");
    assert_eq!(attributes["correlation_id"], "c-4711");
    let verb = ["sandbox create", "POST /api/v1/sandboxes"];
    let supervisor = ["supervisor create", verb[0], verb[1]];
    for (step, above) in [
        ("admission", &verb[..]),
        ("supervisor.wait", &verb[..]),
        ("storage.create", &supervisor[..]),
        ("runtime.create", &supervisor[..]),
        ("runtime.start", &supervisor[..]),
        ("runtime.connect", &supervisor[..]),
        ("store.write", &supervisor[..]),
    ] {
        // Some steps are in both traces' requests; the first one is the create's.
        assert_eq!(way_up(&spans, step)[1..], *above, "{step}");
    }
    let exec = ["sandbox exec", "POST /api/v1/sandboxes/{id}/execs"];
    assert_eq!(way_up(&spans, "guest.start")[1..], exec);
    let guest = named(&spans, "guest.exec");
    assert_eq!(guest["attributes"]["exit_code"], 3);
    assert_eq!(named(&spans, "sandbox exec")["span"], inside.as_str(), "the command's own parent");
    for span in &spans {
        assert!(span["began"].as_u64() <= span["ended"].as_u64(), "{span}");
        assert_eq!(span["status"], "STATUS_CODE_UNSET", "{span}");
    }
    let text = format!("{spans:?}");
    assert!(!text.contains("exit 3") && !text.contains("TRACEPARENT"), "no command line: {text}");
    let line = said.lines().find(|line| line.contains("carrying out a command"));
    let line = line.unwrap_or_else(|| panic!("no line of the supervisor: {said}"));
    assert!(line.contains(TRACE) && line.contains("c-4711"), "{line}");

    // The event of what happened continues the trace, too.
    let events = crate::events::all(&daemon);
    let created = events.iter().find(|event| event.kind.name() == "sandbox.created");
    let place = created.expect("an event").traceparent.expect("a place in a trace");
    let supervisor = named(&spans, "supervisor create")["span"].clone();
    assert_eq!(
        (place.trace.to_string(), json!(place.span.to_string())),
        (TRACE.into(), supervisor)
    );
    let destroyed = events.iter().find(|event| event.kind.name() == "sandbox.destroyed");
    let other = destroyed.expect("an event").traceparent.expect("of the daemon's own trace");
    let own = receiver.trace(&other.trace.to_string(), "DELETE /api/v1/sandboxes/{id}");
    assert_eq!(named(&own, "DELETE /api/v1/sandboxes/{id}")["parent"], "", "it begins here");
}

#[test]
fn a_call_over_mcp_continues_the_trace_of_its_own_caller() {
    skip_if!(obstacle());
    skip_if!(missing());
    let receiver = Receiver::start();
    let daemon = Daemon::start_with(&receiver.setup());
    let call = |meta: &Value| {
        let params = json!({
            "name": "sandbox_create", "arguments": {}, "_meta": meta,
        });
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let headers = "accept: application/json, text/event-stream\r\n";
        let answer = ask(&daemon, "POST", "/mcp", headers, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer
    };
    call(&json!({ "traceparent": sent() }));
    let spans = receiver.trace(TRACE, "tools/call sandbox_create");
    assert_eq!(named(&spans, "tools/call sandbox_create")["parent"], SPAN);
    let above = ["supervisor create", "sandbox create", "tools/call sandbox_create"];
    assert_eq!(way_up(&spans, "runtime.start")[1..], above);
    // Without one, and with one that is none, it is a step of the request that carried it.
    for meta in [json!({}), json!({ "traceparent": "nonsense" })] {
        let answer = call(&meta);
        let own = answer.header("traceparent").expect("it is told").split('-').nth(1);
        let spans = receiver.trace(own.expect("a trace"), "POST /mcp");
        let above =
            ["supervisor create", "sandbox create", "tools/call sandbox_create", "POST /mcp"];
        assert_eq!(way_up(&spans, "runtime.start")[1..], above);
    }
    daemon.ids().iter().for_each(|id| daemon.destroy(id));
}

#[test]
fn a_failed_step_and_a_trace_that_is_not_sampled_are_told_as_such() {
    skip_if!(obstacle());
    skip_if!(missing());
    let receiver = Receiver::start();
    let daemon =
        Daemon::start_with(&receiver.setup().env("OTEL_TRACES_SAMPLER", "parentbased_always_off"));
    let left_out = format!("traceparent: 00-{}-{SPAN}-00\r\n", "1".repeat(32));
    let spec = json!({ "template": "no-such-template" });
    for headers in [left_out, String::new(), format!("traceparent: {}\r\n", sent())] {
        let refused = ask(&daemon, "POST", "/api/v1/sandboxes", &headers, &spec);
        assert!(refused.status >= 400, "{}", refused.text());
    }
    let spans = receiver.trace(TRACE, "POST /api/v1/sandboxes");
    let verb = named(&spans, "sandbox create");
    assert_eq!(verb["status"], "STATUS_CODE_ERROR");
    assert!(verb["message"].as_str().is_some_and(|code| code.contains("template")), "{verb}");
    // The spans before it came first, had there been any.
    let all = receiver.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(all.iter().all(|span| span["trace"] == TRACE), "{all:?}");
}

#[test]
fn a_collector_that_hangs_costs_spans_and_nothing_else() {
    skip_if!(obstacle());
    let hanging = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", hanging.local_addr().expect("an address"));
    let mut daemon =
        Daemon::start_with(&Setup::default().argument("--otel-endpoint").argument(&url));
    let id = daemon.create();
    assert_eq!(daemon.sh(&id, "echo on").ok(), "on");
    let (mut connection, _) = hanging.accept().expect("it is asked");
    let mut beginning = [0; 16];
    connection.read_exact(&mut beginning).expect("a request");
    assert_eq!(&beginning, b"POST /v1/traces ");
    daemon.destroy(&id);
    assert!(daemon.stop().success(), "it ends all the same");
}

#[test]
fn variables_of_opentelemetry_that_cannot_be_used_are_warnings() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(
        &Setup::default()
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4317")
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    );
    for told in
        ["OTEL_EXPORTER_OTLP_ENDPOINT is not used", "OTEL_EXPORTER_OTLP_PROTOCOL is not used"]
    {
        assert!(daemon.said().contains(told), "{}", daemon.said());
    }
}
