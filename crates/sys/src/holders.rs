//! The processes that have files of a mount open or mapped, found in `/proc` without a word to the file system: a FUSE
//! server that hangs is not asked. Descriptors that are on their way through a socket are not found.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::pidfd;

/// What a process can do with a file that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    Read,
    Write,
}

/// A process, and the inodes that it has.
#[derive(Debug)]
pub struct Holder {
    pub pid: u32,
    /// Opened before the process was looked at, so that it is still the same one.
    pub pidfd: OwnedFd,
    pub held: HashMap<u64, Hold>,
}

/// All processes with files of the file system with this device number (the minor one; the major one is 0).
pub fn of_file_system(minor: u32) -> io::Result<Vec<Holder>> {
    let mut seen = HashMap::new();
    let mut holders = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end at any step; then it holds nothing.
        let Ok(Some(held)) = look_at(pid, minor, &mut seen) else { continue };
        if !held.1.is_empty() {
            holders.push(Holder { pid, pidfd: held.0, held: held.1 });
        }
    }
    Ok(holders)
}

type Held = HashMap<u64, Hold>;

/// `seen` has, for each mount namespace, the ids of mounts of the file system.
fn look_at(
    pid: u32,
    minor: u32,
    seen: &mut HashMap<OsString, Vec<u64>>,
) -> io::Result<Option<(OwnedFd, Held)>> {
    let process = Path::new("/proc").join(pid.to_string());
    let namespace = fs::read_link(process.join("ns/mnt"))?.into_os_string();
    let mounts = match seen.get(&namespace) {
        Some(mounts) => mounts.clone(),
        None => {
            let mounts = mounts_of(&fs::read_to_string(process.join("mountinfo"))?, minor);
            seen.insert(namespace, mounts.clone());
            mounts
        }
    };
    if mounts.is_empty() {
        return Ok(None);
    }
    let pidfd = pidfd::open(pid)?;
    let mut held = Held::new();
    let mut hold = |inode: u64, hold: Hold| {
        held.entry(inode).and_modify(|known| *known = hold.max(*known)).or_insert(hold);
    };
    for entry in fs::read_dir(process.join("fdinfo"))? {
        let Ok(info) = fs::read_to_string(entry?.path()) else { continue };
        if let Some((inode, how)) = open_file(&info, &mounts) {
            hold(inode, how);
        }
    }
    let maps = fs::read_to_string(process.join("maps"))?;
    let mapped: Vec<_> = maps.lines().filter_map(|line| mapping(line, minor)).collect();
    if mapped.iter().any(|(_, is_shared)| *is_shared) {
        // Only these numbers say what may become of a mapping.
        let all = fs::read_to_string(process.join("smaps"))?;
        shared_mappings(&all, minor).for_each(|(inode, how)| hold(inode, how));
    }
    mapped.into_iter().for_each(|(inode, _)| hold(inode, Hold::Read));
    Ok(Some((pidfd, held)))
}

fn mounts_of(mountinfo: &str, minor: u32) -> Vec<u64> {
    let device = format!("0:{minor}");
    let of_line = |line: &str| {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        (fields.nth(1)? == device).then_some(id)
    };
    mountinfo.lines().filter_map(of_line).collect()
}

/// The inode of a descriptor of one of these mounts. One that only names a file does not hold it.
fn open_file(info: &str, mounts: &[u64]) -> Option<(u64, Hold)> {
    const ACCESS_MODE: i64 = 0o3;
    const ONLY_NAMES: i64 = libc::O_PATH as i64;
    let field = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t").map(str::trim))
    };
    if !mounts.contains(&field("mnt_id")?.parse().ok()?) {
        return None;
    }
    let flags = i64::from_str_radix(field("flags")?, 8).ok()?;
    if flags & ONLY_NAMES != 0 {
        return None;
    }
    let hold = if flags & ACCESS_MODE == 0 { Hold::Read } else { Hold::Write };
    Some((field("ino")?.parse().ok()?, hold))
}

/// The inode of a mapped file of the file system, and whether what is stored in it reaches the file.
fn mapping(line: &str, minor: u32) -> Option<(u64, bool)> {
    let mut fields = line.split_ascii_whitespace();
    let access = fields.nth(1)?;
    let device = fields.nth(1)?;
    let inode = fields.next()?.parse().ok()?;
    let (major, found) = device.split_once(':')?;
    let is_ours =
        u32::from_str_radix(major, 16).ok()? == 0 && u32::from_str_radix(found, 16).ok()? == minor;
    is_ours.then_some((inode, access.ends_with('s')))
}

/// Shared mappings, with what they can be made to do (`mw`: they may be written).
fn shared_mappings(smaps: &str, minor: u32) -> impl Iterator<Item = (u64, Hold)> {
    let mut current: Option<(u64, bool)> = None;
    smaps.lines().filter_map(move |line| {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let (inode, is_shared) = current.take()?;
            let may_write = flags.split_ascii_whitespace().any(|flag| flag == "mw");
            let hold = if may_write { Hold::Write } else { Hold::Read };
            return is_shared.then_some((inode, hold));
        }
        if line.split_ascii_whitespace().next().is_some_and(|first| first.contains('-')) {
            current = mapping(line, minor);
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let mountinfo = "35 1 0:58 / /workspace rw,nosuid - fuse.sandkeep codebase rw\n\
                         36 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
        assert_eq!(mounts_of(mountinfo, 58), [35]);
        let info = |flags: &str, mount: u64| {
            format!("pos:\t0\nflags:\t{flags}\nmnt_id:\t{mount}\nino:\t77\n")
        };
        assert_eq!(open_file(&info("0100000", 35), &[35]), Some((77, Hold::Read)));
        assert_eq!(open_file(&info("0100002", 35), &[35]), Some((77, Hold::Write)));
        assert_eq!(open_file(&info("012000000", 35), &[35]), None, "O_PATH");
        assert_eq!(open_file(&info("0100002", 36), &[35]), None);
        let line = "7f00-7f10 r--s 00000000 00:3a 77                    /workspace/a b";
        assert_eq!(mapping(line, 58), Some((77, true)));
        assert_eq!(mapping(&line.replace("r--s", "r-xp"), 58), Some((77, false)));
        assert_eq!(mapping(line, 57), None);
        assert_eq!(mapping("7f00-7f10 rw-p 00000000 00:00 0", 58), None);
        let smaps = format!("{line}\nSize: 4 kB\nVmFlags: rd sh mr mw me ms sd\n");
        assert_eq!(shared_mappings(&smaps, 58).collect::<Vec<_>>(), [(77, Hold::Write)]);
        let smaps = smaps.replace(" mw", "");
        assert_eq!(shared_mappings(&smaps, 58).collect::<Vec<_>>(), [(77, Hold::Read)]);
    }

    #[test]
    fn this_process_is_found_by_what_it_has_open() {
        use std::os::unix::fs::MetadataExt;
        // A file system of its own with major number 0.
        let file = fs::File::open("/proc/self/status").expect("it exists");
        let found = file.metadata().expect("it is open");
        let minor = rustix::fs::minor(found.dev());
        let holders = of_file_system(minor).expect("proc is readable");
        let own = holders.iter().find(|holder| holder.pid == std::process::id());
        assert_eq!(own.and_then(|own| own.held.get(&found.ino())), Some(&Hold::Read));
    }
}
