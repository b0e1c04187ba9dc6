//! Unauthenticated connections: however many there are, authenticated clients get in.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};
use serde_json::Value;

use crate::keys::with_admin;
use crate::support::{Daemon, Patience, Raw, Setup, obstacle, until};
use crate::{daemon, skip_if};

/// Keeps this many silent connections open: a closed one is opened again. Reports when it has them, and when the first
/// was closed.
const CROWD: &str = "import resource, selectors, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
poll = selectors.DefaultSelector()
def come():
    s = socket.create_connection((host, port))
    poll.register(s, selectors.EVENT_READ)
for _ in range(count): come()
print('here', flush=True)
told = False
while True:
    for key, _ in poll.select():
        poll.unregister(key.fileobj)
        key.fileobj.close()
        if not told: print('cut', flush=True)
        told = True
        come()
";

/// Ends with the test.
struct Crowd {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Crowd {
    fn of(daemon: &Daemon, count: usize, uid: u32) -> Self {
        let (host, port) = (daemon.address().ip().to_string(), daemon.address().port().to_string());
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "python3", "-c", CROWD]);
        command.args([&host, &port, &count.to_string()]).uid(uid).current_dir("/");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 runs");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut crowd = Self { child, lines };
        crowd.says("here");
        crowd
    }

    fn says(&mut self, what: &str) {
        assert_eq!(self.lines.next().expect("it lives").expect("text"), what);
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many sockets a daemon has.
fn sockets(daemon: &Daemon) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("it runs");
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
}

/// A user other than the one who runs the daemon.
const STRANGER: u32 = 65_534;

fn ready(raw: &mut Raw, lines: &str) -> u16 {
    raw.send(format!("GET /api/v1/runtimes HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").as_bytes());
    raw.reply("GET").status
}

#[test]
fn another_users_crowd_holds_few_places_and_takes_none_of_the_owners() {
    let daemon = daemon!();
    let before = sockets(&daemon);
    // It came first, and has not said anything yet.
    let mut owner = Raw::open(daemon.address());
    let mut crowd = Crowd::of(&daemon, 400, STRANGER);
    crowd.says("cut");
    until("few of the crowd are left", Patience::Short, || sockets(&daemon) < before + 100);
    assert_eq!(ready(&mut owner, ""), 200, "the owner, who came first");
    for _ in 0..20 {
        assert_eq!(daemon.request("GET", "/api/v1/sandboxes", &Value::Null).0, 200);
    }
}

#[test]
fn whoever_has_a_key_gets_in_and_stays_whatever_crowd_there_is() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let made = crate::keys::create_key(&daemon.data_dir(), "ops", "ann", &[]);
    let bearer = format!("Authorization: Bearer {}\r\n", crate::keys::key_of(&made));
    let mut first = Raw::open(daemon.address());
    assert_eq!(ready(&mut first, &bearer), 200);
    let before = sockets(&daemon);
    let mut crowd = Crowd::of(&daemon, 1500, STRANGER);
    crowd.says("cut");
    until("the crowd is within its limit", Patience::Short, || sockets(&daemon) < before + 1100);
    assert_eq!(ready(&mut first, &bearer), 200, "who was there before");
    for _ in 0..20 {
        assert_eq!(ready(&mut Raw::open(daemon.address()), &bearer), 200, "who comes now");
    }
}

/// Half of a daemon's descriptors are never used for connections.
#[test]
fn a_daemon_with_few_descriptors_serves_beside_a_crowd() {
    skip_if!(obstacle());
    // The daemon inherits it; every test is a process of its own.
    let few = Rlimit { current: Some(400), maximum: Some(400) };
    setrlimit(Resource::Nofile, few).expect("fewer than before");
    let daemon = Daemon::start();
    let before = sockets(&daemon);
    let _crowds: Vec<Crowd> =
        (0..5).map(|number| Crowd::of(&daemon, 100, STRANGER - number)).collect();
    until("half of them are left", Patience::Short, || sockets(&daemon) <= before + 200);
    for _ in 0..5 {
        let id = daemon.create();
        assert_eq!(daemon.sh(&id, "echo served").ok(), "served");
        daemon.destroy(&id);
    }
}
