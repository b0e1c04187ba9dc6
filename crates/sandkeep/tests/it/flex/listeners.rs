//! The door's own listener, and the addresses of processes that it launches.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::{SERVICE, get, rpc};
use crate::daemon;
use crate::keys::with_admin;
use crate::skip_if;
use crate::support::{Daemon, Patience, Ran, Raw, Setup, binary, obstacle, until_some};

fn own_listener() -> Setup {
    Setup::default().argument("--flex-listen").argument("127.0.0.1:0")
}

/// Where the door alone listens.
fn own_address(daemon: &Daemon) -> SocketAddr {
    until_some("the daemon says where Flex's door is", Patience::Short, || {
        let said = daemon.said();
        said.lines().find_map(|line| line.strip_prefix("flex listens on ")?.parse().ok())
    })
}

/// A call on that listener: its status, and what it says.
fn call(address: SocketAddr, path: &str, headers: &str) -> (u16, Value) {
    let mut raw = Raw::open(address);
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n{headers}content-length: 2\r\n\r\n{{}}"
    );
    let reply = raw.send(request.as_bytes()).reply("POST");
    (reply.status, reply.json())
}

fn health(address: SocketAddr) -> String {
    let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\n\r\n");
    Raw::open(address).send(request.as_bytes()).reply("GET").text()
}

#[test]
fn a_listener_of_its_own_leads_to_flex_and_nowhere_else() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&own_listener());
    let address = own_address(&daemon);
    assert_ne!(address, daemon.address());
    assert_eq!(health(address), "ok\n");
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "everywhere" }));
    let (status, listed) = call(address, &format!("{SERVICE}/ListSessions"), "");
    assert_eq!((status, &listed["Sessions"][0]["ID"]), (200, &json!("everywhere")), "{listed}");
    for path in ["/api/v1/sandboxes", "/mcp", "/", "/rpc.v1.SandboxService/Nothing"] {
        let (status, refused) = call(address, path, "");
        assert_eq!((status, &refused["code"]), (501, &json!("unimplemented")), "{path}: {refused}");
    }
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "everywhere" }));
}

#[test]
fn its_own_listener_is_behind_the_same_gate() {
    skip_if!(obstacle());
    let daemon = with_admin(&own_listener());
    let (method, address) = (format!("{SERVICE}/ListSessions"), own_address(&daemon));
    let (status, refused) = call(address, &method, "");
    assert_eq!((status, &refused["code"]), (401, &json!("unauthenticated")), "{refused}");
    assert_eq!(health(address), "ok\n", "it needs no key");
}

/// Starts a daemon that must refuse to start.
fn refused(arguments: &[&str]) -> Ran {
    let place = tempfile::tempdir().expect("a directory");
    let mut command = binary();
    command.args(["serve", "--listen", "127.0.0.1:0", "--storage", "local", "--data-dir"]);
    command.arg(place.path()).args(arguments);
    let ran: Ran = command.output().expect("the binary runs").into();
    assert_ne!(ran.assert_no_panic().code, 0, "{ran:?}");
    ran
}

#[test]
fn a_door_that_others_can_reach_needs_keys() {
    skip_if!(obstacle());
    let ran = refused(&["--flex-listen", "0.0.0.0:0"]);
    assert!(ran.stderr.contains("0.0.0.0:0") && ran.stderr.contains("keys create"), "{ran:?}");
    // Reserved for documentation, so no machine has it.
    let ran = refused(&["--flex-advertise-addr", "203.0.113.1"]);
    assert!(ran.stderr.contains("203.0.113.1"), "{ran:?}");
    for wrong in ["0.0.0.0", "::", "localhost", "127.0.0.1:80"] {
        let ran = refused(&["--flex-advertise-addr", wrong]);
        assert!(ran.stderr.contains("advertise"), "{wrong}: {ran:?}");
    }
}

#[test]
fn a_launched_process_is_reached_at_the_advertised_address() {
    skip_if!(obstacle());
    for host in ["127.0.0.2", "::1"] {
        let setup = Setup::default().argument("--flex-advertise-addr").argument(host);
        let mut daemon = Daemon::start_with(&setup);
        let launched = launch_server(&daemon);
        let address = address_of(&launched);
        assert_eq!(address.ip().to_string(), host);
        assert!(get(address).expect("an answer").ends_with("hello\n"));
        daemon.kill_9();
        daemon.start_again(&setup);
        let answer = until_some("it answers again", Patience::Long, || get(address));
        assert!(answer.ends_with("hello\n"), "{answer}");
        rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
    }
}

/// Ports that the sandbox's user opened on the host before are on loopback, and do not stand in the way.
#[test]
fn an_address_holds_connections_though_the_port_was_opened_before() {
    let daemon = daemon!();
    rpc(&daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    daemon.expect(200, "POST", "/api/v1/sandboxes/s/ports/8081/listen", &Value::Null);
    let launched = launch(
        &daemon,
        "sleep 2; mkdir w; echo hello > w/health; exec python3 -m http.server -d w 8081",
    );
    let answer = get(address_of(&launched)).expect("the connection is held");
    assert!(answer.ends_with("hello\n"), "{answer}");
    rpc(&daemon, 200, "DestroySession", json!({ "SessionID": "s" }));
}

fn launch_server(daemon: &Daemon) -> Value {
    rpc(daemon, 200, "CreateSession", json!({ "SessionID": "s" }));
    launch(daemon, "mkdir w && echo hello > w/health && exec python3 -m http.server -d w 8081")
}

fn launch(daemon: &Daemon, script: &str) -> Value {
    let request = json!({
        "SessionID": "s", "Binary": "sh", "Args": ["-c", script], "Env": null, "ExposePort": 8081
    });
    rpc(daemon, 200, "LaunchProcess", request)
}

fn address_of(launched: &Value) -> SocketAddr {
    launched["Address"].as_str().expect("one").parse().expect("an address")
}
