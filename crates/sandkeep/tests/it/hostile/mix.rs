//! One tenant does everything that is known to hurt, concurrently and in random mixes, while another keeps working. The
//! daemon's memory and the disk are monitored all the time.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Setup, obstacle};

/// Maximum slowdown of the other tenant's answers, relative to an idle daemon.
const SLOWER_MAX: u32 = 5;
/// Times below this are the scheduler's and not the daemon's.
const QUIET_MIN: Duration = Duration::from_millis(40);
const ROUNDS_MIN: usize = 40;
/// The daemon's memory limit during the attack, including everything that it holds for others.
const MEMORY_MAX_KB: u64 = 400 * 1024;
/// Free disk that no tenant can take.
const DISK_RESERVE_BYTES: u64 = 512 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(50);
const ATTACKERS: usize = 6;

#[test]
fn a_tenant_that_does_all_that_hurts_at_once_harms_nobody_else() {
    attack(Duration::from_secs(25));
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_a_tenant_that_does_all_that_hurts_at_once_harms_nobody_else() {
    attack(Duration::from_secs(600));
}

fn attack(time: Duration) {
    skip_if!(obstacle());
    // Typical settings of an operator with tenants.
    let setup = [("SANDBOXES", "8"), ("CPUS", "2"), ("MEMORY_MB", "1024"), ("DISK_MB", "2048")]
        .into_iter()
        .chain([("TEMPLATES", "4"), ("TEMPLATE_MB", "64")])
        .fold(Setup::default(), |setup, (name, value)| {
            setup.env(&format!("SANDKEEP_QUOTAS_USER_{name}"), value)
        });
    let mut daemon = with_admin(&setup);
    let worker = Caller::new(&daemon, "good", "worker");
    let quiet = worker.works(&daemon, |rounds| rounds < ROUNDS_MIN);
    let (over, attacks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let worst = Mutex::new(Watched { memory_kb: 0, free_bytes: u64::MAX });
    let loaded = std::thread::scope(|scope| {
        for number in 0..ATTACKERS {
            let (daemon, over, attacks) = (&daemon, &over, &attacks);
            scope.spawn(move || {
                let attacker = Attacker::new(daemon, number as u64);
                while !over.load(Ordering::Relaxed) {
                    attacker.attacks(daemon);
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (working, worked) = mpsc::channel::<()>();
        let (daemon, worst) = (&daemon, &worst);
        scope.spawn(move || {
            while worked.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
                worst.lock().expect("no panic").look(daemon);
            }
        });
        let began = Instant::now();
        let loaded = worker.works(daemon, |rounds| rounds < ROUNDS_MIN || began.elapsed() < time);
        drop(working);
        over.store(true, Ordering::Relaxed);
        loaded
    });
    let worst = worst.into_inner().expect("no panic");
    let attacks = attacks.into_inner();
    eprintln!("quiet {quiet:?}, under {attacks} attacks {loaded:?}, {worst:?}");
    assert!(attacks >= ATTACKERS, "there were only {attacks} attacks");
    let bound = |quiet: Duration| quiet.max(QUIET_MIN) * SLOWER_MAX;
    assert!(loaded.create <= bound(quiet.create), "creates: {quiet:?} became {loaded:?}");
    assert!(loaded.exec <= bound(quiet.exec), "execs: {quiet:?} became {loaded:?}");
    assert!(worst.memory_kb <= MEMORY_MAX_KB, "{worst:?}");
    assert!(worst.free_bytes >= DISK_RESERVE_BYTES, "{worst:?}");
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
    daemon.start_again(&setup);
    for id in daemon.ids() {
        daemon.destroy(&id);
    }
    daemon.assert_no_leaks();
}

/// The worst that was seen.
#[derive(Debug)]
struct Watched {
    memory_kb: u64,
    free_bytes: u64,
}

impl Watched {
    fn look(&mut self, daemon: &Daemon) {
        let status =
            fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("a size");
        let kb = line.trim().trim_end_matches(" kB").parse().expect("a number");
        let disk = rustix::fs::statvfs(daemon.data_dir()).expect("the data directory");
        self.memory_kb = self.memory_kb.max(kb);
        self.free_bytes = self.free_bytes.min(disk.f_bavail * disk.f_frsize);
    }
}

/// 99 of 100 answers took at most this.
#[derive(Clone, Copy, Debug)]
struct Pace {
    create: Duration,
    exec: Duration,
}

/// A caller with a key.
struct Caller {
    credential: String,
}

impl Caller {
    fn new(daemon: &Daemon, organization: &str, user: &str) -> Self {
        let made = create_key(&daemon.data_dir(), organization, user, &[]);
        Self { credential: format!("Bearer {}", key_of(&made)) }
    }

    fn ask(
        &self,
        daemon: &Daemon,
        method: &str,
        path: &str,
        body: &Value,
    ) -> io::Result<(u16, Value)> {
        let headers = [("authorization", self.credential.as_str())];
        daemon.request_with(&headers, method, &format!("/api/v1{path}"), body)
    }

    /// Creates, uses and destroys sandboxes as long as requested, and expects everything to succeed.
    fn works(&self, daemon: &Daemon, mut go_on: impl FnMut(usize) -> bool) -> Pace {
        let (mut creates, mut execs) = (Vec::new(), Vec::new());
        while go_on(creates.len()) {
            let timed = |method: &str, path: &str, body: &Value| {
                let began = Instant::now();
                let answer = self.ask(daemon, method, path, body).expect("the daemon answers");
                (began.elapsed(), answer)
            };
            let (took, (status, view)) = timed("POST", "/sandboxes", &json!({}));
            assert_eq!(status, 201, "{view}");
            creates.push(took);
            let path = format!("/sandboxes/{}", view["id"].as_str().expect("an id"));
            let body = json!({ "command": "echo $((6 * 7))" });
            let (took, (status, answer)) = timed("POST", &format!("{path}/execs"), &body);
            assert_eq!((status, &answer["stdout"]), (200, &json!("42\n")), "{answer}");
            execs.push(took);
            let (_, (status, answer)) = timed("DELETE", &path, &Value::Null);
            assert_eq!(status, 204, "{answer}");
        }
        Pace { create: nearly_all(creates), exec: nearly_all(execs) }
    }
}

fn nearly_all(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99).div_ceil(100).saturating_sub(1)]
}

/// One of the attacking tenant's connections. All have one owner.
struct Attacker {
    caller: Caller,
    random: AtomicUsize,
    sandbox: Mutex<Option<String>>,
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
    fn new(daemon: &Daemon, seed: u64) -> Self {
        let caller = Caller::new(daemon, "bad", "attacker");
        let random = AtomicUsize::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize | 1);
        Self { caller, random, sandbox: Mutex::new(None) }
    }

    /// A number below `end`, from a xorshift generator.
    fn below(&self, end: usize) -> usize {
        let mut word = self.random.load(Ordering::Relaxed);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random.store(word, Ordering::Relaxed);
        word % end
    }

    fn ask(&self, daemon: &Daemon, method: &str, path: &str, body: &Value) -> Option<Value> {
        // The daemon may close the connection of somebody who asks for too much.
        let (status, answer) = self.caller.ask(daemon, method, path, body).ok()?;
        assert!(status != 500, "{method} {path} {body}: {answer}");
        (status < 300).then_some(answer)
    }

    /// Its sandbox: a new one now and then, and whenever the last one is gone.
    fn sandbox(&self, daemon: &Daemon) -> Option<String> {
        let mut kept = self.sandbox.lock().expect("no panic");
        if let Some(id) = kept.take_if(|_| self.below(8) == 0) {
            self.ask(daemon, "DELETE", &format!("/sandboxes/{id}"), &Value::Null);
        }
        if kept.is_none() {
            let spec = json!({ "resources": { "cpus": 0.2, "memory_mb": 128, "disk_mb": 256 } });
            let view = self.ask(daemon, "POST", "/sandboxes", &spec)?;
            *kept = view["id"].as_str().map(str::to_owned);
        }
        kept.clone()
    }

    fn attacks(&self, daemon: &Daemon) {
        let Some(id) = self.sandbox(daemon) else { return };
        let path = format!("/sandboxes/{id}");
        let address = daemon.address();
        match self.below(8) {
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

    fn request(&self, method: &str, target: &str, length: usize, body: &str) -> String {
        let credential = &self.caller.credential;
        format!(
            "{method} {target} HTTP/1.1\r\nhost: localhost\r\nauthorization: {credential}\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    }

    /// Asks on so many connections at once, reads almost nothing of the answers, and leaves.
    fn holds(&self, address: SocketAddr, connections: usize, say: impl Fn(usize) -> String) {
        let held: Vec<TcpStream> = (0..connections)
            .filter_map(|number| {
                // Whoever has too many is turned away.
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
