//! Attempts to escape, or to look outside. Each is made by all possible users: the default user, root, and root of a
//! privileged sandbox.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::json;

use crate::daemon;
use crate::support::{Daemon, Finished, Setup, processes_in_cgroup};

/// Somebody inside a sandbox.
pub struct Actor<'a> {
    daemon: &'a Daemon,
    pub id: String,
    user: &'static str,
    pub name: &'static str,
}

impl<'a> Actor<'a> {
    pub fn all(daemon: &'a Daemon) -> Vec<Self> {
        let plain = daemon.create();
        let privileged = daemon.create_with(&json!({ "privilege": "root" }));
        vec![
            Self { daemon, id: plain.clone(), user: "user", name: "the default user" },
            Self { daemon, id: plain, user: "root", name: "root without privileges" },
            Self { daemon, id: privileged, user: "root", name: "root with privileges" },
        ]
    }

    pub fn sh(&self, command: &str) -> Finished {
        self.daemon.exec(&self.id, &json!({ "command": command, "user": self.user }))
    }

    pub fn python(&self, script: &str) -> Finished {
        let body = json!({ "argv": ["/usr/bin/python3", "-c", script], "user": self.user });
        self.daemon.exec(&self.id, &body)
    }

    /// The attempt fails, and the sandbox is none the worse.
    fn cannot(&self, attempt: &str) {
        let finished = self.sh(attempt);
        assert_ne!(finished.exit_code, Some(0), "{} can: {attempt}\n{finished:?}", self.name);
        assert_eq!(self.sh("echo alive").ok(), "alive", "after {attempt}");
    }
}

/// A file of the host with a word in it that is nowhere else.
struct Canary {
    path: String,
    word: String,
}

impl Canary {
    fn in_dir(dir: &str) -> Self {
        let word = format!("canary-{}", sandkeep_core::SandboxId::random());
        let path = format!("{dir}/.{word}");
        fs::write(&path, &word).expect("root writes anywhere");
        Self { path, word }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[test]
fn the_hosts_files_cannot_be_read() {
    let daemon = daemon!();
    let canaries = ["/root", "/tmp", "/var/tmp", "/run"].map(Canary::in_dir);
    let shadow = fs::read_to_string("/etc/shadow").unwrap_or_default();
    let repository = env!("CARGO_MANIFEST_DIR");
    for actor in Actor::all(&daemon) {
        for canary in &canaries {
            let Canary { path, word } = canary;
            actor.cannot(&format!("cat {path}"));
            actor.cannot(&format!("cat /proc/1/root{path}"));
            let found = actor.sh(&format!(
                "grep -rlsF {word} / --exclude-dir=usr --exclude-dir=proc --exclude-dir=sys"
            ));
            assert_eq!(found.stdout_text(), "", "{} found {path}", actor.name);
        }
        actor.cannot(&format!("ls {repository}"));
        actor.cannot(&format!("ls {}", daemon.data_dir().display()));
        let seen = actor.sh("cat /etc/shadow").stdout_text();
        for line in shadow.lines().filter(|line| line.contains('$')) {
            assert!(!seen.contains(line), "{} sees a password of the host", actor.name);
        }
        let local = actor.sh("ls -A /usr/local/bin /usr/local/lib 2>/dev/null | grep -v :");
        assert_eq!(local.stdout_text().trim(), "", "/usr/local belongs to the host");
    }
}

#[test]
fn what_is_shared_with_the_host_is_read_only() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        for attempt in [
            "touch /usr/bin/x",
            "echo x >> /etc/passwd",
            "rm -f /usr/bin/env && ! [ -e /usr/bin/env ]",
            "chmod 777 /usr/bin",
            "mount -o remount,rw /usr",
            "mount -o remount,rw /etc",
        ] {
            actor.cannot(attempt);
        }
    }
}

#[test]
fn the_hosts_environment_does_not_leak() {
    crate::skip_if!(crate::support::obstacle());
    let setup = Setup::default().env("SANDKEEP_TEST_CANARY", "leaked-environment");
    let daemon = Daemon::start_with(&setup);
    for actor in Actor::all(&daemon) {
        let seen = actor.sh("env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'").stdout_text();
        assert!(!seen.contains("leaked-environment"), "{}: {seen}", actor.name);
        let expected = [
            "HOME", "USER", "LOGNAME", "PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_", "SHELL",
            "TERM",
        ];
        for name in seen.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name) {
            assert!(expected.contains(&name), "{name} came from somewhere: {seen}");
        }
    }
}

#[test]
fn only_the_sandboxs_own_processes_are_seen() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        let seen = actor.sh("ps -e -o pid=,comm=").ok();
        assert!(seen.trim_start().starts_with("1 sandkeep-guest"), "{seen}");
        assert!(seen.lines().count() <= 4, "{}: {seen}", actor.name);
        actor.cannot("ps -e -o args= | grep -q 'sandkeep [s]erve'");
    }
}

#[test]
fn pid_1_can_be_neither_killed_nor_looked_into() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        for attempt in [
            "cat /proc/1/environ",
            "cat /proc/1/maps",
            "ls /proc/1/fd/ && ls -l /proc/1/fd/ | grep -q socket",
            "ls /proc/1/root/",
            "ls /proc/1/cwd/",
            "head -c 1 /proc/1/mem",
            "echo x > /proc/1/mem",
            "nsenter -t 1 -a true",
        ] {
            actor.cannot(attempt);
        }
        actor.sh("kill -9 1; kill -TERM 1; kill -STOP 1; kill -9 -1");
        assert_eq!(actor.sh("echo alive").ok(), "alive");
        assert_eq!(daemon.state(&actor.id), "running");
    }
}

#[test]
fn the_network_is_a_loopback_of_its_own() {
    let daemon = daemon!();
    let word = format!("sandkeep-canary-{}", std::process::id());
    let address = {
        use std::os::linux::net::SocketAddrExt;
        std::os::unix::net::SocketAddr::from_abstract_name(&word).expect("a short name")
    };
    let _listener = UnixListener::bind_addr(&address).expect("an abstract socket");
    let port = daemon.address().port();
    for actor in Actor::all(&daemon) {
        let devices = actor.sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").ok();
        assert_eq!(devices, "lo", "{}", actor.name);
        let connect = |family: &str, target: &str| {
            let script = format!(
                "import socket\ns = socket.socket(socket.{family})\ns.settimeout(5)\ns.connect({target})"
            );
            let finished = actor.python(&script);
            assert_ne!(finished.exit_code, Some(0), "{} reached {target}", actor.name);
        };
        connect("AF_INET", &format!("('127.0.0.1', {port})"));
        connect("AF_INET", "('192.0.2.1', 80)");
        connect("AF_UNIX", &format!("'\\0{word}'"));
        connect("AF_VSOCK", "(2, 22)");
    }
}

#[test]
fn nothing_can_be_mounted_and_no_namespace_made() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        for attempt in [
            "mkdir -p /tmp/m && mount -t tmpfs none /tmp/m",
            "mkdir -p /tmp/m && mount --bind /usr /tmp/m",
            "mkdir -p /tmp/m && mount -t proc none /tmp/m",
            "mkdir -p /tmp/m && mount -t cgroup2 none /tmp/m",
            "umount /usr",
            "umount -l /proc",
            "unshare --mount true",
            "unshare --user true",
            "unshare --map-root-user true",
            "unshare --net true",
            "unshare --pid --fork true",
            "unshare --cgroup true",
            "nsenter --target 1 --mount true",
            "nsenter --target $$ --user true",
            "pivot_root / /tmp",
        ] {
            actor.cannot(attempt);
        }
    }
}

#[test]
fn the_kernels_settings_cannot_be_changed_or_read_out() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        for attempt in [
            "echo x > /proc/sys/kernel/hostname",
            "echo '|/tmp/x' > /proc/sys/kernel/core_pattern",
            "echo 3 > /proc/sys/vm/drop_caches",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "echo h > /proc/sysrq-trigger",
            "head -c 1 /proc/kcore",
            "head -c 1 /proc/kmsg",
            "cat /proc/keys | grep -q .",
            "cat /proc/timer_list | grep -q .",
            "grep -v '^0000000000000000 ' /proc/kallsyms | grep -q .",
            "dmesg",
            "ls /sys/kernel",
            "ls /sys/fs/cgroup/*",
            "ls /proc/scsi/*",
            "hostname outside",
            "modprobe dummy",
        ] {
            actor.cannot(attempt);
        }
        let groups = actor.sh("cat /proc/self/cgroup").stdout_text();
        assert!(!groups.contains(&daemon.instance()), "the host's cgroup paths show: {groups}");
    }
}

#[test]
fn only_harmless_devices_exist_and_none_can_be_made() {
    let daemon = daemon!();
    let harmless = [
        "null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin",
        "stdout", "stderr", "console", "mqueue",
    ];
    for actor in Actor::all(&daemon) {
        let devices = actor.sh("ls /dev").ok();
        for device in devices.lines() {
            assert!(harmless.contains(&device), "/dev/{device} is there");
        }
        for attempt in [
            "mknod /tmp/mem c 1 1",
            "mknod /tmp/disk b 7 0",
            "mknod /dev/shm/null c 1 3",
            "head -c 1 /dev/mem",
            "touch /dev/x",
            "rm /dev/null",
        ] {
            actor.cannot(attempt);
        }
        assert_eq!(actor.sh("head -c 10 /dev/urandom | wc -c").ok(), "10");
        assert!(actor.sh("cat /etc/passwd > /dev/full").refused().contains("No space left"));
    }
}

/// The kernel has a few thousand terminals for the whole machine, the host's included.
#[test]
fn terminals_are_the_sandboxs_own_and_not_all_that_there_are() {
    let daemon = daemon!();
    let script = "import os\n\
        ends = []\n\
        before = os.listdir('/dev/pts')\n\
        try:\n    \
            while len(ends) < 1000: ends.append(os.openpty())\n\
        except OSError: pass\n\
        print(before, len(ends))\n";
    for actor in Actor::all(&daemon) {
        assert_eq!(actor.python(script).ok(), "['ptmx'] 128", "{}", actor.name);
    }
}

#[test]
fn a_chroot_leads_back_into_the_sandbox() {
    let daemon = daemon!();
    let canary = Canary::in_dir("/root");
    let script = format!(
        "import os\n\
         os.makedirs('/tmp/jail', exist_ok=True)\n\
         fd = os.open('/', os.O_RDONLY)\n\
         try:\n    os.chroot('/tmp/jail')\nexcept PermissionError:\n    print('no chroot')\n\
         os.fchdir(fd)\n\
         for _ in range(100):\n    os.chdir('..')\n\
         try:\n    os.chroot('.')\nexcept PermissionError:\n    pass\n\
         print(os.path.exists('{}'), os.path.exists('/proc/1') or os.path.exists('/usr/bin'))",
        canary.path
    );
    for actor in Actor::all(&daemon) {
        let seen = actor.python(&script).ok();
        assert!(seen.ends_with("False True"), "{}: {seen}", actor.name);
    }
}

#[test]
fn a_set_user_id_file_raises_nobody() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.root_sh(&id, "cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && [ -u /tmp/id ]").ok();
    assert_eq!(daemon.sh(&id, "/tmp/id -u").ok(), "1000");
    let status =
        daemon.sh(&id, "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs)' /proc/self/status").ok();
    for line in status.lines() {
        let (name, value) = line.split_once(":\t").expect("a status line");
        let expected = if name == "NoNewPrivs" { "1" } else { "0000000000000000" };
        assert_eq!(value, expected, "{name}");
    }
}

#[test]
fn privileges_go_only_as_far_as_they_were_asked_for() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "privilege": "root" }));
    let status = daemon.root_sh(&id, "grep CapBnd /proc/self/status").ok();
    let bounding = u64::from_str_radix(status.trim_start_matches("CapBnd:\t"), 16).expect("hex");
    // chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot
    let granted = [0, 1, 3, 4, 5, 6, 7, 8, 10, 18].iter().fold(0u64, |set, bit| set | 1 << bit);
    assert_eq!(bounding & !granted, 0, "more than asked for: {bounding:x}");
    daemon.root_sh(&id, "touch /tmp/f && chown 1000:1000 /tmp/f").ok();
    assert_eq!(daemon.sh(&id, "stat -c %u /tmp/f").ok(), "1000");
}

#[test]
fn a_command_starts_with_three_descriptors() {
    let daemon = daemon!();
    for actor in Actor::all(&daemon) {
        assert_eq!(actor.sh("ls /proc/$$/fd; true").ok(), "0\n1\n2", "{}", actor.name);
    }
}

#[test]
fn sandboxes_do_not_see_each_other() {
    let daemon = daemon!();
    let (one, two) = (daemon.create(), daemon.create());
    daemon.sh(&one, "echo secret > /tmp/note; sleep 7777 >/dev/null 2>&1 &").ok();
    daemon.sh(&two, "sleep 8888 >/dev/null 2>&1 &").ok();
    daemon.sh(&two, "cat /tmp/note").refused();
    let seen = daemon.root_sh(&two, "ps -e -o args=").ok();
    assert!(seen.contains("sleep 8888") && !seen.contains("sleep 7777"), "{seen}");
    daemon.root_sh(&two, "ls -A /dev/shm | grep .").refused();

    // Not even by number: each has user ids of its own on the host.
    let owners = |id: &str| -> Vec<u32> {
        let pids = processes_in_cgroup(&format!("{}/{id}", daemon.instance()));
        let statuses =
            pids.iter().filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let uid = |status: String| {
            let line = status.lines().find_map(|l| l.strip_prefix("Uid:\t").map(str::to_owned))?;
            line.split('\t').next()?.parse().ok()
        };
        statuses.filter_map(uid).collect()
    };
    let (of_one, of_two) = (owners(&one), owners(&two));
    assert!(of_one.len() >= 2 && of_two.len() >= 2, "{of_one:?} {of_two:?}");
    let range = |uid: &u32| uid / 65_536;
    for uid in of_one.iter().chain(&of_two) {
        assert!(*uid >= 524_288, "uid {uid} of the host runs inside");
    }
    assert!(of_one.iter().all(|a| of_two.iter().all(|b| range(a) != range(b))));
}

#[test]
fn the_control_socket_is_out_of_sight() {
    let daemon = daemon!();
    let id = daemon.create();
    assert!(Path::new(&daemon.home(&id)).join("guest.sock").exists());
    let found = daemon.root_sh(&id, "find / -xdev -type s 2>/dev/null; cat /proc/net/unix");
    assert!(!found.stdout_text().contains("guest.sock"), "{found:?}");
}
