//! Cgroups of the instance's sandboxes, in every mounted hierarchy.

use std::io;
use std::path::PathBuf;

use super::{Group, Kind, LeakedResource, Owners, names};
use sandkeep_sys::cgroup;

pub fn of_instance(instance: &str) -> io::Result<Vec<Group>> {
    let mut groups = Vec::new();
    for base in cgroup::instance_dirs(instance)? {
        for sandbox in directories(&base)? {
            groups.push(Group { path: base.join(&sandbox), sandbox });
        }
    }
    Ok(groups)
}

fn directories(base: &std::path::Path) -> io::Result<Vec<String>> {
    let is_dir = |name: &String| base.join(name).is_dir();
    Ok(names(base)?.into_iter().filter(is_dir).collect())
}

pub fn found(groups: &[Group], owners: &Owners) -> Vec<LeakedResource> {
    let group = |group: &Group| LeakedResource {
        kind: Kind::Cgroup,
        name: group.path.display().to_string(),
        owner: owners.of(&group.sandbox),
        detail: "a sandbox's cgroup".to_owned(),
    };
    groups.iter().map(group).collect()
}

/// All process files below a group.
pub fn process_files(group: &Group) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut dirs = vec![group.path.clone()];
    while let Some(dir) = dirs.pop() {
        // A group that was removed meanwhile holds no process.
        for name in directories(&dir).unwrap_or_default() {
            dirs.push(dir.join(name));
        }
        files.push(dir.join("cgroup.procs"));
    }
    files
}
