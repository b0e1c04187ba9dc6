//! Processes in the sandboxes' cgroups, the namespaces they keep alive, and launchers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use super::{Group, INSTANCE, Kind, LeakedResource, Owners, cgroups, names};

const NAMESPACES: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// Each process, with the sandbox that its cgroup belongs to.
pub fn in_groups(groups: &[Group]) -> BTreeMap<u32, String> {
    let mut pids = BTreeMap::new();
    for group in groups {
        for file in cgroups::process_files(group) {
            let text = fs::read_to_string(file).unwrap_or_default();
            let found = text.lines().filter_map(|line| line.parse().ok());
            pids.extend(found.map(|pid: u32| (pid, group.sandbox.clone())));
        }
    }
    pids
}

pub fn found(pids: &BTreeMap<u32, String>, owners: &Owners) -> Vec<LeakedResource> {
    let mut found = Vec::new();
    let mut namespaces = BTreeSet::new();
    for (pid, sandbox) in pids {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let owner = owners.of(sandbox);
        namespaces.extend(namespaces_of(*pid).map(|name| (name, owner.clone())));
        found.push(LeakedResource {
            kind: Kind::Process,
            name: pid.to_string(),
            owner,
            detail: name.trim_end().to_owned(),
        });
    }
    found.extend(namespaces.into_iter().map(|(name, owner)| LeakedResource {
        kind: Kind::Namespace,
        name,
        owner,
        detail: "held by a sandbox's process".to_owned(),
    }));
    found
}

/// Namespaces other than the host's own.
fn namespaces_of(pid: u32) -> impl Iterator<Item = String> {
    NAMESPACES.into_iter().filter_map(move |kind| {
        let its = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
        let ours = fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
        (its != ours).then(|| its.display().to_string())
    })
}

/// Launchers of this instance. One whose daemon is gone should be gone too.
pub fn launchers(instance: &str, daemon: Option<u32>) -> io::Result<Vec<LeakedResource>> {
    let mut found = Vec::new();
    for name in names(Path::new("/proc"))? {
        let Ok(pid) = name.parse::<u32>() else { continue };
        let Ok(command) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let mut arguments = command.split(|byte| *byte == 0);
        let is_launcher = arguments.next() == Some(b"sandkeep-launcher");
        if !is_launcher || !arguments.any(|argument| argument == instance.as_bytes()) {
            continue;
        }
        let owner = (daemon.is_some() && parent(pid) == daemon).then(|| INSTANCE.to_owned());
        let detail = "launcher".to_owned();
        found.push(LeakedResource { kind: Kind::Process, name, owner, detail });
    }
    Ok(found)
}

fn parent(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}
