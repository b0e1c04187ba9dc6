//! Which features of this machine Sandkeep can use. Changes nothing.

use std::fs;
use std::path::Path;

use serde::Serialize;

use sandkeep_sys::{cgroup, landlock};

/// The first kernel with id-mapped mounts (`mount_setattr`).
const ID_MAPPED_MOUNTS: (u32, u32) = (5, 12);

#[derive(Debug, Serialize)]
pub struct Check {
    pub what: &'static str,
    pub ok: bool,
    pub found: String,
}

pub fn checks() -> Vec<Check> {
    vec![
        root(),
        namespaces(),
        user_namespaces(),
        cgroups(),
        seccomp(),
        overall_landlock(),
        pidfds(),
        id_mapped_mounts(),
        filesystem("btrfs", "no disk quotas, unless its module can still be loaded"),
        filesystem("overlay", "no layered templates, unless its module can still be loaded"),
        loop_devices(),
    ]
}

fn root() -> Check {
    let uid = rustix::process::geteuid();
    let found = format!("running as uid {}", uid.as_raw());
    Check { what: "root", ok: uid.is_root(), found }
}

fn namespaces() -> Check {
    let missing: Vec<&str> = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"]
        .into_iter()
        .filter(|kind| !Path::new("/proc/self/ns").join(kind).exists())
        .collect();
    let found = if missing.is_empty() {
        "all kinds".to_owned()
    } else {
        format!("missing in this kernel: {}", missing.join(", "))
    };
    Check { what: "namespaces", ok: missing.is_empty(), found }
}

fn user_namespaces() -> Check {
    let limit = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let limit = limit.trim().parse().unwrap_or(0u64);
    let found = match limit {
        0 => "none allowed: set the sysctl user.max_user_namespaces".to_owned(),
        limit => format!("up to {limit}"),
    };
    Check { what: "user namespaces", ok: limit > 0, found }
}

fn cgroups() -> Check {
    let (ok, found) = match cgroup::kind() {
        Ok(Some(kind)) => (true, format!("{kind}, controllers: {}", controllers())),
        Ok(None) => (false, "no hierarchy with a freezer is mounted".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    Check { what: "control groups", ok, found }
}

fn controllers() -> String {
    let table = fs::read_to_string("/proc/cgroups").unwrap_or_default();
    let enabled = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        (fields.nth(2) == Some("1")).then_some(name)
    };
    let names: Vec<String> = table.lines().skip(1).filter_map(enabled).collect();
    names.join(" ")
}

fn seccomp() -> Check {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail");
    let found = match &actions {
        Ok(_) => "system call filters".to_owned(),
        Err(_) => "this kernel has no system call filters (CONFIG_SECCOMP_FILTER)".to_owned(),
    };
    Check { what: "seccomp", ok: actions.is_ok(), found }
}

fn overall_landlock() -> Check {
    let ok = landlock::available();
    let found = match (ok, landlock::abi()) {
        (true, Some(abi)) => format!("version {abi}: scopes signals and abstract sockets"),
        (_, Some(abi)) => format!("version {abi}; sandboxes run without the scopes of Linux 6.12"),
        (_, None) => "none; sandboxes run without this additional protection".to_owned(),
    };
    Check { what: "Landlock", ok, found }
}

fn pidfds() -> Check {
    let own = rustix::process::getpid();
    let opened = rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty());
    let found = match &opened {
        Ok(_) => "process exits are reported by the kernel".to_owned(),
        Err(error) => format!("needs Linux 5.3: {error}"),
    };
    Check { what: "pidfd", ok: opened.is_ok(), found }
}

fn id_mapped_mounts() -> Check {
    let names = rustix::system::uname();
    let release = names.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (ok, (major, minor)) = (version >= ID_MAPPED_MOUNTS, ID_MAPPED_MOUNTS);
    let found = if ok {
        format!("Linux {release}")
    } else {
        format!("Linux {release}; they need {major}.{minor}")
    };
    Check { what: "id-mapped mounts", ok, found }
}

fn filesystem(what: &'static str, without: &str) -> Check {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let ok = known.lines().any(|line| line.trim_start_matches("nodev").trim() == what);
    let found = if ok {
        "known to the kernel".to_owned()
    } else {
        format!("unknown to the kernel: {without}")
    };
    Check { what, ok, found }
}

fn loop_devices() -> Check {
    let ok = Path::new("/dev/loop-control").exists();
    let found = if ok {
        "/dev/loop-control is there"
    } else {
        "no /dev/loop-control: no btrfs storage unless the data directory is on btrfs"
    };
    Check { what: "loop devices", ok, found: found.to_owned() }
}
