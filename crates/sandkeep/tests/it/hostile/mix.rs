//! One tenant does everything that is known to hurt, concurrently and in random mixes, while another keeps working. The
//! daemon's memory and the disk are monitored all the time. How much slower the other one's answers become is reported;
//! that they come is asserted.

mod attacker;
mod doors;

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::requests::own_memory;
use crate::keys::{create_key, key_of, with_admin};
use crate::network::upstream::{Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, obstacle};
use attacker::Attacker;

/// An answer that takes longer than this never came, however busy the machine is.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// An answer that takes less shows how the machine shares its processors, and not what one tenant does to another.
const QUIET_MIN: Duration = Duration::from_millis(40);
const ROUNDS_MIN: usize = 40;
/// The daemon's memory limit during the attack, including everything that it holds for others.
const MEMORY_MAX_BYTES: u64 = 600 << 20;
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
    // A server that sandboxes may reach, and a name that no server has.
    let (world, server) = (World::new(), Upstream::http());
    // Typical settings of an operator with tenants.
    let setup = [("SANDBOXES", "8"), ("CPUS", "2"), ("MEMORY_MB", "1024"), ("DISK_MB", "2048")]
        .into_iter()
        .chain([("TEMPLATES", "4"), ("TEMPLATE_MB", "64")])
        .fold(world.setup.clone(), |setup, (name, value)| {
            setup.env(&format!("SANDKEEP_QUOTAS_USER_{name}"), value)
        });
    let mut daemon = with_admin(&setup);
    let worker = Caller::new(&daemon, "good", "worker");
    let quiet = worker.works(&daemon, |rounds| rounds < ROUNDS_MIN);
    let (over, attacks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let worst = Mutex::new(Watched { memory_bytes: 0, free_bytes: u64::MAX });
    let entry = server.entry("a.test");
    let loaded = std::thread::scope(|scope| {
        for number in 0..ATTACKERS {
            let (daemon, over, attacks, entry) = (&daemon, &over, &attacks, &entry);
            scope.spawn(move || {
                let attacker = Attacker::new(daemon, number as u64, entry);
                while !over.load(Ordering::Relaxed) {
                    attacker.attacks(daemon);
                    attacks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (working, worked) = mpsc::channel::<()>();
        let (daemon, over, worst) = (&daemon, &over, &worst);
        scope.spawn(move || {
            while worked.recv_timeout(LOOK_AGAIN) == Err(RecvTimeoutError::Timeout) {
                worst.lock().expect("no panic").look(daemon);
            }
        });
        // Also if it panics: otherwise the attackers would go on for ever.
        let _ends = Ends(over);
        let began = Instant::now();
        let loaded = worker.works(daemon, |rounds| rounds < ROUNDS_MIN || began.elapsed() < time);
        drop(working);
        loaded
    });
    let worst = worst.into_inner().expect("no panic");
    let attacks = attacks.into_inner();
    let times = |loaded: Duration, quiet: Duration| {
        loaded.as_secs_f64() / quiet.max(QUIET_MIN).as_secs_f64()
    };
    eprintln!(
        "p99 quiet {quiet:?}, under {attacks} attacks {loaded:?}: creates {:.1}, execs {:.1} times as long; {worst:?}",
        times(loaded.create, quiet.create),
        times(loaded.exec, quiet.exec)
    );
    assert!(attacks >= ATTACKERS, "there were only {attacks} attacks");
    assert!(loaded.create.max(loaded.exec) <= ANSWER_MAX, "{quiet:?} became {loaded:?}");
    assert!(worst.memory_bytes <= MEMORY_MAX_BYTES, "{worst:?}");
    assert!(worst.free_bytes >= DISK_RESERVE_BYTES, "{worst:?}");
    // With everything open that can be: `stop` waits no longer than the daemon may take.
    let attacker = Attacker::new(&daemon, 99, &entry);
    let open = attacker.leaves_all_open(&daemon);
    let ended = daemon.stop();
    assert!(ended.success(), "{ended}");
    drop(open);
    daemon.start_again(&setup);
    for id in daemon.ids() {
        daemon.destroy(&id);
    }
    daemon.assert_no_leaks();
}

/// Sets it when it is dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The worst that was seen.
#[derive(Debug)]
struct Watched {
    memory_bytes: u64,
    free_bytes: u64,
}

impl Watched {
    fn look(&mut self, daemon: &Daemon) {
        let disk = rustix::fs::statvfs(daemon.data_dir()).expect("the data directory");
        self.memory_bytes = self.memory_bytes.max(own_memory(daemon));
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
pub(super) struct Caller {
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
