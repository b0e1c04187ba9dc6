//! Files made to keep the host busy: endless, bottomless, or with leases.

use std::collections::BTreeMap;

use sandkeep_core::limits;
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::support::{Daemon, Ground, Patience, Raw, binary, until};
use crate::{on_btrfs_and_local, on_each_storage};

on_each_storage!(a_file_without_end_keeps_nobody_waiting);
on_btrfs_and_local!(
    // Not on zfs-fuse, which can lock itself up for good when renames race with look-ups.
    a_tree_without_bottom_that_comes_and_goes_does_not_end_the_daemon,
    readers_that_do_not_read_leave_the_daemon_to_the_others,
    a_lease_inside_does_not_hold_a_snapshot,
);
#[cfg(feature = "failpoints")]
on_btrfs_and_local!(
    a_revert_that_cannot_be_finished_is_given_up,
    a_revert_that_ends_every_daemon_is_given_up,
);

/// A file as large as the filesystem takes it, with a byte in it. Reading its holes would take years, or hours.
const ENDLESS: &str = "cd ~ && for size in 7E 1E 15T 1T; do truncate -s $size big 2>/dev/null && break; done \
                       && printf x | dd of=big conv=notrunc 2>/dev/null && stat -c %s big";
/// It holds something else in one place.
const CHANGED: &str = "cd ~ && printf y | dd of=big bs=1 seek=1048576 conv=notrunc 2>/dev/null";

fn at(id: &str, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{rest}")
}

fn snapshot(daemon: &Daemon, id: &str) {
    daemon.expect(201, "POST", &at(id, "snapshots"), &json!({ "name": "first" }));
}

fn diff(daemon: &Daemon, id: &str) -> Vec<String> {
    let diff = daemon.expect(200, "GET", &at(id, "diff?from=first"), &Value::Null);
    let changes = diff["changes"].as_array().expect("changes").iter();
    changes.map(|change| format!("{} {}", change["kind"], change["path"])).collect()
}

fn revert(daemon: &Daemon, id: &str, path: &str) -> (u16, Value) {
    daemon.request("POST", &at(id, "revert"), &json!({ "snapshot": "first", "paths": [path] }))
}

/// Why reverts failed, as the sandbox's log says it.
fn failed_reverts(daemon: &Daemon, id: &str) -> Vec<String> {
    let log = daemon.expect(200, "GET", &at(id, "log"), &Value::Null);
    let items = log["items"].as_array().unwrap_or_else(|| panic!("{log:#}")).iter();
    let failed = items.filter(|entry| entry["event"] == "revert_failed");
    failed.map(|entry| entry["reason"].as_str().expect("a reason").to_owned()).collect()
}

/// A request whose answer nobody has read yet.
fn ask(daemon: &Daemon, key: Option<&str>, target: &str) -> Raw {
    let mut raw = Raw::open(daemon.address());
    let key = key.map(|key| format!("x-api-key: {key}\r\n")).unwrap_or_default();
    let address = daemon.address();
    raw.send(format!("GET {target} HTTP/1.1\r\nhost: {address}\r\n{key}\r\n").as_bytes());
    raw
}

fn a_file_without_end_keeps_nobody_waiting(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, ENDLESS).ok();
    snapshot(&daemon, &id);
    daemon.sh(&id, "touch ~/big").ok();
    // Not every implementation of zfs says where holes are.
    if let Ground::Pool(_) = ground {
        let (status, _) = daemon.request("GET", &at(&id, "diff?from=first"), &Value::Null);
        assert!(matches!(status, 200 | 413), "{status}");
    } else {
        assert_eq!(diff(&daemon, &id), [""; 0], "what is a hole in both is the same");
    }
    daemon.sh(&id, CHANGED).ok();
    if !matches!(ground, Ground::Pool(_)) {
        assert_eq!(diff(&daemon, &id), [r#""modified" "/home/user/big""#]);
    }
    let (status, refused) =
        daemon.request("GET", &at(&id, "diff?format=tar&from=first"), &Value::Null);
    assert_eq!((status, &refused["code"]), (413, &json!("files_too_large")), "{refused:#}");
    let (status, refused) = revert(&daemon, &id, "/home/user/big");
    assert_eq!((status, &refused["code"]), (413, &json!("files_too_large")), "{refused:#}");
    assert_eq!(failed_reverts(&daemon, &id).len(), 1);
    assert_eq!(daemon.sh(&id, "echo it goes on").ok(), "it goes on");
    for target in ["diff?from=first", "diff?format=tar", "diff?text=true"] {
        for _ in 0..3 {
            drop(ask(&daemon, None, &at(&id, target)));
        }
    }
    daemon.destroy(&id);
    assert!(daemon.stop().success(), "SIGTERM ends it");
}

#[cfg(feature = "failpoints")]
fn a_revert_that_cannot_be_finished_is_given_up(ground: &Ground) {
    use std::os::unix::process::ExitStatusExt as _;
    let mut daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, ENDLESS).ok();
    snapshot(&daemon, &id);
    daemon.sh(&id, CHANGED).ok();
    daemon.kill_9();
    daemon.start_again(&ground.setup().env("SANDKEEP_FAILPOINT", "revert.after_intent"));
    let wish = json!({ "snapshot": "first", "paths": ["/home/user/big"] });
    let answer = daemon.try_request("POST", &at(&id, "revert"), &wish);
    assert_eq!(daemon.wait_for_end().signal(), Some(9), "{answer:?}");
    daemon.start_again(&ground.setup());
    until("the revert is given up", Patience::Long, || !failed_reverts(&daemon, &id).is_empty());
    let reasons = failed_reverts(&daemon, &id);
    assert!(reasons[0].contains("bytes"), "{reasons:?}");
    assert_eq!(daemon.sh(&id, "echo it goes on").ok(), "it goes on");
    daemon.kill_9();
    daemon.start_again(&ground.setup());
    assert_eq!(failed_reverts(&daemon, &id), reasons, "nothing is left to begin with");
}

#[cfg(feature = "failpoints")]
fn a_revert_that_ends_every_daemon_is_given_up(ground: &Ground) {
    use std::os::unix::process::ExitStatusExt as _;
    let point = ("SANDKEEP_FAILPOINT", "revert.after_intent");
    let mut daemon = Daemon::start_with(&ground.setup().env(point.0, point.1));
    let id = daemon.create();
    snapshot(&daemon, &id);
    daemon.sh(&id, "mkdir ~/dir").ok();
    let wish = json!({ "snapshot": "first", "paths": ["/home/user/dir"] });
    let answer = daemon.try_request("POST", &at(&id, "revert"), &wish);
    assert_eq!(daemon.wait_for_end().signal(), Some(9), "{answer:?}");
    for _ in 1..limits::REVERT_ATTEMPTS_MAX {
        let mut next = binary();
        next.args(["serve", "--storage", ground.name(), "--data-dir"]).arg(daemon.data_dir());
        next.env("SANDKEEP_LISTEN", "127.0.0.1:0").env("SANDKEEP_STORAGE_SIZE_MB", "512");
        let ended = next.env(point.0, point.1).output().expect("it can be started");
        assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
    }
    daemon.start_again(&ground.setup());
    until("the revert is given up", Patience::Long, || !failed_reverts(&daemon, &id).is_empty());
    let reasons = failed_reverts(&daemon, &id);
    assert!(reasons[0].contains("daemons"), "{reasons:?}");
    let (status, answer) = revert(&daemon, &id, "/home/user/dir");
    assert_eq!((status, &answer["reverted"]), (200, &json!(["/home/user/dir"])), "asked again");
    daemon.destroy(&id);
}

/// Directories in directories, made from within: no path is longer than the kernel takes it.
const BOTTOMLESS: &str = "cd ~ && way=$(printf 'd/%.0s' $(seq 1000)) && mkdir deep && for n in $(seq $DEPTH); do \
                          mkdir -p new/$way && mv deep new/$way && mv new deep || exit 1; done";

fn a_tree_without_bottom_that_comes_and_goes_does_not_end_the_daemon(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    snapshot(&daemon, &id);
    // In thousands. To remove directories takes long on some disks, and the end of this test does.
    let depth = if let Ground::Btrfs = ground { "40" } else { "10" };
    let env = json!({ "DEPTH": depth });
    let make = json!({ "command": BOTTOMLESS, "env": env, "timeout_ms": 300_000 });
    daemon.exec(&id, &make).ok();
    let swap = "cd ~ && exec python3 -c 'import os\nwhile True:\n for a, b in ((\"deep\", \"victim/deep\"), \
                (\"victim/deep\", \"deep\")):\n  try: os.rename(a, b)\n  except OSError: pass'";
    let swapping = daemon.begin(&id, &json!({ "command": swap, "timeout_ms": 600_000 }));
    let pid = daemon.pid();
    let mut answers: BTreeMap<u16, usize> = BTreeMap::new();
    for _ in 0..30 {
        daemon.sh(&id, "mkdir -p ~/victim").ok();
        let (status, answer) = revert(&daemon, &id, "/home/user/victim");
        // As it was found: without the deep tree, or with it, which is more than is compared.
        assert!(matches!(status, 200 | 429), "{status} {answer:#}");
        *answers.entry(status).or_default() += 1;
    }
    assert_eq!(daemon.pid(), pid, "it is the same daemon: {answers:?}");
    assert_eq!(daemon.exec_view(&id, &swapping)["status"], "running");
    daemon.destroy(&id);
    assert!(daemon.stop().success());
}

fn readers_that_do_not_read_leave_the_daemon_to_the_others(ground: &Ground) {
    const READERS: usize = 530;
    let mut daemon = with_admin(&ground.setup());
    let greedy = key_of(&create_key(&daemon.data_dir(), "one", "greedy", &[])).to_owned();
    let modest = key_of(&create_key(&daemon.data_dir(), "two", "modest", &[])).to_owned();
    daemon.use_key(&greedy);
    let id = daemon.create();
    // More than all buffers on the way hold.
    daemon.sh(&id, "head -c 40000000 /dev/urandom > ~/large").ok();
    snapshot(&daemon, &id);
    let target = at(&id, "diff?format=tar&from=base&to=first");
    let mut readers: Vec<Raw> =
        (0..READERS).map(|_| ask(&daemon, Some(&greedy), &target)).collect();
    let mut answered: BTreeMap<u16, usize> = BTreeMap::new();
    for reader in &mut readers {
        let head = reader.head();
        assert_eq!(head.status == 429, head.header("retry-after").is_some(), "{head:?}");
        *answered.entry(head.status).or_default() += 1;
    }
    let turns = limits::TREE_WORK_AT_ONCE_MAX / 2;
    let expected = BTreeMap::from([(200, turns), (429, READERS - turns)]);
    assert_eq!(answered, expected);
    assert_eq!(daemon.sh(&id, "echo also the greedy one").ok(), "also the greedy one");
    daemon.use_key(&modest);
    let other = daemon.create();
    assert_eq!(daemon.sh(&other, "echo here").ok(), "here");
    snapshot(&daemon, &other);
    daemon.sh(&other, "echo new > ~/new").ok();
    assert_eq!(diff(&daemon, &other), [r#""added" "/home/user/new""#]);
    daemon.destroy(&other);
    daemon.use_key(&greedy);
    daemon.destroy(&id);
    drop(readers);
    until("the turns are given back", Patience::Long, || {
        let id = daemon.create();
        let (status, _) = daemon.request("GET", &at(&id, "diff"), &Value::Null);
        daemon.destroy(&id);
        status == 200
    });
}

/// Takes leases on some files, and keeps them.
const LEASES: &str = "import fcntl, os, signal, time\nsignal.signal(signal.SIGIO, signal.SIG_IGN)\nheld = []\n\
                      for n in range(20):\n f = os.open(os.path.expanduser(f'~/held{n}'), os.O_RDWR | os.O_CREAT)\n \
                      fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n held.append(f)\n\
                      open(os.path.expanduser('~/ready'), 'w').close()\ntime.sleep(100000)";

fn a_lease_inside_does_not_hold_a_snapshot(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    let script = json!({ "argv": ["/usr/bin/python3", "-c", LEASES], "timeout_ms": 600_000 });
    let holder = daemon.begin(&id, &script);
    until("the leases are held", Patience::Short, || {
        daemon.sh(&id, "test -e ~/ready && echo yes || echo no").ok() == "yes"
    });
    let began = std::time::Instant::now();
    let (status, answer) =
        daemon.request("POST", &at(&id, "snapshots"), &json!({ "name": "first" }));
    // 20 leases take the kernel 45 s each to break. Where nobody has to open the files, nothing is in the way.
    assert!(began.elapsed().as_secs() < 40, "it waited for a lease");
    if status != 201 {
        let detail = answer["detail"].as_str().expect("a detail");
        assert!(detail.contains("lease"), "{answer:#}");
    }
    assert_eq!(daemon.exec_view(&id, &holder)["status"], "running");
    assert_eq!(daemon.sh(&id, "echo it goes on").ok(), "it goes on", "nothing stays frozen");
    daemon.destroy(&id);
}
