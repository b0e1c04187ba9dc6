//! Attacks through what came last: other doors, codebases, the way out, races, events and webhooks.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::attacker::Attacker;
use crate::support::Daemon;

/// Hundreds of connections that the gateway carries, answers or refuses, and as many names to look up.
const CONNECTIONS: &str = r#"
import socket, sys, time
held = []
for at in range(400):
    one = socket.socket()
    one.setblocking(False)
    try:
        one.connect(("198.18.0.1" if at % 4 == 0 else sys.argv[1], int(sys.argv[2]) if at % 2 else 443))
    except OSError:
        pass
    held.append(one)
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
query = b"\0\1\1\0\0\1\0\0\0\0\0\0\7nowhere\4test\0\0\1\0\1"
for _ in range(3000):
    try: names.sendto(query, ("198.18.0.1", 53))
    except OSError: pass
for one in held[:100]:
    try: one.send(b"GET /hold HTTP/1.1\r\nHost: a.test\r\n\r\n")
    except OSError: pass
time.sleep(2)
"#;

impl Attacker {
    /// Bodies that do not end, through each door.
    pub(super) fn sends_slowly(&self, daemon: &Daemon) {
        let doors =
            ["/api/v1/sandboxes", "/mcp", "/rpc.v1.SandboxService/CreateSession", "/v1/sandboxes"];
        let part = format!("{{\"name\":\"{}", "x".repeat(3 << 20));
        self.holds(daemon.address(), 60, |number| {
            self.request("POST", doors[number % doors.len()], 7 << 20, &part)
        });
    }

    /// Codebases, and archives for them of which little arrives.
    pub(super) fn fills_codebases(&self, daemon: &Daemon) {
        let name = format!("c{}", self.below(4));
        let path = format!("/codebases/{name}");
        self.ask(daemon, "POST", "/codebases", &json!({ "name": name }));
        let archive = format!("/api/v1{path}/files/archive");
        let file = format!("/api/v1{path}/files?path=big");
        let part = "x".repeat(1 << 20);
        self.holds(daemon.address(), 50, |number| match number % 2 {
            0 => self.request("PUT", &archive, 8 << 30, &part),
            _ => self.request("PUT", &file, 8 << 30, &part),
        });
        if self.below(2) == 0 {
            self.ask(daemon, "DELETE", &path, &Value::Null);
        }
    }

    pub(super) fn floods_the_gateway(&self, daemon: &Daemon, path: &str) {
        let port = self.entry_port();
        let argv = json!(["/usr/bin/python3", "-c", CONNECTIONS, "a.test", port]);
        let body = json!({ "argv": argv, "timeout_ms": 6000 });
        self.ask(daemon, "POST", &format!("{path}/execs?wait=false"), &body);
        for at in 0..30 {
            let asked = json!({ "host": format!("h{at}.test"), "port": 443, "why": "please" });
            self.ask(daemon, "POST", &format!("{path}/network/requests"), &asked);
        }
        self.holds(daemon.address(), 60, |_| self.network_log(path));
    }

    /// Streams of all kinds that nobody reads.
    pub(super) fn follows_all(&self, daemon: &Daemon, path: &str) {
        let noise = json!({ "command": "head -c 20000000 /dev/zero | tr '\\0' x" });
        let ran = self.ask(daemon, "POST", &format!("{path}/execs?wait=false"), &noise);
        let Some(exec) = ran.and_then(|ran| ran["exec_id"].as_str().map(str::to_owned)) else {
            return;
        };
        let output = format!("/api/v1{path}/execs/{exec}/output?follow=true");
        self.holds(daemon.address(), 200, |number| match number % 4 {
            0 => self.request("GET", "/api/v1/events?follow=true", 0, ""),
            1 => self.network_log(path),
            2 => self.request("GET", &format!("/api/v1{path}/files/watch?path=/"), 0, ""),
            _ => self.request("GET", &output, 0, ""),
        });
    }

    pub(super) fn races(&self, daemon: &Daemon, path: &str) {
        let body = json!({
            "count": 3, "command": "truncate -s 7E big; sleep 1", "judge": "sleep 1; echo 1",
            "timeout_ms": 4000,
        })
        .to_string();
        let target = format!("/api/v1{path}/race");
        self.holds(daemon.address(), 6, |_| self.request("POST", &target, body.len(), &body));
    }

    /// Rows that stay: webhooks that nobody answers, and idempotency keys.
    pub(super) fn keeps_what_it_can(&self, daemon: &Daemon) {
        for _ in 0..8 {
            let hook = json!({ "url": "http://127.0.0.1:9/", "kinds": ["*"] });
            self.ask(daemon, "POST", "/webhooks", &hook);
        }
        let body = json!({ "runtime": "none" }).to_string();
        self.holds(daemon.address(), 60, |number| {
            let key = format!("idempotency-key: k{}-{number}\r\n", self.below(1 << 20));
            let request = self.request("POST", "/api/v1/sandboxes", body.len(), &body);
            request.replacen("\r\n", &format!("\r\n{key}"), 1)
        });
    }

    /// Everything that can be open while a daemon is asked to end, held until it is dropped.
    pub(super) fn leaves_all_open(&self, daemon: &Daemon) -> Vec<TcpStream> {
        let path = self.sandbox(daemon).map(|id| format!("/sandboxes/{id}"));
        let path = path.expect("it may have a sandbox, now that nobody works on others");
        self.ask(daemon, "POST", "/codebases", &json!({ "name": "open" }));
        let port = self.entry_port();
        let argv = json!(["/usr/bin/python3", "-c", CONNECTIONS, "a.test", port]);
        self.ask(daemon, "POST", &format!("{path}/execs?wait=false"), &json!({ "argv": argv }));
        let forever = json!({ "command": "yes" }).to_string();
        let race = json!({ "count": 2, "command": "sleep 1000", "judge": "echo 1" }).to_string();
        let part = "{\"name\": \"xxxxx";
        let requests = [
            self.network_log(&path),
            self.request("GET", "/api/v1/events?follow=true", 0, ""),
            self.request("GET", &format!("/api/v1{path}/files/watch?path=/"), 0, ""),
            self.request("PUT", "/api/v1/codebases/open/files/archive", 8 << 30, part),
            self.request("POST", "/api/v1/uploads", 8 << 30, part),
            self.request("POST", "/mcp", 7 << 20, part),
            self.request("POST", "/rpc.v1.SandboxService/CreateSession", 7 << 20, part),
            self.request(
                "POST",
                &format!("/api/v1{path}/execs?stream=true"),
                forever.len(),
                &forever,
            ),
            self.request("POST", &format!("/api/v1{path}/execs"), forever.len(), &forever),
            self.request("POST", &format!("/api/v1{path}/race"), race.len(), &race),
        ];
        requests
            .iter()
            .map(|request| {
                let mut stream = TcpStream::connect(daemon.address()).expect("connected");
                stream.set_write_timeout(Some(Duration::from_secs(10))).expect("an option");
                stream.write_all(request.as_bytes()).expect("sent");
                stream
            })
            .collect()
    }

    fn network_log(&self, path: &str) -> String {
        self.request("GET", &format!("/api/v1{path}/network/log?follow=true"), 0, "")
    }
}
