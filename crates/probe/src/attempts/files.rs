//! Files of the host and of other sandboxes.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::walk::{climb_out, pids};
use crate::finding::{Finding, Judge, Ways, held, leaked};
use crate::scene::Scene;
use crate::sys::{self, Arg, ROOM};

/// Deeper than any path.
const CLIMB: usize = 64;
const READ_MAX: u64 = 4096;

pub fn host_file(scene: &Scene) -> Finding {
    match (scene.get("host-file"), scene.get("host-word")) {
        (Some(path), Some(word)) => search(Path::new(path), word),
        (None, _) | (_, None) => leaked("not judged: the host laid out no file"),
    }
}

/// By the path on the host, and by the path inside the other sandbox.
pub fn other_sandbox_file(scene: &Scene) -> Finding {
    let paths = scene.all("other-files");
    let Some(word) = scene.get("other-word").filter(|_| !paths.is_empty()) else {
        return leaked("not judged: the host made no other sandbox");
    };
    let found = paths.iter().map(|path| search(Path::new(path), word));
    let leak = found.clone().find(|found| found.verdict == probe::Verdict::Leaked);
    leak.unwrap_or_else(|| held(format!("looked for by {} paths", found.count())))
}

/// Searches for a file containing a word by every way that may lead there.
fn search(path: &Path, word: &str) -> Finding {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let mut ways = vec![path.to_owned(), climbing(inside)];
    for process in pids().iter().map(u32::to_string).chain(["self".to_owned()]) {
        let of = |link: &str| Path::new("/proc").join(&process).join(link);
        ways.push(of("root").join(inside));
        ways.push(of("cwd").join(climbing(inside)));
    }
    ways.extend(
        sys::open_descriptors()
            .iter()
            .map(|fd| Path::new("/proc/self/fd").join(fd.to_string()).join(climbing(inside))),
    );
    if let Some(way) = ways.iter().find(|way| holds(way, word)) {
        return leaked(format!("read as {}", way.display()));
    }
    let count = ways.len();
    match climb_out().map(|()| holds(path, word)) {
        Ok(false) => held(format!("{count} paths, and climbing out of a chroot, lead nowhere")),
        Ok(true) => leaked("read after climbing out of a chroot"),
        Err(error) => held(format!("{count} paths lead nowhere, and no chroot: {error}")),
    }
}

fn climbing(inside: &Path) -> PathBuf {
    let mut path: PathBuf = std::iter::repeat_n("..", CLIMB).collect();
    path.push(inside);
    path
}

fn holds(path: &Path, word: &str) -> bool {
    let mut text = Vec::new();
    let read = File::open(path).and_then(|file| file.take(READ_MAX).read_to_end(&mut text));
    read.is_ok() && String::from_utf8_lossy(&text).contains(word)
}

pub fn host_socket(scene: &Scene) -> Finding {
    let Some(path) = scene.get("host-socket") else {
        return leaked("not judged: the host laid out no socket");
    };
    let mut ways = Ways::judged(Judge::BySuccess);
    ways.note("connect", UnixStream::connect(path));
    ways.note("connect through /proc/1/root", UnixStream::connect(format!("/proc/1/root{path}")));
    ways.finding()
}

/// Handles of a file system's first inodes are easily guessed; what counts is whether any can be opened at all. Without
/// the argument that each of them reads. Without btrfs, only a filter refuses them.
pub fn subvolume() -> Finding {
    let calls = [
        ("SUBVOL_CREATE", 0x5000_940E),
        ("SNAP_CREATE_V2", 0x5000_9417),
        ("SNAP_DESTROY", 0x5000_940F),
        ("SNAP_DESTROY_V2", 0x5000_943F),
        ("SUBVOL_SETFLAGS", 0x4008_941A),
        ("SET_RECEIVED_SUBVOL", 0xC0C8_9425),
    ];
    let root = match File::open("/") {
        Ok(root) => root,
        Err(error) => return leaked(format!("not judged: the root cannot be opened: {error}")),
    };
    let mut ways = Ways::judged(Judge::ByRefusal);
    for (name, call) in calls {
        let arguments = [i64::from(root.as_raw_fd()), call, 0].map(Arg::Number);
        ways.note(name, sys::call(libc::SYS_ioctl, arguments));
    }
    ways.finding()
}

pub fn file_handle() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let root = match File::open("/") {
        Ok(root) => root,
        Err(error) => return leaked(format!("not judged: / cannot be opened: {error}")),
    };
    // A struct file_handle: eight bytes, of type 1 (an inode and its generation), for inode 2.
    let mut handle = [0u8; ROOM];
    handle[0] = 8;
    handle[4] = 1;
    handle[8] = 2;
    let arguments = [
        Arg::Number(root.as_raw_fd().into()),
        Arg::Room(&mut handle),
        Arg::Number(libc::O_RDONLY.into()),
    ];
    ways.note("open_by_handle_at", sys::call(libc::SYS_open_by_handle_at, arguments));
    ways.finding()
}
