//! A container in Podman's `SpecGenerator` format.

use serde_json::{Value, json};

use super::Files;
use crate::engine::{Access, Bound, Container};
use sandkeep_core::limits;
use sandkeep_sys::cgroup::{CPU_PERIOD_MICROS, cpu_quota_micros};

pub fn of(container: &Container, files: &Files) -> Value {
    let quota = cpu_quota_micros(container.cpus);
    let (soft, hard) = container.descriptors;
    // The cgroup limits them; by default Podman sets more than it is allowed.
    let ours = rustix::process::getrlimit(rustix::process::Resource::Nproc).maximum;
    let processes = ours.map_or(limits::PIDS_MAX, |ours| ours.min(limits::PIDS_MAX));
    let none = json!({ "nsmode": "none" });
    json!({
        "name": container.name,
        "rootfs": files.root,
        "seccomp_profile_path": files.seccomp,
        "read_only_filesystem": true,
        "command": container.command,
        "hostname": container.hostname,
        "labels": container.labels,
        "mounts": container.binds.iter().map(mount).collect::<Vec<_>>(),
        "cap_drop": ["ALL"],
        "cap_add": container.capabilities,
        "no_new_privileges": container.no_new_privileges,
        "sysctl": container.network_limits,
        "mask": container.masked_paths,
        "netns": none,
        "log_configuration": { "driver": "none" },
        "restart_policy": "no",
        "init": false,
        "systemd": "false",
        "unsetenvall": true,
        "image_volume_mode": "ignore",
        "use_image_hosts": true,
        "use_image_resolv_conf": true,
        "shm_size": container.shm_bytes,
        "r_limits": [
            { "type": "nofile", "soft": soft, "hard": hard },
            { "type": "nproc", "soft": processes, "hard": processes },
        ],
        "resource_limits": {
            "memory": { "limit": container.memory_bytes, "swap": container.memory_bytes },
            "cpu": { "quota": quota, "period": CPU_PERIOD_MICROS },
            "pids": { "limit": container.pids },
        },
    })
}

fn mount(bound: &Bound) -> Value {
    let access = match bound.access {
        Access::Read => "ro",
        Access::ReadWrite => "rw",
    };
    json!({
        "type": "bind",
        "source": bound.source,
        "destination": bound.target,
        "options": ["bind", access, "private"],
    })
}
