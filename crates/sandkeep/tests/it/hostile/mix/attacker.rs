//! The attacking tenant: what it does to its sandboxes and to the daemon.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Caller;
use crate::support::Daemon;

/// One of the attacking tenant's connections. All have one owner.
pub(super) struct Attacker {
    pub(super) caller: Caller,
    random: AtomicUsize,
    sandbox: Mutex<Option<String>>,
    /// The server that its sandboxes may reach.
    entry: String,
}

/// Commands inside that strain the shared kernel.
const INSIDE: [&str; 5] = [
    // All processes that it may have, and all memory.
    "for i in $(seq 600); do sleep 5 & done; head -c 2G /dev/zero | tail -c 1",
    // A file for every inode, and all blocks.
    "i=0; while [ $i -lt 3000 ]; do : > f$i; i=$((i + 1)); done; dd if=/dev/zero of=full bs=1M count=1500",
    "for i in $(seq 4); do (while :; do :; done) & done; sleep 3; kill $(jobs -p)",
    "i=0; while [ $i -lt 2000 ]; do mkdir d && cd d || exit; i=$((i + 1)); done",
    "truncate -s 7E big; ln -s / out; mkfifo pipe; sleep 1; touch big",
];

impl Attacker {
    pub(super) fn new(daemon: &Daemon, seed: u64, entry: &str) -> Self {
        let caller = Caller::new(daemon, "bad", "attacker");
        let random = AtomicUsize::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize | 1);
        Self { caller, random, sandbox: Mutex::new(None), entry: entry.to_owned() }
    }

    /// The port of the server that its sandboxes may reach.
    pub(super) fn entry_port(&self) -> &str {
        self.entry.rsplit(':').next().expect("a port")
    }

    /// A number below `end`, from a xorshift generator.
    pub(super) fn below(&self, end: usize) -> usize {
        let mut word = self.random.load(Ordering::Relaxed);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random.store(word, Ordering::Relaxed);
        word % end
    }

    pub(super) fn ask(
        &self,
        daemon: &Daemon,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Option<Value> {
        // The daemon may close the connection of somebody who asks for too much.
        let (status, answer) = self.caller.ask(daemon, method, path, body).ok()?;
        assert!(status != 500, "{method} {path} {body}: {answer}");
        (status < 300).then_some(answer)
    }

    /// Its sandbox: a new one now and then, and whenever the last one is gone.
    pub(super) fn sandbox(&self, daemon: &Daemon) -> Option<String> {
        let mut kept = self.sandbox.lock().expect("no panic");
        if let Some(id) = kept.take_if(|_| self.below(8) == 0) {
            self.ask(daemon, "DELETE", &format!("/sandboxes/{id}"), &Value::Null);
        }
        if kept.is_none() {
            let spec = json!({
                "resources": { "cpus": 0.2, "memory_mb": 128, "disk_mb": 256 },
                "network": { "allow": [self.entry, "nowhere.test"], "on_deny": "ask" },
            });
            let view = self.ask(daemon, "POST", "/sandboxes", &spec)?;
            *kept = view["id"].as_str().map(str::to_owned);
        }
        kept.clone()
    }

    pub(super) fn attacks(&self, daemon: &Daemon) {
        let Some(id) = self.sandbox(daemon) else { return };
        let path = format!("/sandboxes/{id}");
        let address = daemon.address();
        match self.below(14) {
            0 => {
                let body =
                    json!({ "command": INSIDE[self.below(INSIDE.len())], "timeout_ms": 4000 });
                self.ask(daemon, "POST", &format!("{path}/execs"), &body);
            }
            1 => self.looks_back(daemon, &path),
            2 => {
                let noise = "head -c 70000000 /dev/zero | tr '\\0' x";
                for _ in 0..8 {
                    let body = json!({ "command": noise });
                    self.ask(daemon, "POST", &format!("{path}/processes"), &body);
                }
            }
            3 => {
                // Every byte becomes six in the answer, which nobody reads.
                let body = json!({ "command": "head -c 20000000 /dev/zero" }).to_string();
                let target = format!("/api/v1{path}/execs");
                self.holds(address, 4, |_| self.request("POST", &target, body.len(), &body));
            }
            4 => {
                let target = format!("/api/v1{path}/files/archive?path=/usr");
                self.holds(address, 40, |_| self.request("GET", &target, 0, ""));
            }
            5 => {
                // A large upload that goes on for ever, or so it says.
                let part = "x".repeat(1 << 20);
                self.holds(address, 16, |number| match number % 2 {
                    0 => self.request("POST", "/api/v1/uploads", 8 << 30, &part),
                    _ => {
                        let target = format!("/api/v1/templates/t{number}/upload");
                        self.request("PUT", &target, 8 << 30, &part)
                    }
                });
            }
            6 => self.holds(address, 200, |number| match number % 2 {
                0 => String::new(),
                _ => "GET /api/v1/sandboxes HTTP/1.1\r\nx-a: ".to_owned(),
            }),
            7 => self.sends_slowly(daemon),
            8 => self.fills_codebases(daemon),
            9 => self.floods_the_gateway(daemon, &path),
            10 => self.follows_all(daemon, &path),
            11 => self.races(daemon, &path),
            12 => self.keeps_what_it_can(daemon),
            _ => {
                self.ask(daemon, "POST", &format!("{path}/turns"), &json!({}));
                self.ask(daemon, "POST", &format!("{path}/fork"), &json!({ "count": 3 }));
                let mine = self.ask(daemon, "GET", "/sandboxes", &Value::Null);
                let kept = self.sandbox.lock().expect("no panic").clone();
                let items = mine.as_ref().and_then(|list| list["items"].as_array());
                for other in items.into_iter().flatten().filter_map(|view| view["id"].as_str()) {
                    if kept.as_deref() != Some(other) && self.below(2) == 0 {
                        let path = format!("/sandboxes/{other}");
                        self.ask(daemon, "DELETE", &path, &Value::Null);
                    }
                }
            }
        }
    }

    /// Differences of a file without end, in both forms, for clients that leave; and a way back that never ends.
    fn looks_back(&self, daemon: &Daemon, path: &str) {
        let run = |command: &str| {
            let body = json!({ "command": command, "timeout_ms": 4000 });
            self.ask(daemon, "POST", &format!("{path}/execs"), &body)
        };
        run("truncate -s 7E big");
        let made = self.ask(daemon, "POST", &format!("{path}/snapshots"), &json!({}));
        let Some(snapshot) = made.and_then(|made| made["id"].as_str().map(str::to_owned)) else {
            return;
        };
        run("touch big; truncate -s 6E more");
        let diff = format!("/api/v1{path}/diff?from={snapshot}");
        self.holds(daemon.address(), 30, |number| match number % 2 {
            0 => self.request("GET", &diff, 0, ""),
            _ => self.request("GET", &format!("{diff}&format=tar"), 0, ""),
        });
        let body = json!({ "snapshot": snapshot, "paths": ["/"] }).to_string();
        let target = format!("/api/v1{path}/revert");
        self.holds(daemon.address(), 1, |_| self.request("POST", &target, body.len(), &body));
    }

    pub(super) fn request(&self, method: &str, target: &str, length: usize, body: &str) -> String {
        let credential = &self.caller.credential;
        format!(
            "{method} {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: {credential}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    /// Asks on so many connections at once, reads almost nothing of the answers, and leaves.
    pub(super) fn holds(
        &self,
        address: SocketAddr,
        connections: usize,
        say: impl Fn(usize) -> String,
    ) {
        let held: Vec<TcpStream> = (0..connections)
            .filter_map(|number| {
                // A client with too many connections is refused.
                let mut stream = TcpStream::connect(address).ok()?;
                stream.set_write_timeout(Some(Duration::from_millis(100))).ok()?;
                stream.write_all(say(number).as_bytes()).ok()?;
                Some(stream)
            })
            .collect();
        let until = Instant::now() + Duration::from_millis(200 + self.below(1500) as u64);
        for mut stream in held {
            let left = until.saturating_duration_since(Instant::now());
            let wait = left.max(Duration::from_millis(1));
            if stream.set_read_timeout(Some(wait)).is_ok() {
                let mut some = [0; 64];
                let _ = stream.read(&mut some);
            }
        }
    }
}
