//! A substitute without cgroups, for a non-root daemon without delegated ones.
//!
//! A sandbox is identified by its guest, which has a badge: the instance and the sandbox, among its arguments in /proc.
//! No process inside can forge it, because only the first process of a pid namespace counts, and no process of a
//! sandbox can create another namespace; outside, only processes with our own uid could. Limits and freezing are not
//! possible.
//!
//! A sandbox that does not run is represented by an empty directory.

mod usage;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use guest_proto::LeafKind;

use crate::namespace;

use super::{
    Controllers, Entry, GroupPlacement, Hierarchy, LeafFiles, LeafLimits, Limits, Used, files,
};

pub struct Groupless {
    /// A directory for each sandbox.
    made: PathBuf,
    instance: String,
}

impl Groupless {
    /// `made` is a directory of this instance's own.
    pub fn open(made: PathBuf, instance: String) -> io::Result<Self> {
        fs::create_dir_all(&made)?;
        Ok(Self { made, instance })
    }
}

/// The badge of a sandbox's guest.
pub fn badge(instance: &str, sandbox: &str) -> String {
    format!("{instance}/{sandbox}")
}

/// The guests of an instance that run without cgroups, each with its sandbox.
pub fn guests(instance: &str) -> io::Result<Vec<(u32, String)>> {
    let us = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let process = Path::new("/proc").join(name);
        // If it cannot be read, it is gone, or belongs to another user.
        let Ok(status) = fs::read_to_string(process.join("status")) else { continue };
        if !namespace::tells_of_a_first(&status) || !has_uid(&status, us) {
            continue;
        }
        let Ok(command) = fs::read(process.join("cmdline")) else { continue };
        found.extend(worn(&command, instance).map(|sandbox| (pid, sandbox)));
    }
    Ok(found)
}

fn has_uid(status: &str, uid: u32) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id.parse() == Ok(uid)))
}

/// The sandbox on the badge in a command line, if it belongs to this instance.
fn worn(command: &[u8], instance: &str) -> Option<String> {
    let mut words = command.split(|byte| *byte == 0).skip_while(|word| *word != b"--badge");
    let badge = std::str::from_utf8(words.nth(1)?).ok()?;
    let (its, sandbox) = badge.split_once('/')?;
    (its == instance).then(|| sandbox.to_owned())
}

impl Hierarchy for Groupless {
    fn kind(&self) -> LeafKind {
        LeafKind::None
    }

    fn controllers(&self) -> Controllers {
        Controllers { memory: false, cpu: false, pids: false, freezer: false }
    }

    fn roots(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    fn make(&self, sandbox: &str, _: &Limits) -> io::Result<()> {
        files::make(&self.made.join(sandbox))
    }

    fn entry(&self, sandbox: &str, _: GroupPlacement) -> io::Result<Entry> {
        fs::metadata(self.made.join(sandbox)).map(|_| Entry::None)
    }

    fn pids(&self, sandbox: &str, _: GroupPlacement) -> io::Result<Vec<u32>> {
        let guests = guests(&self.instance)?.into_iter();
        Ok(guests.filter(|(_, of)| of == sandbox).map(|(pid, _)| pid).collect())
    }

    fn freeze(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing is ever frozen.
    fn thaw(&self, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, sandbox: &str) -> io::Result<()> {
        files::remove(&self.made.join(sandbox))
    }

    fn sandboxes(&self) -> io::Result<Vec<String>> {
        files::children(&self.made)
    }

    fn used(&self, sandbox: &str) -> io::Result<Used> {
        let pids = self.pids(sandbox, GroupPlacement::Beside)?;
        let guest = pids.first().copied().ok_or(io::ErrorKind::NotFound)?;
        usage::of_tree(guest)
    }

    fn make_leaf(&self, _: &str, _: &str, _: &LeafLimits) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open_leaf(&self, _: &str, _: &str, _: &LeafLimits) -> io::Result<LeafFiles> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// There are no leaves.
    fn remove_leaf(&self, _: &str, _: &str) -> io::Result<()> {
        Ok(())
    }

    fn leaves(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn leaf_is_empty(&self, _: &str, _: &str) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_a_namespace_below_ours_counts() {
        assert!(namespace::tells_of_a_first("Name:\tx\nNSpid:\t400\t1\nUid:\t1\n"));
        assert!(namespace::tells_of_a_first("NSpid:\t400\t7\t1\n"));
        for status in ["NSpid:\t1\n", "NSpid:\t400\t2\n", "NSpid:\t1\t2\n", "Name:\tx\n", ""] {
            assert!(!namespace::tells_of_a_first(status), "{status:?}");
        }
    }

    #[test]
    fn a_badge_names_instance_and_sandbox_and_stands_in_its_place() {
        let line = b"sandkeep-guest\0--listen-fd\x003\0--badge\0ours/s-1\0";
        assert_eq!(worn(line, "ours").as_deref(), Some("s-1"));
        assert_eq!(worn(line, "theirs"), None);
        for line in [&b"sh\0ours/s-1\0"[..], b"sh\0--badge\0", b"--badge", b""] {
            assert_eq!(worn(line, "ours"), None, "{line:?}");
        }
    }

    #[test]
    fn a_process_of_another_user_is_not_ours() {
        assert!(has_uid("Uid:\t7\t7\t7\t7\n", 7));
        assert!(!has_uid("Uid:\t7\t0\t7\t7\n", 7));
        assert!(!has_uid("", 7));
    }
}
