//! The directory of all files of a benchmark. It is named after the process, so that the next benchmark knows whether
//! it is in use, and removes the leftovers of a killed one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use sandkeep_core::SandboxId;

const PREFIX: &str = "sandkeep-bench.";
/// The prefix by which `sandkeep sweep` recognizes data directories.
const DATA_PREFIX: &str = "sandkeep-run.";

/// The directory of this process, removed on drop.
pub struct BenchDir;

impl BenchDir {
    pub fn make() -> io::Result<Self> {
        sweep(&parent());
        fs::create_dir_all(path())?;
        Ok(Self)
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        if let Err(error) = remove(&path()) {
            eprintln!("{} is left behind: {error}", path().display());
        }
    }
}

pub fn path() -> PathBuf {
    parent().join(format!("{PREFIX}{}", std::process::id()))
}

/// A name for the data directory of a daemon.
pub fn data_dir() -> PathBuf {
    path().join(format!("{DATA_PREFIX}{}", SandboxId::random()))
}

/// A directory that is usually on a disk: in a /tmp in memory, durability would cost nothing.
fn parent() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

fn sweep(parent: &Path) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse::<u32>().ok());
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == uid);
        let is_dead = |pid: u32| !Path::new("/proc").join(pid.to_string()).exists();
        if is_ours
            && pid.is_some_and(is_dead)
            && let Err(error) = remove(&entry.path())
        {
            eprintln!("{} is left behind: {error}", entry.path().display());
        }
    }
}

/// Removes the directory of a benchmark that has ended. Daemons may have left sandboxes and mounts in it.
fn remove(place: &Path) -> io::Result<()> {
    let is_data =
        |name: &std::ffi::OsStr| name.as_encoded_bytes().starts_with(DATA_PREFIX.as_bytes());
    let has_data = || -> io::Result<bool> {
        let mut entries = fs::read_dir(place)?.flatten();
        Ok(entries.any(|entry| is_data(&entry.file_name())))
    };
    if has_data()? {
        Command::new(std::env::current_exe()?).arg("sweep").arg(place).status()?;
        if has_data()? {
            return Err(io::Error::other("a data directory in it cannot be cleared"));
        }
    }
    fs::remove_dir_all(place)
}
