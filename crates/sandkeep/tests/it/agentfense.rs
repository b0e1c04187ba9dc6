//! AgentFense's doors, called by its own client for Python, unchanged (`tests/agentfense`), against a real daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Raw, Setup, obstacle, top, until_some};

fn doors() -> Setup {
    let setup = Setup::default().argument("--agentfense-grpc").argument("127.0.0.1:0");
    setup.argument("--agentfense-rest").argument("127.0.0.1:0")
}

/// Where `./test` installs the client.
fn python() -> PathBuf {
    top().join("target/agentfense/bin/python3")
}

fn no_client() -> Option<&'static str> {
    let missing = !python().exists();
    missing.then_some("AgentFense's client is not installed; ./test does it from PyPI")
}

/// Where a door listens, as the daemon says.
fn address(daemon: &Daemon, door: &str) -> SocketAddr {
    let begin = format!("agentfense {door} listens on ");
    until_some("the daemon says where the door is", Patience::Short, || {
        let said = daemon.said();
        said.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
    })
}

fn client(daemon: &Daemon, runtime: &str) {
    let ran = Command::new(python())
        .arg(top().join("tests/agentfense/client.py"))
        .arg(address(daemon, "gRPC").to_string())
        .arg(format!("http://{}", address(daemon, "REST")))
        .arg(runtime)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    let (said, errors) =
        (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{said}\n{errors}\n{}", daemon.said());
    assert!(said.contains("all kept"), "it did not get to the last check: {said}");
}

#[test]
fn its_own_client_gets_through_every_method() {
    skip_if!(obstacle());
    skip_if!(no_client());
    let daemon = Daemon::start_with(&doors());
    client(&daemon, "bwrap");
    daemon.assert_no_leaks();
}

#[test]
fn nothing_is_served_that_was_not_asked_for() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    assert!(!daemon.said().contains("agentfense"), "{}", daemon.said());
    let request = format!("GET /v1/sandboxes HTTP/1.1\r\nhost: {}\r\n\r\n", daemon.address());
    assert_eq!(Raw::open(daemon.address()).send(request.as_bytes()).reply("GET").status, 404);
}

/// The status of a call over JSON, and the number that it says.
fn listed(address: SocketAddr, key: &str) -> (u16, serde_json::Value) {
    let request = format!(
        "GET /v1/sandboxes HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    let reply = Raw::open(address).send(request.as_bytes()).reply("GET");
    (reply.status, reply.json()["code"].clone())
}

/// Over gRPC: the whole stack of a client, with and without a key.
const CALLER: &str = "
import sys, grpc
from agentfense._gen import codebase_pb2, codebase_pb2_grpc, sandbox_pb2, sandbox_pb2_grpc
channel = grpc.insecure_channel(sys.argv[1])
metadata = [('authorization', 'Bearer ' + sys.argv[2])]
stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
try:
    print(len(stub.ListSandboxes(sandbox_pb2.ListSandboxesRequest(), metadata=metadata).sandboxes))
except grpc.RpcError as error:
    print(error.code().name)
files = codebase_pb2_grpc.CodebaseServiceStub(channel)
try:
    made = files.CreateCodebase(codebase_pb2.CreateCodebaseRequest(name='x'), metadata=metadata)
    data = files.DownloadFile(codebase_pb2.DownloadFileRequest(codebase_id=made.id, file_path='x'), metadata=metadata)
    list(data)
except grpc.RpcError as error:
    print(error.code().name)
for made in files.ListCodebases(codebase_pb2.ListCodebasesRequest(), metadata=metadata).codebases if len(sys.argv) > 3 else []:
    files.DeleteCodebase(codebase_pb2.DeleteCodebaseRequest(codebase_id=made.id), metadata=metadata)
";

#[test]
fn a_daemon_with_keys_asks_for_one_at_both_doors() {
    skip_if!(obstacle());
    skip_if!(no_client());
    let daemon = with_admin(&doors());
    let write =
        create_key(&daemon.data_dir(), "acme", "ann", &["--scope", "write", "--scope", "read"]);
    let read = create_key(&daemon.data_dir(), "acme", "bob", &["--scope", "read"]);
    let cases = [
        ("none", "UNAUTHENTICATED\nUNAUTHENTICATED\n", 401),
        (key_of(&read), "0\nPERMISSION_DENIED\n", 200),
        (key_of(&write), "0\nNOT_FOUND\n", 200),
    ];
    for (key, expected, status) in cases {
        let may_write = expected.ends_with("NOT_FOUND\n");
        let caller = Command::new(python())
            .args(["-c", CALLER, &address(&daemon, "gRPC").to_string(), key])
            .args(may_write.then_some("clean up"))
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&caller.stdout);
        assert_eq!(said, expected, "{}", String::from_utf8_lossy(&caller.stderr));
        assert_eq!(listed(address(&daemon, "REST"), key).0, status);
    }
    assert_eq!(listed(address(&daemon, "REST"), "none").1, 16);
}
