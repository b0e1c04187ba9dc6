//! Flex's sandbox host, called by a client on connect-go (`tests/flex`) in a process of its own, and by hand where a good
//! client does not go.

mod bases;
mod listeners;
mod waits;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::daemon;
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Raw, Setup, obstacle, top, until};

const SERVICE: &str = "/rpc.v1.SandboxService";
const STREAM: &str = "/rpc.v1.SandboxService/ExecuteToolStream";
/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// The protocols that every client is tried with.
const PROTOCOLS: [&str; 2] = ["HTTP/1.1", "HTTP/2"];

/// Why the client cannot be had here.
#[derive(Debug)]
struct Missing(&'static str);

/// The client, built in a directory that goes with it.
struct Client {
    _dir: tempfile::TempDir,
    program: PathBuf,
}

impl Client {
    fn build() -> Result<Self, Missing> {
        let source = top().join("tests/flex");
        let go = |arguments: &[&str]| {
            let mut go = Command::new("go");
            go.args(arguments).current_dir(&source).env("GOFLAGS", "-mod=readonly -buildvcs=false");
            go.stdin(Stdio::null()).output()
        };
        match go(&["mod", "download"]) {
            Err(_) => return Err(Missing("there is no Go")),
            Ok(downloaded) if !downloaded.status.success() => {
                return Err(Missing("the client's modules cannot be fetched"));
            }
            Ok(_) => {}
        }
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("client");
        let output = program.to_str().expect("a path of ours is UTF-8");
        let built = go(&["build", "-o", output, "."]).expect("it ran before");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Ok(Self { _dir: dir, program })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).stdin(Stdio::null());
        command
    }
}

fn rpc(daemon: &Daemon, status: u16, method: &str, message: Value) -> Value {
    daemon.expect(status, "POST", &format!("{SERVICE}/{method}"), &message)
}

/// A request as these bytes, and all that is answered until the connection closes.
fn raw(address: SocketAddr, head: &str, body: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LONG)).expect("a time-out");
    let head = format!(
        "POST {STREAM} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{head}content-length: {}\r\n\r\n",
        body.len()
    );
    // A server that refuses the head may not read the body.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short");
    [&[flags][..], &length.to_be_bytes(), payload].concat()
}

const FRAMED: &str = "content-type: application/connect+json\r\nconnect-protocol-version: 1\r\n";

/// A client that says at its end that every promise was kept.
fn assert_all_kept(mut client: Command, daemon: &Daemon) {
    let ran = client.output().expect("it runs");
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{errors}\n{}", daemon.said());
    assert!(said.contains("all kept"), "it did not get to the last check: {said}");
}

#[test]
fn a_client_on_connect_go_gets_through_every_method() {
    skip_if!(obstacle());
    let client = Client::build();
    skip_if!(client.as_ref().err().map(|missing| missing.0));
    let client = client.expect("it was built");
    let daemon = Daemon::start();
    for protocol in PROTOCOLS {
        assert_all_kept(client.command(&[&daemon.url(), protocol]), &daemon);
    }
    daemon.assert_no_leaks();
}

/// Where `./test` installs Connect's library for Node.js.
fn node_home() -> PathBuf {
    top().join("target/connect-node")
}

#[test]
fn a_client_on_connect_node_reads_and_writes_the_same_frames() {
    skip_if!(obstacle());
    let there = node_home().join("installed.json").exists();
    skip_if!((!there).then_some("connect-node is not installed; ./test does it from npm"));
    let daemon = Daemon::start();
    let script = node_home().join("client.mjs");
    std::fs::copy(top().join("tests/connect-node/client.mjs"), &script).expect("it is there");
    for version in ["1.1", "2"] {
        let mut client = Command::new("node");
        client.arg(&script).args([&daemon.url(), version]).stdin(Stdio::null());
        assert_all_kept(client, &daemon);
    }
    daemon.assert_no_leaks();
}

#[test]
fn a_daemon_that_is_killed_in_a_stream_leaves_a_session_that_works() {
    skip_if!(obstacle());
    let client = Client::build();
    skip_if!(client.as_ref().err().map(|missing| missing.0));
    let client = client.expect("it was built");
    let mut daemon = Daemon::start();
    let mut command = client.command(&[&daemon.url(), "HTTP/1.1", "frame"]);
    let mut running = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(running.stdout.take().expect("it is piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "frame");
    daemon.kill_9();
    let last = lines.map_while(Result::ok).last().expect("it says how it ended");
    assert!(last.starts_with("ended: ") && last != "ended: ", "{last}");
    assert!(running.wait().expect("it ends").success());
    daemon.start_again(&Setup::default());
    let call = json!({
        "SessionID": "long", "ToolCallID": "after", "ToolName": "bash", "Params": { "cmd": "echo well" }
    });
    let answer = rpc(&daemon, 200, "ExecuteTool", call);
    assert_eq!(
        (&answer["Content"], &answer["ExitCode"]),
        (&json!("well\n"), &json!(0)),
        "{answer}"
    );
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "long" }));
    daemon.assert_no_leaks();
}

#[test]
fn the_address_of_a_process_outlives_the_daemon_and_goes_with_the_process() {
    let mut daemon = daemon!();
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    let serve = "mkdir w && echo hello > w/health && exec python3 -m http.server -d w 8081";
    let launched = rpc(
        &daemon,
        200,
        "LaunchProcess",
        json!({
            "SessionID": "s", "Binary": "sh", "Args": ["-c", serve], "Env": null, "ExposePort": 8081
        }),
    );
    let address: SocketAddr =
        launched["Address"].as_str().expect("one").parse().expect("an address");
    assert!(get(address).expect("an answer").ends_with("hello\n"));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    until("the address is there again", Patience::Long, || {
        get(address).is_some_and(|answer| answer.ends_with("hello\n"))
    });
    let process = json!({ "SessionID": "s", "ProcessID": launched["ProcessID"], "Signal": 9 });
    rpc(&daemon, 200, "KillProcess", process.clone());
    until("the address is gone", Patience::Long, || TcpStream::connect(address).is_err());
    assert_eq!(rpc(&daemon, 200, "GetProcessStatus", process)["ExitCode"], 128 + 9);
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
    daemon.assert_no_leaks();
}

/// `None`: nobody listens, or the connection broke.
fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn who_has_no_key_is_told_so_in_the_words_of_the_protocol() {
    skip_if!(obstacle());
    let mut daemon = with_admin(&Setup::default());
    let (status, head, body) = daemon
        .request_head(
            &[("authorization", "Bearer wrong")],
            "POST",
            &format!("{SERVICE}/GetSession"),
            &json!({}),
        )
        .expect("an answer");
    assert_eq!((status, &body["code"]), (401, &json!("unauthenticated")), "{body}");
    assert!(head.contains("x-api-version: v1"), "{head}");
    let answer = raw(daemon.address(), FRAMED, &frame(0, b"{}"));
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("unauthenticated"), "{answer}");
    // A caller finds its own session by name, and nobody else's.
    for user in ["ann", "bob"] {
        let key =
            create_key(&daemon.data_dir(), "acme", user, &["--scope", "write", "--scope", "read"]);
        daemon.use_key(key_of(&key));
        rpc(&daemon, 404, "GetSession", json!({ "SessionID": "mine" }));
        rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "mine" }));
        rpc(&daemon, 409, "CreateSession", json!({ "SessionID": "mine" }));
    }
    let key = create_key(&daemon.data_dir(), "acme", "ann", &["--scope", "read"]);
    daemon.use_key(key_of(&key));
    rpc(&daemon, 200, "GetSession", json!({ "SessionID": "mine" }));
    let refused = rpc(&daemon, 403, "DestroySession", json!({ "SessionID": "mine" }));
    assert_eq!(refused["code"], "permission_denied");
    let admin = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "admin"]);
    daemon.use_key(key_of(&admin));
}

#[test]
fn garbage_in_frames_is_refused_and_the_daemon_goes_on() {
    let daemon = daemon!();
    let (status, health) = daemon.request("GET", "/healthz", &Value::Null);
    assert_eq!(status, 200, "{health}");
    let bodies: Vec<Vec<u8>> = [
        Vec::new(),
        vec![0; 4],
        frame(0, b"not json"),
        frame(1, b"{}"),
        frame(2, b"{}"),
        frame(0xff, b"{}"),
        vec![0, 0xff, 0xff, 0xff, 0xff, b'{'],
        [frame(0, b"{}"), frame(0, b"{}")].concat(),
        (0..=255).cycle().take(10_000).collect(),
    ]
    .into();
    for body in bodies {
        let answer = raw(daemon.address(), FRAMED, &body);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let refused = answer.contains("invalid_argument") || answer.contains("resource_exhausted");
        assert!(answer.starts_with("HTTP/1.1 200") && refused, "{body:?}: {answer}");
    }
    // A client that disconnects in the middle of a frame leaves nothing behind.
    let mut stream = TcpStream::connect(daemon.address()).expect("it listens");
    let head =
        format!("POST {STREAM} HTTP/1.1\r\nhost: localhost\r\n{FRAMED}content-length: 100\r\n\r\n");
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(b"\0\0\0")).expect("sent");
    drop(stream);
    assert_eq!(daemon.request("GET", "/healthz", &Value::Null).0, 200);
    daemon.assert_no_leaks();
}

/// The connection of a request that was refused unread is good for the next: clients keep connections, and do not send a
/// request again that may have had an effect.
#[test]
fn a_connection_goes_on_after_a_request_that_was_refused_unread() {
    let daemon = daemon!();
    let mut raw = Raw::open(daemon.address());
    let head = |version: &str| {
        format!(
            "POST {SERVICE}/HealthCheck HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             x-api-version: {version}\r\ncontent-length: 2\r\n\r\n"
        )
    };
    for _ in 0..20 {
        let refused = raw.send(head("v0").as_bytes()).reply("POST");
        assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("failed_precondition")));
        let answer = raw.send(b"{}").send(head("v1").as_bytes()).send(b"{}").reply("POST");
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}
