//! Webhooks and followers of events over the deaths of the daemon.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::hmac;
use sandkeep_broker::recorded_events;
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, keys, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, binary, until};

/// A receiver on loopback that answers 500 to some messages.
struct Receiver {
    url: String,
    messages: Arc<Mutex<Vec<Message>>>,
}

#[derive(Clone, Debug)]
struct Message {
    id: String,
    timestamp: String,
    signature: String,
    body: String,
}

impl Receiver {
    /// It fails the messages at these places.
    fn start(failed: &'static [usize]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let messages: Arc<Mutex<Vec<Message>>> = Arc::default();
        let received = Arc::clone(&messages);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(message) = read(&stream) else { continue };
                let place = {
                    let mut all = received.lock().expect("no panic");
                    all.push(message);
                    all.len() - 1
                };
                let status = if failed.contains(&place) { "500 No" } else { "204 Yes" };
                let head =
                    format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
                // A daemon that was killed does not read it.
                let _ = (&stream).write_all(head.as_bytes());
            }
        });
        Self { url, messages }
    }

    fn messages(&self) -> Vec<Message> {
        self.messages.lock().expect("no panic").clone()
    }
}

/// `None`: the sender died.
fn read(stream: &TcpStream) -> Option<Message> {
    let mut reader = BufReader::new(stream);
    let mut message = Message {
        id: String::new(),
        timestamp: String::new(),
        signature: String::new(),
        body: String::new(),
    };
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(": ") else { continue };
        let value = value.to_owned();
        match name.to_ascii_lowercase().as_str() {
            "webhook-id" => message.id = value,
            "webhook-timestamp" => message.timestamp = value,
            "webhook-signature" => message.signature = value,
            "content-length" => length = value.parse().ok()?,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    message.body = String::from_utf8(body).ok()?;
    Some(message)
}

impl Message {
    fn verify(&self, secret: &str) {
        let key = BASE64.decode(secret.trim_start_matches("whsec_")).expect("base64");
        let text = format!("{}.{}.{}", self.id, self.timestamp, self.body);
        let mac =
            BASE64.encode(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key), text.as_bytes()));
        assert_eq!(self.signature, format!("v1,{mac}"));
    }
}

fn setup() -> Setup {
    Setup::default().argument("--outgoing-allow").argument("127.0.0.1").argument("--enable-mock")
}

fn round(daemon: &Daemon) {
    for _ in 0..3 {
        let id = daemon.create_with(&json!({ "runtime": "mock" }));
        daemon.verb(&id, "stop");
        daemon.destroy(&id);
    }
}

/// The ids that the events of a daemon have outside.
fn recorded(daemon: &Daemon, after: u64) -> Vec<String> {
    let instance = daemon.instance();
    let events = recorded_events(&daemon.data_dir()).expect("a readable log");
    let seqs = events.iter().map(|event| event.seq.get()).filter(|seq| *seq > after);
    seqs.map(|seq| format!("{instance}-{seq}")).collect()
}

#[test]
fn a_webhook_misses_nothing_when_the_daemon_is_killed() {
    skip_if!(crate::support::obstacle());
    let mut daemon = Daemon::start_with(&setup());
    let receiver = Receiver::start(&[1, 9]);
    let made = daemon.expect(201, "POST", "/api/v1/webhooks", &json!({ "url": receiver.url }));
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    for _ in 0..3 {
        let before = receiver.messages().len();
        round(&daemon);
        until("some are delivered", Patience::Long, || receiver.messages().len() > before);
        daemon.kill_9();
        daemon.start_again(&setup());
    }
    round(&daemon);
    let expected = recorded(&daemon, 0);
    let last = expected.last().expect("events").clone();
    until("the last event is delivered", Patience::Long, || {
        receiver.messages().iter().any(|message| message.id == last)
    });
    let messages = receiver.messages();
    messages.iter().for_each(|message| message.verify(&secret));
    let (mut seen, mut order) = (BTreeSet::new(), Vec::new());
    for message in &messages {
        if seen.insert(message.id.clone()) {
            order.push(message.id.clone());
        }
    }
    assert_eq!(order, expected, "every event, in order");
    let data = std::fs::metadata(daemon.data_dir()).expect("it is there");
    let mode = std::os::unix::fs::PermissionsExt::mode(&data.permissions());
    assert_eq!(mode & 0o077, 0, "nobody else gets to the secrets in it");
}

#[test]
fn webhooks_are_managed_from_the_command_line() {
    skip_if!(crate::support::obstacle());
    let daemon = Daemon::start_with(&setup());
    let receiver = Receiver::start(&[]);
    let run = |arguments: &[&str]| {
        let mut command = binary();
        command.env("SANDKEEP_URL", daemon.url()).arg("webhook").args(arguments);
        crate::support::Ran::from(command.output().expect("the binary runs"))
    };
    let added = run(&["add", &receiver.url, "--kind", "sandbox.*"]);
    assert!(added.code == 0 && added.stderr.contains("whsec_"), "{added:?}");
    let id = added.stdout.trim();
    assert_eq!(run(&["test", id]).code, 0);
    assert!(receiver.messages()[0].body.contains("dev.sandkeep.webhook.test"));
    let listed = run(&["ls"]);
    assert!(listed.stdout.contains(id) && listed.stdout.contains("sandbox.*"), "{listed:?}");
    assert_eq!(run(&["replay", id, "--after", "0"]).code, 0);
    assert_eq!(run(&["enable", id]).code, 0);
    assert_eq!(run(&["rm", id]).code, 0);
    assert!(!run(&["ls"]).stdout.contains(id));
    assert_ne!(run(&["add", "http://10.0.0.1/"]).code, 0);
    assert_eq!(run(&["add", &receiver.url, "--kind", "sandbox.exploded"]).code, 2);
}

/// Leads to whichever daemon there is: each has a port of its own.
struct Relay {
    address: SocketAddr,
    to: Arc<Mutex<SocketAddr>>,
}

impl Relay {
    fn start(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let to = Arc::new(Mutex::new(to));
        let target = Arc::clone(&to);
        std::thread::spawn(move || {
            for here in listener.incoming().map_while(Result::ok) {
                let address = *target.lock().expect("no panic");
                let Ok(there) = TcpStream::connect(address) else { continue };
                let (Ok(mut a), Ok(mut b)) = (here.try_clone(), there.try_clone()) else {
                    continue;
                };
                let (mut here, mut there) = (here, there);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut a, &mut there);
                    let _ = there.shutdown(Shutdown::Write);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut b, &mut here);
                    let _ = here.shutdown(Shutdown::Both);
                });
            }
        });
        Self { address, to }
    }
}

/// A child that goes with the test.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_follower_misses_and_repeats_nothing_when_the_daemon_is_killed() {
    skip_if!(crate::support::obstacle());
    let mut daemon = Daemon::start_with(&setup());
    let relay = Relay::start(daemon.address());
    let mut command = binary();
    command.args(["events", "--follow", "--after", "0", "--json"]);
    command.env("SANDKEEP_URL", format!("http://{}", relay.address));
    let mut follower = Follower(command.stdout(Stdio::piped()).spawn().expect("the binary runs"));
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let (read, stdout) = (Arc::clone(&lines), follower.0.stdout.take().expect("it is piped"));
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            read.lock().expect("no panic").push(line);
        }
    });
    let seqs = || -> Vec<u64> {
        let lines = lines.lock().expect("no panic");
        let seq =
            |line: &String| serde_json::from_str::<Value>(line).expect("JSON")["seq"].as_u64();
        lines.iter().map(|line| seq(line).expect("a number")).collect()
    };
    for _ in 0..3 {
        let before = seqs().len();
        round(&daemon);
        until("some have come", Patience::Long, || seqs().len() > before);
        daemon.kill_9();
        daemon.start_again(&setup());
        *relay.to.lock().expect("no panic") = daemon.address();
    }
    round(&daemon);
    let all: Vec<u64> = recorded_events(&daemon.data_dir())
        .expect("a readable log")
        .iter()
        .map(|event| event.seq.get())
        .collect();
    until("all have come", Patience::Long, || seqs().last() == all.last());
    assert_eq!(seqs(), all);
}

#[test]
fn a_follower_ends_when_its_key_is_revoked() {
    skip_if!(crate::support::obstacle());
    let daemon = with_admin(&Setup::default());
    let made = create_key(&daemon.data_dir(), "acme", "ann", &["--scope", "read"]);
    let stream = TcpStream::connect(daemon.address()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    let (host, key) = (daemon.address(), key_of(&made));
    let request = format!(
        "GET /api/v1/events?follow=true HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    (&stream).write_all(request.as_bytes()).expect("it reads");
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    while !line.contains("heartbeat") {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a line") > 0, "the stream is open");
    }
    let id = made["id"].as_str().expect("an id");
    assert_eq!(keys(&daemon.data_dir(), &["revoke", id]).code, 0);
    if let Err(error) = reader.read_to_end(&mut Vec::new()) {
        let kind = error.kind();
        assert!(!matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "it goes on");
    }
}

/// Everything that a caller may send in and nobody else may read.
const SECRET: &str = "M4RK3R";

fn exercised(daemon: &Daemon) -> String {
    let env = json!({ "TOKEN": format!("{SECRET}-env") });
    let id = daemon.create_with(&json!({ "env": env.clone() }));
    let target = format!("/api/v1/sandboxes/{id}");
    let post = |path: &str, body: &Value| daemon.request("POST", &format!("{target}{path}"), body);
    let script = format!("echo {SECRET}-output; cat; echo {SECRET}-error >&2; exit 3");
    let exec =
        json!({ "argv": ["sh", "-c", script], "env": env, "stdin": format!("{SECRET}-stdin") });
    assert_eq!(post("/execs", &exec).0, 200);
    assert_eq!(post("/tools/bash", &json!({ "command": format!("echo {SECRET}-tool") })).0, 200);
    let write = json!({ "path": "note", "content": format!("{SECRET}-content") });
    assert_eq!(post("/tools/write_file", &write).0, 200);
    let process = json!({ "argv": ["sh", "-c", format!("echo {SECRET}-process")], "env": env });
    assert!(post("/processes", &process).0 < 300);
    assert!(post("/shells", &json!({ "env": env })).0 < 300);
    assert!(post("/snapshots", &json!({ "name": "mine" })).0 < 300);
    daemon.verb(&id, "stop");
    daemon.destroy(&id);
    let events = recorded_events(&daemon.data_dir()).expect("a readable log");
    assert!(events.len() > 8, "{events:?}");
    serde_json::to_string(&events).expect("JSON")
}

#[test]
fn no_event_has_values_of_variables_commands_output_or_contents_of_files() {
    skip_if!(crate::support::obstacle());
    let told = exercised(&Daemon::start());
    assert!(!told.contains(SECRET), "{told}");
}

#[test]
fn events_have_command_lines_and_nothing_else_if_the_setting_says_so() {
    skip_if!(crate::support::obstacle());
    let told = exercised(&Daemon::start_with(&Setup::default().argument("--events-commands")));
    assert!(told.contains(&format!("echo {SECRET}-output")), "{told}");
    for hidden in ["env", "stdin", "content"] {
        assert!(!told.contains(&format!("{SECRET}-{hidden}")), "{hidden}: {told}");
    }
}
