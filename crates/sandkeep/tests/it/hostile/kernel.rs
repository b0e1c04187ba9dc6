//! Kernel resources that exist once per machine, or once per user, exhausted by one sandbox.

use std::process::Command;

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, bytes, joined, until};

/// Runtimes whose sandboxes are served by the host's kernel with ids of their own, if they work here.
fn runtimes(daemon: &Daemon) -> Vec<String> {
    let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let listed = listed["runtimes"].as_array().expect("runtimes").iter();
    let usable = listed.filter(|runtime| runtime["usable"] == true);
    let names = usable.filter_map(|runtime| runtime["name"].as_str());
    let ours = names.filter(|name| ["native", "bwrap", "crun", "runc"].contains(name));
    ours.map(str::to_owned).collect()
}

fn python(daemon: &Daemon, id: &str, script: &str) -> String {
    daemon.exec(id, &json!({ "argv": ["/usr/bin/python3", "-c", script] })).ok()
}

/// Takes up to `most` of everything that is counted per user, reports how many it got, and holds them.
const TAKE: &str = "
import ctypes, os, sys
c = ctypes.CDLL(None, use_errno=True)
def take(most, one):
    for got in range(most):
        if one(got) < 0: return got
    return most
most = int(sys.argv[1])
watchers = take(min(most, 1000), lambda _: c.inotify_init1(0))
queues = take(min(most, 1000), lambda n: c.mq_open(b'/q%d' % n, os.O_CREAT | os.O_RDWR, 0o600, None))
timers = take(most, lambda _: c.timer_create(1, None, ctypes.byref(ctypes.c_int())))
print(watchers, queues, timers, flush=True)
if most > 1: sys.stdin.read()
";

#[test]
fn what_the_kernel_counts_for_each_user_one_sandbox_cannot_take_from_another() {
    let daemon = daemon!();
    for runtime in runtimes(&daemon) {
        let create = || daemon.create_with(&json!({ "runtime": runtime }));
        let (greedy, other) = (create(), create());
        let argv = |most: &str| json!(["/usr/bin/python3", "-c", TAKE, most]);
        // With an open stdin, so that it holds on to all of it.
        let body = json!({ "argv": argv("200000"), "stdin_open": true });
        let exec = daemon.begin(&greedy, &body);
        let mut said = daemon.output(&greedy, &exec, "follow=true");
        let said = said.find(|event| event["type"] != "started").expect("it says something");
        let taken =
            String::from_utf8(joined(std::slice::from_ref(&said), "stdout", 0)).expect("text");
        let numbers = taken.split_whitespace().map(str::parse);
        let taken: Vec<u64> = numbers.collect::<Result<_, _>>().unwrap_or_default();
        assert_eq!(taken.len(), 3, "{runtime}: {said:#}");
        assert!(taken.iter().all(|count| *count > 0), "{runtime}: {taken:?}");
        let left = daemon.exec(&other, &json!({ "argv": argv("1") })).ok();
        assert_eq!(left, "1 1 1", "{runtime}: nothing is left for another sandbox: {taken:?}");
        rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC)
            .unwrap_or_else(|error| panic!("{runtime}: nothing is left for the host: {error}"));
        assert!(taken[0] <= 64 && taken[1] < 1000 && taken[2] < 200_000, "{runtime}: {taken:?}");
        for id in [greedy, other] {
            daemon.destroy(&id);
        }
    }
}

/// By the template that shows the host's own files.
#[test]
fn what_others_do_with_shared_files_can_be_neither_watched_nor_locked_out() {
    let daemon = daemon!();
    for runtime in runtimes(&daemon) {
        let create = || daemon.create_with(&json!({ "runtime": runtime }));
        let (curious, other) = (create(), create());
        let script = "
import ctypes, fcntl, os, sys
c = ctypes.CDLL(None)
watcher = c.inotify_init1(os.O_NONBLOCK)
assert c.inotify_add_watch(watcher, b'/usr/bin', 0xFFF) >= 0
lock = open('/usr/bin/env')
fcntl.flock(lock, fcntl.LOCK_EX)
def seen():
    try: return len(os.read(watcher, 65536)) > 0
    except BlockingIOError: return False
print(seen(), flush=True)
sys.stdin.readline()
print(seen(), flush=True)
open('/usr/bin/env').close()
print(seen(), flush=True)
";
        let argv = json!(["/usr/bin/python3", "-c", script]);
        let exec = daemon.begin(&curious, &json!({ "argv": argv, "stdin_open": true }));
        let events = daemon.output(&curious, &exec, "follow=true");
        let mut said = events.filter(|event| event["type"] == "stdout");
        let first = bytes(&said.next().expect("it says something"), "data");
        assert_eq!(first, b"True\n", "{runtime}: it sees what it opens itself");
        let command = ["--nonblock", "/usr/bin/env", "/usr/bin/env", "true"];
        let argv = ["/usr/bin/flock"].iter().chain(&command).collect::<Vec<_>>();
        daemon.exec(&other, &json!({ "argv": argv })).ok();
        let on_host = Command::new("flock").args(command).status().expect("flock runs");
        assert!(on_host.success(), "{runtime}: the host is locked out");
        let stdin = format!("{}/stdin?close=true", daemon.exec_path(&curious, &exec));
        assert_eq!(daemon.send_bytes(&stdin, b"\n".to_vec()).0, 204);
        let rest: Vec<u8> = said.flat_map(|event| bytes(&event, "data")).collect();
        let rest = String::from_utf8_lossy(&rest);
        assert_eq!(rest, "False\nTrue\n", "{runtime}: it sees what others run");
        for id in [curious, other] {
            daemon.destroy(&id);
        }
    }
}

/// As many bytes as `count` connections hold that nobody reads from, accepted or not.
const UNREAD: &str = "
import socket, sys
def unread(count, accept):
    held, total = [], 0
    for at in range(count):
        if at % 64 == 0:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 26)
            listener.bind(('127.0.0.1', 0))
            listener.listen(128)
            held.append(listener)
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 26)
        one.connect(listener.getsockname())
        held.append(one)
        if accept: held.append(listener.accept()[0])
        one.setblocking(False)
        try:
            while total < 1 << 30: total += one.send(b'x' * 65536)
        except BlockingIOError: pass
    return total >> 20
print(unread(270, False), unread(270, True))
";

#[test]
fn unread_tcp_data_stays_within_the_memory_of_its_sandbox() {
    let daemon = daemon!();
    for runtime in runtimes(&daemon) {
        let small = json!({ "runtime": runtime, "resources": { "memory_mb": 128 } });
        let id = daemon.create_with(&small);
        let said = python(&daemon, &id, UNREAD);
        let mib: Vec<u64> = said.split(' ').map(|n| n.parse().expect("a number")).collect();
        assert!(mib.iter().all(|mib| *mib <= 128), "{runtime}: {mib:?} MiB");
        daemon.destroy(&id);
    }
}

#[test]
fn closed_connections_of_a_sandbox_are_bounded() {
    let daemon = daemon!();
    for runtime in runtimes(&daemon) {
        let id = daemon.create_with(&json!({ "runtime": runtime }));
        let script = "
import socket
listener = socket.socket()
listener.bind(('127.0.0.1', 0))
listener.listen(16)
for _ in range(6000):
    one = socket.create_connection(listener.getsockname())
    other = listener.accept()[0]
    one.close()
    other.close()
words = open('/proc/net/sockstat').read().split()
print(words[words.index('tw') + 1])
";
        let left: u64 = python(&daemon, &id, script).parse().expect("a number");
        assert!((1000..=4096).contains(&left), "{runtime}: {left} closed connections are kept");
        daemon.destroy(&id);
    }
}

/// Programs can do without the features that the filter removes, and hardly notice.
#[test]
fn programs_go_on_where_the_filter_says_no() {
    let daemon = daemon!();
    for runtime in runtimes(&daemon) {
        let id = daemon.create_with(&json!({ "runtime": runtime }));
        let script = "
import ctypes, errno, socket
def why(*kind):
    try: socket.socket(*kind).close()
    except OSError as error: return errno.errorcode[error.errno]
one = socket.socket()
one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
print(one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR), end=' ')
print(why(2, 1, 6), why(10, 2, 17), why(16, 3, 0), why(16, 3, 4), end=' ')
print(why(2, 1, 262), why(16, 3, 15), why(40, 1, 0), end=' ')
c = ctypes.CDLL(None, use_errno=True)
c.syscall(206, 1, ctypes.byref(ctypes.c_long()))
print(errno.errorcode[ctypes.get_errno()])
";
        let expected = "1 None None None None EPROTONOSUPPORT EPROTONOSUPPORT EAFNOSUPPORT ENOSYS";
        assert_eq!(python(&daemon, &id, script), expected, "{runtime}");
        daemon.destroy(&id);
    }
}

/// Fills connections that nobody accepts, which count to no control group, for as long as it lives.
const NEVER_ACCEPTED: &str = "
import os, resource, socket
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
# One process has too few descriptors for so much.
for _ in range(3): os.fork()
held = []
while True:
    listener = socket.socket()
    listener.bind(('127.0.0.1', 0))
    listener.listen(400)
    held.append(listener)
    for _ in range(300):
        one = socket.create_connection(listener.getsockname())
        one.setblocking(False)
        held.append(one)
        try:
            while True: one.send(b'x' * 65536)
        except BlockingIOError: pass
";

#[test]
fn who_takes_the_hosts_memory_for_tcp_is_ended_and_nobody_else() {
    let daemon = daemon!();
    let spec = json!({ "runtime": "native", "resources": { "memory_mb": 256 } });
    let (greedy, quiet) = (daemon.create_with(&spec), daemon.create_with(&spec));
    let argv = json!(["/usr/bin/python3", "-c", NEVER_ACCEPTED]);
    daemon.begin(&greedy, &json!({ "argv": argv }));
    until("it is ended", Patience::Long, || daemon.state(&greedy) == "failed");
    let view = daemon.get(&greedy);
    assert!(view["reason"].as_str().is_some_and(|why| why.contains("TCP connections")), "{view:#}");
    assert_eq!(daemon.sh(&quiet, "echo alive").ok(), "alive");
    until("the memory is free", Patience::Long, || {
        let shown = std::fs::read_to_string("/proc/net/sockstat").expect("the kernel tells");
        let line = shown.lines().find(|line| line.starts_with("TCP:")).expect("TCP");
        let pages = line.split(' ').next_back().and_then(|n| n.parse::<u64>().ok());
        pages.expect("a number") < 100_000
    });
    daemon.verb(&greedy, "start");
    assert_eq!(daemon.sh(&greedy, "echo again").ok(), "again");
}
