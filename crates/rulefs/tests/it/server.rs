//! The server as a process: starting, finding again, changes from outside, its end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use sandkeep_core::rules::Permission::{Read as Readable, Write as Writable};
use sandkeep_rulefs::{Mode, Server};

use crate::ground::{Ground, both, errno, everything, rules, wait_until};
use crate::tests;

tests!(server:
    a_server_is_found_again_after_its_daemon,
    no_server_is_found_where_none_runs,
    changes_from_outside_are_seen_once_they_are_told,
    a_killed_server_is_replaced_and_open_files_go_on,
    readers_notice_nothing_of_servers_that_are_killed,
    rules_are_kept_across_a_takeover,
    a_server_that_is_killed_again_and_again_is_given_up,
    a_long_life_does_not_make_the_journal_long,
    a_stopped_server_leaves_no_process_waiting,
    a_killed_keeper_leaves_no_process_waiting,
    the_server_sees_nothing_but_its_tree_and_keeps_few_rights,
    an_idle_server_is_small,
    known_files_cost_little,
);

fn status(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default()
}

/// The processes whose first argument is that of servers, children of `parent`.
fn children(parent: u32) -> Vec<i32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let children = fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_default().trim_start_matches(':').trim().to_owned()
}

/// The pid behind a pidfd.
fn pid_of(fd: impl AsFd) -> u32 {
    use std::os::fd::AsRawFd;
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd())).unwrap();
    field(&info, "Pid").parse().unwrap()
}

fn a_server_is_found_again_after_its_daemon() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a"]);
        let home = ground.home();
        let found = ground.runtime.block_on(Server::reconnect(home.as_fd(), "rulefs")).unwrap();
        let found = found.expect("it runs");
        assert_eq!(pid_of(found.pidfd()), pid_of(ground.server.pidfd()));
        ground.runtime.block_on(found.replace_rules(&rules(&[("a", Readable, 0)]))).unwrap();
        assert_eq!(errno(File::create(ground.at("a"))), Errno::ACCESS);
        let stats = ground.runtime.block_on(found.stats()).unwrap();
        assert!(stats.requests > 0 && stats.nodes >= 2, "{stats:?}");
        drop(found);
        assert_eq!(fs::read(ground.at("a")).unwrap(), b"a");
    });
}

fn no_server_is_found_where_none_runs() {
    let ground = Ground::new(Mode::ZeroMessage, &everything(), &["a"]);
    let home = ground.home();
    let missing = ground.runtime.block_on(Server::reconnect(home.as_fd(), "other")).unwrap();
    assert!(missing.is_none());
    ground.runtime.block_on(ground.server.stop()).unwrap();
    let stopped = ground.runtime.block_on(Server::reconnect(home.as_fd(), "rulefs")).unwrap();
    assert!(stopped.is_none());
    ground.runtime.block_on(ground.server.stop()).expect("stopping twice is fine");
}

fn changes_from_outside_are_seen_once_they_are_told() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["d/a", "d/b"]);
        let tell = |dir: &str, name: &str| {
            let told = ground.server.invalidate(Path::new(dir), OsStr::new(name));
            ground.runtime.block_on(told).unwrap();
        };
        assert_eq!(ground.list("d"), ["a", "b"]);
        assert_eq!(fs::read(ground.at("d/a")).unwrap(), b"d/a");
        assert_eq!(errno(File::open(ground.at("d/c"))), Errno::NOENT);
        fs::write(ground.below("d/a"), "longer than before").unwrap();
        tell("d", "a");
        assert_eq!(fs::read(ground.at("d/a")).unwrap(), b"longer than before");
        fs::write(ground.below("d/c"), "new").unwrap();
        tell("/d/", "c");
        assert_eq!(fs::read(ground.at("d/c")).unwrap(), b"new");
        fs::remove_file(ground.below("d/b")).unwrap();
        tell("d", "b");
        assert_eq!(ground.list("d"), ["a", "c"]);
        // A file that was replaced, as editors and uploads do it.
        fs::write(ground.below("tmp"), "replaced").unwrap();
        fs::rename(ground.below("tmp"), ground.below("d/a")).unwrap();
        tell("d", "a");
        assert_eq!(fs::read(ground.at("d/a")).unwrap(), b"replaced");
        // A directory that was missing.
        assert_eq!(errno(fs::metadata(ground.at("x/y"))), Errno::NOENT);
        fs::create_dir_all(ground.below("x/y/z")).unwrap();
        tell("x/y", "z");
        assert!(ground.at("x/y/z").is_dir());
        // And one that was moved while files in it were known.
        fs::rename(ground.below("d"), ground.below("e")).unwrap();
        tell("", "d");
        tell("", "e");
        assert_eq!(errno(fs::metadata(ground.at("d/a"))), Errno::NOENT);
        assert_eq!(fs::read(ground.at("e/a")).unwrap(), b"replaced");
    });
}

fn server_of(ground: &Ground) -> i32 {
    let keeper = pid_of(ground.server.pidfd());
    wait_until("there is a server", || children(keeper).len() == 1);
    children(keeper)[0]
}

/// Kills the server, and waits for the next one.
pub fn kill_server(ground: &Ground) {
    let old = server_of(ground);
    let takeovers = || {
        let stats = ground.runtime.block_on(ground.server.stats());
        stats.map(|stats| stats.takeovers)
    };
    let before = takeovers().unwrap();
    sandkeep_sys::pidfd::kill(sandkeep_sys::pidfd::open(old.cast_unsigned()).unwrap()).unwrap();
    wait_until("the mount was taken over", || takeovers().is_ok_and(|now| now > before));
    assert_ne!(server_of(ground), old);
}

fn a_killed_server_is_replaced_and_open_files_go_on() {
    both(|mode| {
        let files = ["a", "d/e/f", "d/g", "gone"];
        let ground = Ground::new(mode, &everything(), &files);
        let mut file = File::options().read(true).write(true).open(ground.at("d/e/f")).unwrap();
        let dir = crate::ground::directory(&ground.at("d"));
        let linked = ground.at("linked");
        fs::hard_link(ground.at("a"), &linked).unwrap();
        fs::rename(ground.at("d/g"), ground.at("d/h")).unwrap();
        kill_server(&ground);
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "d/e/f");
        file.write_all(b" and more").unwrap();
        file.sync_all().unwrap();
        assert_eq!(fs::read(ground.below("d/e/f")).unwrap(), b"d/e/f and more");
        let below =
            rustix::fs::openat(&dir, "h", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty());
        let mut renamed = String::new();
        File::from(below.unwrap()).read_to_string(&mut renamed).unwrap();
        assert_eq!(renamed, "d/g");
        assert_eq!(ground.list("d"), ["e", "h"]);
        assert_eq!(fs::read(linked).unwrap(), b"a");
        fs::write(ground.at("new"), "new").unwrap();
        fs::remove_file(ground.at("gone")).unwrap();
        assert_eq!(ground.list(""), ["a", "d", "linked", "new"]);
        // And once more, with what the second one knew.
        kill_server(&ground);
        file.write_all(b"!").unwrap();
        assert_eq!(fs::read(ground.below("d/e/f")).unwrap(), b"d/e/f and more!");
        assert_eq!(fs::read(ground.at("new")).unwrap(), b"new");
    });
}

fn readers_notice_nothing_of_servers_that_are_killed() {
    both(|mode| {
        let files: Vec<String> = (0..200).map(|n| format!("d{}/f{n}", n % 7)).collect();
        let ground =
            Ground::new(mode, &everything(), &files.iter().map(String::as_str).collect::<Vec<_>>());
        let stop = std::sync::atomic::AtomicBool::new(false);
        let rounds = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (stop, ground, files, rounds) = (&stop, &ground, &files, &rounds);
                scope.spawn(move || {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        for file in files {
                            assert_eq!(fs::read_to_string(ground.at(file)).unwrap(), *file);
                        }
                        let own = ground.at(&format!("own-{worker}"));
                        fs::write(&own, "own").unwrap();
                        assert_eq!(fs::read(&own).unwrap(), b"own");
                        rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..3 {
                kill_server(&ground);
                let seen = rounds.load(std::sync::atomic::Ordering::Relaxed);
                wait_until("the readers go on", || {
                    rounds.load(std::sync::atomic::Ordering::Relaxed) > seen + 6
                });
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

fn rules_are_kept_across_a_takeover() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a", "b", "c"]);
        assert_eq!(fs::read(ground.at("b")).unwrap(), b"b");
        ground.replace(&rules(&[("a", Readable, 0), ("c", Writable, 0)]));
        kill_server(&ground);
        assert_eq!(ground.list(""), ["a", "c"]);
        assert_eq!(errno(File::create(ground.at("a"))), Errno::ACCESS);
        assert_eq!(errno(File::open(ground.at("b"))), Errno::NOENT);
        fs::write(ground.at("c"), "written").unwrap();
        ground.replace(&rules(&[("b", Readable, 0)]));
        assert_eq!(ground.list(""), ["b"]);
    });
}

fn a_server_that_is_killed_again_and_again_is_given_up() {
    let ground = Ground::new(Mode::ZeroMessage, &everything(), &["a"]);
    let keeper = pid_of(ground.server.pidfd());
    wait_until("it is given up", || {
        for server in children(keeper) {
            let _ = sandkeep_sys::pidfd::open(server.cast_unsigned())
                .and_then(sandkeep_sys::pidfd::kill);
        }
        ground.server.has_ended()
    });
    assert_eq!(errno(fs::metadata(ground.at("b"))), Errno::NOTCONN);
}

fn a_long_life_does_not_make_the_journal_long() {
    let ground = Ground::new(Mode::ZeroMessage, &everything(), &[]);
    for round in 0..40 {
        for n in 0..500 {
            fs::write(ground.at(&format!("a-name-of-some-length-{round}-{n}")), "").unwrap();
        }
        for n in 0..500 {
            fs::remove_file(ground.at(&format!("a-name-of-some-length-{round}-{n}"))).unwrap();
        }
    }
    let keeper = pid_of(ground.server.pidfd());
    let sizes = fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let is_journal = fs::read_link(&path)
            .is_ok_and(|to| to.to_string_lossy().contains("memfd:sandkeep-rulefs"));
        is_journal.then(|| fs::metadata(path).unwrap().len())
    });
    let sizes: Vec<u64> = sizes.collect();
    assert_eq!(sizes.len(), 2);
    assert!(
        sizes.iter().sum::<u64>() < 2 * sandkeep_core::limits::RULEFS_JOURNAL_MIN_BYTES,
        "{sizes:?}"
    );
    kill_server(&ground);
    fs::write(ground.at("after"), "it").unwrap();
    assert_eq!(ground.list(""), ["after"]);
}

/// A process that reads a file again and again, and one that is inside a request most of the time.
fn busy(ground: &Ground) -> std::process::Child {
    let script = "while :; do ls -lR . ; echo x > f; rm f; done > /dev/null 2>&1 || true";
    Command::new("sh")
        .args(["-c", script])
        .current_dir(ground.root())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn ends_after(ground: &Ground, end: impl FnOnce()) {
    let mut busy = busy(ground);
    let before = ground.runtime.block_on(ground.server.stats()).unwrap().requests;
    wait_until("it works", || {
        ground.runtime.block_on(ground.server.stats()).unwrap().requests > before + 20
    });
    end();
    busy.kill().unwrap();
    // A process that waits for a server in vain could not be killed.
    wait_until("it is gone", || {
        let state = field(&status(busy.id().cast_signed()), "State");
        state.is_empty() || state.starts_with('Z')
    });
    busy.wait().unwrap();
    assert_eq!(errno(fs::metadata(ground.at("never-asked-for"))), Errno::NOTCONN);
}

fn a_stopped_server_leaves_no_process_waiting() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a", "b/c"]);
        ends_after(&ground, || ground.runtime.block_on(ground.server.stop()).unwrap());
    });
}

fn a_killed_keeper_leaves_no_process_waiting() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a", "b/c"]);
        ends_after(&ground, || {
            sandkeep_sys::pidfd::kill(ground.server.pidfd()).unwrap();
            wait_until("it has ended", || ground.server.has_ended());
            wait_until("the mount is dead", || {
                fs::metadata(ground.at("another"))
                    .is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::NOTCONN))
            });
        });
    });
}

fn the_server_sees_nothing_but_its_tree_and_keeps_few_rights() {
    both(|mode| {
        let ground = Ground::new(mode, &everything(), &["a"]);
        let keeper = pid_of(ground.server.pidfd());
        let [server] = children(keeper)[..] else { panic!("one server") };
        for pid in [keeper.cast_signed(), server] {
            let root: Vec<_> = fs::read_dir(format!("/proc/{pid}/root/"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            assert_eq!(root, ["a"], "its root is the tree");
            let mounts = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
            assert_eq!(mounts.lines().count(), 1, "{mounts}");
            let status = status(pid);
            let mut expected = "000000000000001f".to_owned();
            if mode == Mode::Passthrough {
                expected = "000000000020001f".to_owned();
            }
            // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID; with passthrough SYS_ADMIN.
            assert_eq!(field(&status, "CapBnd"), expected);
            assert_eq!(field(&status, "CapEff"), expected);
            assert_eq!(
                (field(&status, "NoNewPrivs"), field(&status, "Seccomp")),
                ("1".into(), "2".into())
            );
            let network = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
            assert_ne!(network, fs::read_link("/proc/self/ns/net").unwrap());
        }
    });
}

fn private_kib(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let kib =
        |name: &str| -> u64 { field(&rollup, name).trim_end_matches("kB").trim().parse().unwrap() };
    kib("Private_Dirty") + kib("Private_Clean")
}

fn anonymous_kib(pid: i32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    field(&rollup, "Anonymous").trim_end_matches("kB").trim().parse().unwrap()
}

fn an_idle_server_is_small() {
    let ground = Ground::new(Mode::ZeroMessage, &everything(), &["a"]);
    assert_eq!(fs::read(ground.at("a")).unwrap(), b"a");
    let keeper = pid_of(ground.server.pidfd()).cast_signed();
    let server = children(keeper.cast_unsigned())[0];
    let (anonymous, private) =
        (anonymous_kib(keeper) + anonymous_kib(server), private_kib(keeper) + private_kib(server));
    println!("idle: {anonymous} KiB anonymous, {private} KiB private, keeper and server together");
    assert!(anonymous < 2 * 1024, "{anonymous} KiB");
}

fn known_files_cost_little() {
    const FILES: usize = 20_000;
    let ground = Ground::new(Mode::ZeroMessage, &rules(&[("**/*", Writable, 0)]), &[]);
    for dir in 0..200 {
        fs::create_dir(ground.below(&format!("d{dir}"))).unwrap();
        for file in 0..FILES / 200 {
            File::create(ground.below(&format!("d{dir}/some-file-{file}.rs"))).unwrap();
        }
    }
    let keeper = pid_of(ground.server.pidfd());
    let server = children(keeper)[0];
    let before = anonymous_kib(server);
    let mut names = String::new();
    let listing = Command::new("find")
        .arg(ground.root())
        .args(["-printf", "%p %s\\n"])
        .stdout(Stdio::piped())
        .spawn();
    listing.unwrap().stdout.unwrap().read_to_string(&mut names).unwrap();
    assert!(names.lines().count() > FILES);
    let each = (anonymous_kib(server) - before) * 1024 / FILES as u64;
    println!("{each} bytes for each known file");
    assert!(each < 400, "{each}");
}
