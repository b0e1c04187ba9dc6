//! Devices.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::namespaces::c_path;
use super::walk::{Kind, Scratch, find};
use crate::finding::{Finding, Judge, Ways, held, leaked};
use crate::sys::{self, Arg};

/// Major and minor numbers of harmless devices: null, zero, full, random, urandom, tty, console, ptmx.
const HARMLESS: [(u32, u32); 8] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];
/// The line discipline of every new terminal.
const N_TTY: i32 = 0;
/// Terminals of a devpts.
const TERMINALS: std::ops::RangeInclusive<u32> = 136..=143;

pub fn make_node() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let kinds = [
        ("the machine's memory", libc::S_IFCHR, libc::makedev(1, 1)),
        ("a disk", libc::S_IFBLK, libc::makedev(7, 0)),
    ];
    let scratch = match Scratch::new("nodes") {
        Ok(scratch) => scratch,
        Err(error) => return leaked(format!("not judged: no directory to make nodes in: {error}")),
    };
    for dir in [scratch.path(), Path::new("/dev/shm"), Path::new("/dev")] {
        let path = dir.join(format!("node-{}", std::process::id()));
        for (what, kind, device) in kinds {
            let target = c_path(&path);
            let arguments = [
                Arg::Number(libc::AT_FDCWD.into()),
                Arg::Text(&target),
                Arg::Number((kind | 0o600).into()),
                Arg::Number(i64::from_ne_bytes(device.to_ne_bytes())),
            ];
            let made = sys::call(libc::SYS_mknodat, arguments);
            if ways.note(&format!("{what} in {}", dir.display()), made).is_some() {
                let _ = fs::remove_file(&path);
            }
        }
    }
    ways.finding()
}

/// Disks are opened for reading, which changes nothing.
pub fn raw_disk() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let disks = find(Path::new("/dev"), Kind::BlockDevice, &[]).into_iter().chain(named_disks());
    for path in disks {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let is_disk = |file: &File| file.metadata().is_ok_and(|m| m.file_type().is_block_device());
        match opened {
            Ok(file) if is_disk(&file) => ways.leak(format!("{} can be opened", path.display())),
            Ok(_) => ways.refuse(format!("{} is no disk", path.display())),
            Err(error) => drop(ways.note::<File, _>(&path.display().to_string(), Err(error))),
        }
    }
    let found = ways.finding();
    if found.detail.is_empty() { held("no disk is in sight") } else { found }
}

/// By the names that the kernel reports, whether or not a device file exists.
fn named_disks() -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/partitions").unwrap_or_default();
    let names = table.lines().skip(2).filter_map(|line| line.split_whitespace().nth(3));
    names.map(|name| Path::new("/dev").join(name)).collect()
}

/// The one that a new terminal has anyway.
pub fn line_discipline() -> Finding {
    let terminal = match OpenOptions::new().read(true).write(true).open("/dev/ptmx") {
        Ok(terminal) => terminal,
        Err(error) => return held(format!("there is no terminal: {error}")),
    };
    let mut ways = Ways::judged(Judge::ByRefusal);
    let number = N_TTY.to_ne_bytes();
    let arguments = [
        Arg::Number(terminal.as_raw_fd().into()),
        Arg::Number(libc::TIOCSETD as i64),
        Arg::Bytes(&number),
    ];
    ways.note("TIOCSETD", sys::call(libc::SYS_ioctl, arguments));
    ways.finding()
}

/// They are not opened, because opening some has side effects.
pub fn files() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let found = find(Path::new("/dev"), Kind::CharacterDevice, &[]);
    let count = found.len();
    for path in found {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let number = (libc::major(metadata.rdev()), libc::minor(metadata.rdev()));
        if HARMLESS.contains(&number) || TERMINALS.contains(&number.0) {
            continue;
        }
        let target = c_path(&path);
        for (what, mode) in [("read", libc::R_OK), ("write", libc::W_OK)] {
            let arguments =
                [Arg::Number(libc::AT_FDCWD.into()), Arg::Text(&target), Arg::Number(mode.into())];
            let may = sys::call(libc::SYS_faccessat, arguments);
            ways.note(&format!("{what} {}", path.display()), may);
        }
    }
    let judged = ways.finding();
    if judged.detail.is_empty() { held(format!("{count} devices, all harmless")) } else { judged }
}
