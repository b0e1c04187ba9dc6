//! Cgroups: a way to have the host's kernel run a program, and a way out of the limits.

use std::fs;
use std::path::{Path, PathBuf};

use super::namespaces::mount_each;
use super::settings::open_each;
use crate::finding::{Finding, held};

/// The usual mount points, and the present ones.
fn hierarchies() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_cgroup = |line: &&str| line.contains(" - cgroup ") || line.contains(" - cgroup2 ");
    let points = table.lines().filter(is_cgroup).filter_map(|line| line.split(' ').nth(4));
    let mut found: Vec<PathBuf> = points.map(PathBuf::from).collect();
    let usual = Path::new("/sys/fs/cgroup");
    found.push(usual.to_owned());
    let below = fs::read_dir(usual).into_iter().flatten().flatten();
    found.extend(below.map(|entry| entry.path()).filter(|path| path.is_dir()));
    found.sort();
    found.dedup();
    found.retain(|path| path.is_dir());
    found
}

/// Tries each of these files of each hierarchy.
fn try_files(names: &[&str]) -> Finding {
    let hierarchies = hierarchies();
    if hierarchies.is_empty() {
        return held("no control group is in sight");
    }
    let files = hierarchies.iter().flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    open_each(&files.collect::<Vec<_>>()).finding()
}

pub fn release_agent() -> Finding {
    try_files(&["release_agent", "notify_on_release"])
}

pub fn leave() -> Finding {
    try_files(&["cgroup.procs", "tasks", "memory.max", "memory.limit_in_bytes", "pids.max"])
}

pub fn mount() -> Finding {
    mount_each(&[("none", "cgroup2", 0), ("none", "cgroup", 0)])
}
