//! Files in cgroup file systems, and their mount points.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::mount;

/// A mounted cgroup file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupMount {
    pub path: PathBuf,
    pub kind: MountKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountKind {
    /// With its controllers, for example `cpu` and `cpuacct`.
    V1(Vec<String>),
    V2,
}

pub fn cgroup_mounts() -> io::Result<Vec<CgroupMount>> {
    Ok(parse_mounts(&fs::read_to_string("/proc/self/mountinfo")?))
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - type source super,options`
pub fn parse_mounts(mountinfo: &str) -> Vec<CgroupMount> {
    mountinfo.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<CgroupMount> {
    let (left, right) = line.split_once(" - ")?;
    let path = mount::unescape(left.split(' ').nth(4)?);
    let mut right = right.split(' ');
    let kind = match right.next()? {
        "cgroup" => {
            let options = right.nth(1)?;
            MountKind::V1(options.split(',').map(str::to_owned).collect())
        }
        "cgroup2" => MountKind::V2,
        _ => return None,
    };
    Some(CgroupMount { path, kind })
}

/// One line of `/proc/<pid>/cgroup`: a hierarchy, and the group of the process in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Empty for v2.
    pub controllers: Vec<String>,
    /// From the root of the hierarchy.
    pub path: PathBuf,
}

pub fn groups_of(pid: u32) -> io::Result<Vec<Membership>> {
    Ok(parse_groups(&fs::read_to_string(format!("/proc/{pid}/cgroup"))?))
}

/// Lines of `4:cpu,cpuacct:/a/b`.
fn parse_groups(text: &str) -> Vec<Membership> {
    let parse = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?.split(',').filter(|name| !name.is_empty());
        let controllers = controllers.map(str::to_owned).collect();
        Some(Membership { controllers, path: PathBuf::from(fields.next()?) })
    };
    text.lines().filter_map(parse).collect()
}

/// The location of a group, split into its parent directory and its name. `None` for the root of a hierarchy.
pub fn locate(mount: &Path, group: &Path) -> Option<(PathBuf, String)> {
    let (parent, name) = (group.parent()?, group.file_name()?.to_str()?);
    Some((mount.join(parent.strip_prefix("/").ok()?), name.to_owned()))
}

/// The parent group of all instances.
pub const OURS: &str = "sandkeep";

/// Another instance may remove the common parent between our two steps.
const MAKE_TRIES: usize = 10;

/// Creates the group of an instance in a hierarchy.
pub fn make_instance(mount: &Path, instance: &str) -> io::Result<PathBuf> {
    let ours = mount.join(OURS);
    let base = ours.join(instance);
    let mut tries = 0;
    loop {
        tries += 1;
        make(&ours)?;
        match make(&base) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && tries < MAKE_TRIES => {}
            made => return made.map(|()| base),
        }
    }
}

/// Removes the group of an instance, and the common parent, if they are empty.
pub fn remove_instance(base: &Path) {
    // Groups in use stay: the kernel refuses to remove them.
    let _ = fs::remove_dir(base);
    if let Some(ours) = base.parent() {
        let _ = fs::remove_dir(ours);
    }
}

/// Creates a directory; an existing one is fine.
pub fn make(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Removes a group and everything below it; a missing one is fine. Groups contain no real files, so this is rmdir from
/// the leaves up. A group is listed only if the kernel refuses it, which is much cheaper than a listing.
pub fn remove(path: &Path) -> io::Result<()> {
    if remove_childless(path).is_ok() {
        return Ok(());
    }
    for child in children(path)? {
        remove(&path.join(child))?;
    }
    remove_childless(path)
}

fn remove_childless(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The names of the child groups; none if the group does not exist.
pub fn children(path: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            names.extend(entry.file_name().into_string());
        }
    }
    Ok(names)
}

pub fn write(path: &Path, value: &str) -> io::Result<()> {
    fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

pub fn read_number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, text))
}

/// The number behind `name` in a file of `name number` lines.
pub fn read_field(path: &Path, name: &str) -> io::Result<u64> {
    field(&fs::read_to_string(path)?, name)
}

/// The number behind `name` in lines of `name number`.
pub fn field(text: &str, name: &str) -> io::Result<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(field, _)| *field == name)
        .and_then(|(_, number)| number.trim().parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("no field {name}")))
}

/// The processes in a `tasks` or `cgroup.procs` file; none if the group does not exist.
pub fn pids(path: &Path) -> io::Result<Vec<u32>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // The group was removed between open and read.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_both_kinds_are_found_and_others_are_not() {
        let mountinfo = "\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 29 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 29 0:27 / /sys/fs/cgroup/odd\\040name rw - cgroup cgroup rw,memory
37 29 0:33 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";
        let mounts = parse_mounts(mountinfo);
        assert_eq!(mounts.len(), 3);
        assert!(matches!(&mounts[0].kind, MountKind::V1(c) if c.iter().any(|c| c == "cpuacct")));
        assert_eq!(mounts[1].path, Path::new("/sys/fs/cgroup/odd name"));
        assert_eq!(mounts[2].kind, MountKind::V2);
    }

    #[test]
    fn the_groups_of_a_process_are_told_apart_by_controller() {
        let groups = parse_groups("9:name=systemd:/x\n2:cpu,cpuacct:/docker/c1\n0::/docker/c1\n");
        assert_eq!(groups[1].controllers, ["cpu", "cpuacct"]);
        assert!(groups[2].controllers.is_empty());
        let found = locate(Path::new("/sys/fs/cgroup/cpu"), &groups[1].path);
        assert_eq!(found, Some(("/sys/fs/cgroup/cpu/docker".into(), "c1".to_owned())));
        assert_eq!(locate(Path::new("/sys/fs/cgroup/cpu"), Path::new("/")), None);
    }
}
