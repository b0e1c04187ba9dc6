//! Runs the program `zfs` without a shell, for a bounded time, and parses its output strictly.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, MemfdFlags, access, memfd_create};

use super::unusable;
use crate::StorageError;
use sandkeep_core::limits;
use sandkeep_sys::pidfd;

/// The usual program directories, for a daemon whose PATH lacks them. It is also the whole PATH of `zfs` itself.
const USUAL: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

pub struct Tool {
    path: PathBuf,
}

/// One row of `zfs get`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub name: String,
    pub property: String,
    pub value: String,
}

/// How deep to search below a dataset.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    Itself,
    /// Its children, without theirs.
    Children,
    /// Everything below it, including snapshots.
    All,
}

impl Reach {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Itself => &[],
            Self::Children => &["-d", "1"],
            Self::All => &["-r"],
        }
    }
}

impl Tool {
    pub fn find() -> Result<Self, StorageError> {
        let own = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&own).chain(std::env::split_paths(OsStr::new(USUAL)));
        let is_program = |path: &PathBuf| {
            path.is_absolute() && path.is_file() && access(path, Access::EXEC_OK).is_ok()
        };
        match dirs.map(|dir| dir.join("zfs")).find(is_program) {
            Some(path) => Ok(Self { path }),
            None => Err(unusable("zfs is not installed: apt install zfsutils-linux")),
        }
    }

    /// Runs `zfs` and returns its output. A refusal becomes an error whose kind tells why, with its message. A dataset
    /// may be busy for a moment after it was unmounted, so that case is retried for a while.
    pub fn run(&self, arguments: &[&str]) -> io::Result<String> {
        self.try_often(limits::ZFS_BUSY_TRIES, arguments)
    }

    /// The same, with this many attempts.
    pub fn try_often(&self, times: usize, arguments: &[&str]) -> io::Result<String> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.run_once(arguments) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy && tries < times => {
                    std::thread::sleep(limits::ZFS_BUSY_PAUSE);
                }
                done => return done,
            }
        }
    }

    /// These columns of all datasets and snapshots below one: parents before children, snapshots of one dataset in
    /// order of creation.
    pub fn list<const N: usize>(
        &self,
        beneath: &str,
        columns: [&str; N],
    ) -> io::Result<Vec<[String; N]>> {
        let columns = columns.join(",");
        let told =
            self.run(&["list", "-H", "-r", "-t", "filesystem,snapshot", "-o", &columns, beneath])?;
        told.lines().map(fields).collect()
    }

    /// The values of properties, in the order in which `zfs` prints them.
    pub fn get(&self, dataset: &str, properties: &str, reach: Reach) -> io::Result<Vec<Row>> {
        let mut arguments = vec!["get", "-H", "-p", "-o", "name,property,value"];
        arguments.extend(reach.arguments());
        arguments.extend([properties, dataset]);
        self.run(&arguments)?.lines().map(row).collect()
    }

    pub fn run_once(&self, arguments: &[&str]) -> io::Result<String> {
        let (said, complained) = (memory("zfs-stdout")?, memory("zfs-stderr")?);
        let child = Command::new(&self.path)
            .args(arguments)
            .env_clear()
            .env("PATH", USUAL)
            .env("LC_ALL", "C")
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(said.try_clone()?)
            .stderr(complained.try_clone()?)
            .spawn()?;
        let what = || format!("zfs {}", arguments.first().copied().unwrap_or_default());
        let Some(status) = wait(child)? else {
            let text = format!("{} came to no end within {:?}", what(), limits::ZFS_COMMAND);
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        };
        if status.success() {
            text(said)
        } else {
            let text = text(complained)?;
            let reason = text.lines().map(str::trim).find(|line| !line.is_empty());
            let reason = reason.unwrap_or("it did not say why");
            let kind = kind(&text);
            Err(io::Error::new(kind, format!("{} failed: {reason}", what())))
        }
    }
}

fn memory(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

fn text(mut file: File) -> io::Result<String> {
    file.rewind()?;
    if file.metadata()?.len() > limits::ZFS_OUTPUT_MAX_BYTES {
        return Err(io::Error::other("zfs says more than can be read"));
    }
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(text)
}

/// How it ended; `None` after the timeout. Then it is killed, and another thread waits for it: the kernel may block it
/// for as long as a disk does not answer.
fn wait(mut child: Child) -> io::Result<Option<ExitStatus>> {
    let ended = pidfd::open(child.id()).and_then(|process| ends_in_time(&process));
    if let Ok(true) = ended {
        return child.wait().map(Some);
    }
    child.kill()?;
    std::thread::Builder::new().name("wait-for-zfs".to_owned()).spawn(move || child.wait())?;
    ended.map(|_| None)
}

fn ends_in_time(process: &OwnedFd) -> io::Result<bool> {
    let patience = Timespec::try_from(limits::ZFS_COMMAND).map_err(io::Error::other)?;
    loop {
        match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Classifies a refusal by its message, which is the same in all versions.
fn kind(complained: &str) -> io::ErrorKind {
    let kinds = [
        ("does not exist", io::ErrorKind::NotFound),
        ("already exists", io::ErrorKind::AlreadyExists),
        ("out of space", io::ErrorKind::StorageFull),
        ("no space left", io::ErrorKind::StorageFull),
        ("quota exceeded", io::ErrorKind::QuotaExceeded),
        ("size is less than current", io::ErrorKind::QuotaExceeded),
        ("is busy", io::ErrorKind::ResourceBusy),
        ("permission denied", io::ErrorKind::PermissionDenied),
    ];
    let found = kinds.into_iter().find(|(words, _)| complained.contains(words));
    found.map_or(io::ErrorKind::Other, |(_, kind)| kind)
}

fn row(line: &str) -> io::Result<Row> {
    let [name, property, value] = fields(line)?;
    Ok(Row { name, property, value })
}

fn fields<const N: usize>(line: &str) -> io::Result<[String; N]> {
    let fields: Vec<_> = line.split('\t').map(str::to_owned).collect();
    let strange = |_| io::Error::other(format!("zfs said {line:?}, which is no row of {N}"));
    fields.try_into().map_err(strange)
}

/// A path as an argument for `zfs`.
pub fn argument(path: &Path) -> io::Result<&str> {
    let unreadable = || io::Error::other(format!("{} is no text", path.display()));
    path.to_str().ok_or_else(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_strictly() {
        let row = |text| row(text).map(|row| (row.name, row.property, row.value)).ok();
        let told = |a: &str, b: &str, c: &str| Some((a.to_owned(), b.to_owned(), c.to_owned()));
        assert_eq!(row("p/a@s\tused\t12"), told("p/a@s", "used", "12"));
        assert_eq!(row("p/a\tmountpoint\t/a b"), told("p/a", "mountpoint", "/a b"));
        for text in ["", "p/a", "p/a\tused", "p/a\tused\t1\tlocal", "p/a used 12"] {
            assert_eq!(row(text), None, "{text:?}");
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        for (said, expected) in [
            ("cannot open 'p/x': dataset does not exist\n", io::ErrorKind::NotFound),
            ("cannot create 'p/x': dataset already exists\n", io::ErrorKind::AlreadyExists),
            ("cannot create 'p/x': out of space\n", io::ErrorKind::StorageFull),
            ("cannot destroy 'p/x': dataset is busy\n", io::ErrorKind::ResourceBusy),
            ("internal error: Bad address\n", io::ErrorKind::Other),
        ] {
            assert_eq!(kind(said), expected, "{said}");
        }
    }
}
