//! Raw `host:port` sockets of the host that forward to a port inside, and the list of ports.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;

use serde_json::{Value, json};

use super::{PORT, Site};
use crate::daemon;
use crate::support::{Daemon, Patience, Raw, Setup, until};

fn address(answer: &Value) -> SocketAddr {
    answer["address"].as_str().expect("an address").parse().expect("host:port")
}

impl Site<'_> {
    fn listen(&self) -> SocketAddr {
        address(&self.daemon.expect(200, "POST", &self.path("/listen"), &Value::Null))
    }

    fn ports(&self) -> Vec<Value> {
        let target = format!("/api/v1/sandboxes/{}/ports", self.id);
        let listing = self.daemon.expect(200, "GET", &target, &Value::Null);
        listing["items"].as_array().expect("items").clone()
    }
}

#[test]
fn the_command_line_says_where_a_port_is() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let port = |more: &[&str]| {
        let mut command = crate::support::binary();
        command.args(["--url", &daemon.url(), "port", &site.id]).args(more);
        let ran = crate::support::Ran::from(command.output().expect("the binary runs"));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.stdout.trim_end().to_owned()
    };
    assert_eq!(port(&["8000"]), format!("http://{}/", site.host(PORT)));
    assert!(speaks(port(&["8000", "--raw"]).parse().expect("host:port")));
    let signed = port(&["8000", "--sign", "--expires", "5m"]);
    assert!(signed.starts_with(&format!("http://{}/?sandkeep_token=", site.host(PORT))));
    let table = port(&[]);
    assert!(table.contains("8000") && table.contains("open"), "{table}");
}

fn speaks(address: SocketAddr) -> bool {
    let mut raw = Raw::open(address);
    raw.send(b"GET /raw HTTP/1.1\r\nHost: any.example\r\n\r\n").reply("GET").json()["target"]
        == "/raw"
}

#[test]
fn a_raw_port_of_the_host_leads_inside() {
    let daemon = daemon!();
    let site = Site::open(&daemon);
    let address = site.listen();
    assert!(address.ip().is_loopback());
    assert!(speaks(address));
    assert_eq!(site.listen(), address, "there is one for each port");
    let shown: Vec<Value> = site.ports().into_iter().filter(|port| port["port"] == PORT).collect();
    let url = format!("http://{}/", site.host(PORT));
    let expected =
        json!({ "port": PORT, "open": true, "url": url, "address": address.to_string() });
    assert_eq!(shown, [expected]);

    // Another user of the machine is not let through.
    let script = "import socket, sys\n\
        s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n\
        s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')\n\
        try: print(len(s.recv(100)))\n\
        except ConnectionResetError: print(0)";
    let mut stranger = Command::new("python3");
    stranger.args(["-c", script, "127.0.0.1", &address.port().to_string()]).uid(65_534);
    let output = stranger.current_dir("/").output().expect("python3 runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "0", "{output:?}");

    daemon.expect(204, "DELETE", &site.path("/listen"), &Value::Null);
    assert!(std::net::TcpStream::connect(address).is_err(), "it is closed");
    let gone = daemon.expect(404, "DELETE", &site.path("/listen"), &Value::Null);
    assert_eq!(gone["code"], "listener_not_found");
}

#[test]
fn a_raw_port_outlives_the_daemon_and_ends_with_the_run_of_its_sandbox() {
    let mut daemon = daemon!();
    let (id, first) = {
        let site = Site::open(&daemon);
        (site.id.clone(), site.listen())
    };
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    reopened(&daemon, &id, first);
    daemon.verb(&id, "stop");
    until("the port of the host is closed", Patience::Short, || {
        std::net::TcpStream::connect(first).is_err()
    });
    daemon.verb(&id, "start");
    let site = Site { daemon: &daemon, id };
    assert_eq!(site.ports(), Vec::<Value>::new(), "a start brings nothing back");
}

fn reopened(daemon: &Daemon, id: &str, first: SocketAddr) {
    let site = Site { daemon, id: id.to_owned() };
    until("the port of the host is open again", Patience::Short, || {
        site.ports().iter().any(|port| port["address"] == first.to_string())
    });
    assert!(speaks(first));
}
