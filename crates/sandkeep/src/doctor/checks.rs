//! What Sandkeep needs of a machine, and whether it is here. It changes nothing.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::sys::{cgroup, landlock};

#[derive(Debug, Serialize)]
pub struct Check {
    pub what: &'static str,
    pub ok: bool,
    /// Without it the `native` runtime cannot be used at all.
    pub required: bool,
    pub found: String,
}

pub fn checks() -> Vec<Check> {
    vec![root(), cgroups(), user_namespaces(), overall_landlock(), btrfs(), loop_devices()]
}

fn root() -> Check {
    let uid = rustix::process::geteuid();
    Check {
        what: "root",
        ok: uid.is_root(),
        required: true,
        found: format!("running as uid {}", uid.as_raw()),
    }
}

fn cgroups() -> Check {
    let (ok, found) = match cgroup::kind() {
        Ok(Some(kind)) => (true, kind.to_owned()),
        Ok(None) => (false, "no hierarchy with a freezer is mounted".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    Check { what: "control groups", ok, required: true, found }
}

fn user_namespaces() -> Check {
    let limit = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let limit = limit.trim().parse().unwrap_or(0u64);
    Check {
        what: "user namespaces",
        ok: limit > 0,
        required: true,
        found: format!("up to {limit}"),
    }
}

fn overall_landlock() -> Check {
    let ok = landlock::available();
    let found = match ok {
        true => "scopes signals and abstract sockets",
        false => "needs Linux 6.12; sandboxes run without this extra wall",
    };
    Check { what: "Landlock", ok, required: false, found: found.to_owned() }
}

fn btrfs() -> Check {
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let ok = known.lines().any(|line| line.trim_start_matches("nodev").trim() == "btrfs");
    let found = match ok {
        true => "known to the kernel",
        false => "unknown to the kernel (or its module is not loaded): no disk quotas",
    };
    Check { what: "btrfs", ok, required: false, found: found.to_owned() }
}

fn loop_devices() -> Check {
    let ok = Path::new("/dev/loop-control").exists();
    let found = match ok {
        true => "/dev/loop-control is there",
        false => "no /dev/loop-control: no btrfs storage unless the data directory is on btrfs",
    };
    Check { what: "loop devices", ok, required: false, found: found.to_owned() }
}
