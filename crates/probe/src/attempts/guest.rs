//! PID 1: the program that executes the host's requests, and therefore the most valuable target.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::walk::{Kind, climb_out, find};
use crate::finding::{Finding, Judge, Ways, not_applicable};
use crate::scene::Scene;
use crate::sys::{self, Arg, Errno};

const PTRACE_SEIZE: i64 = 0x4206;
/// The guest has few; its listening socket is the third.
const DESCRIPTORS: std::ops::Range<i64> = 0..16;
/// The file name of the guest, if it is a file.
const GUEST: &str = "sandkeep-guest";

pub fn ptrace() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    // PTRACE_SEIZE stops nothing, and ends with this process.
    let arguments = [PTRACE_SEIZE, 1, 0, 0].map(Arg::Number);
    ways.note("seize", sys::call(libc::SYS_ptrace, arguments));
    ways.finding()
}

/// A kernel of the sandbox's own may reveal the addresses of PID 1's memory, but not its content.
pub fn memory(scene: &Scene) -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    ways.note("/proc/1/mem", OpenOptions::new().read(true).write(true).open("/proc/1/mem"));
    if scene.has_kernel_of_its_own() {
        match fs::read("/proc/1/environ") {
            Ok(variables) if says_nothing(&variables) => ways.refuse("/proc/1/environ is empty"),
            read => drop(ways.note("/proc/1/environ", read)),
        }
    } else {
        ways.note("/proc/1/maps", fs::read("/proc/1/maps"));
        ways.note("/proc/1/environ", fs::read("/proc/1/environ"));
    }
    // One byte at an unmapped address: a permitted reader gets that error.
    let byte = [0u8; 1];
    let vector = |address: usize| [address.to_ne_bytes(), 1usize.to_ne_bytes()].concat();
    let (ours, its) = (vector(byte.as_ptr().addr()), vector(1));
    for (name, call) in [
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
    ] {
        let arguments = [
            Arg::Number(1),
            Arg::Bytes(&ours),
            Arg::Number(1),
            Arg::Bytes(&its),
            Arg::Number(1),
            Arg::Number(0),
        ];
        ways.note(name, sys::call(call, arguments));
    }
    ways.finding()
}

/// Whether the variables are those that every kernel gives its first process.
fn says_nothing(variables: &[u8]) -> bool {
    let mut names = variables.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
    names.all(|variable| variable.starts_with(b"HOME=") || variable.starts_with(b"TERM="))
}

/// The error for a missing descriptor is returned only to permitted callers.
pub fn descriptors(scene: &Scene) -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    match sys::call(libc::SYS_pidfd_open, [Arg::Number(1), Arg::Number(0)]) {
        Ok(pidfd) => DESCRIPTORS.for_each(|number| {
            let arguments = [pidfd, number, 0].map(Arg::Number);
            ways.note("pidfd_getfd", sys::call(libc::SYS_pidfd_getfd, arguments));
        }),
        Err(errno) => ways.refuse(format!("pidfd_open: {errno}")),
    }
    let mut by_path = Ways::judged(Judge::BySuccess);
    for number in DESCRIPTORS {
        let path = format!("/proc/1/fd/{number}");
        match File::open(&path) {
            Ok(file) if scene.has_kernel_of_its_own() && is_no_gain(&file) => {
                by_path.refuse(format!("{path} is nothing that this user could not open anyway"));
            }
            opened => drop(by_path.note(&path, opened)),
        }
        // A kernel of the sandbox's own may reveal their names.
        if !scene.has_kernel_of_its_own() {
            by_path.note(&path, fs::read_link(&path));
        }
    }
    worse(ways.finding(), by_path.finding())
}

/// Devices and directories are accessible by name anyway. The pipes of commands are accessible to root in any case.
fn is_no_gain(file: &File) -> bool {
    let Ok(kind) = file.metadata().map(|metadata| metadata.file_type()) else { return false };
    kind.is_char_device() || kind.is_dir() || (kind.is_fifo() && sys::effective_uid() == 0)
}

fn worse(one: Finding, other: Finding) -> Finding {
    match one.verdict {
        probe::Verdict::Leaked => one,
        probe::Verdict::Held | probe::Verdict::NotApplicable => match other.verdict {
            probe::Verdict::Held => one,
            probe::Verdict::Leaked | probe::Verdict::NotApplicable => other,
        },
    }
}

/// Looking is allowed, as long as only public content is visible.
pub fn root() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    let place = |path: &str| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let Ok(ours) = place("/") else {
        return not_applicable("the root of this process cannot be looked at");
    };
    for path in ["/proc/1/root/.", "/proc/1/cwd/."] {
        match place(path) {
            Ok(its) if its == ours => ways.refuse(format!("{path} is the root that all see")),
            Ok(_) => ways.leak(format!("{path} is another place")),
            Err(error) => ways.refuse(format!("{path}: {}", Errno::from(error))),
        }
    }
    ways.finding()
}

/// Opens for writing and writes nothing. A file that is busy because it is running could be written to otherwise.
pub fn binary() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    note_writable(&mut ways, Path::new("/proc/1/exe"));
    // If the guest itself is in a chroot, its file is in the outer root.
    for root in ["its root", "the root around it"] {
        let apart = ["/proc", "/sys", "/dev", "/usr", "/tmp"];
        let named = find(Path::new("/"), Kind::File, &apart).into_iter();
        let copies = named.filter(|path| path.file_name().is_some_and(|name| name == GUEST));
        copies.for_each(|path| note_writable(&mut ways, &path));
        if let Err(error) = climb_out() {
            ways.refuse(format!("only in {root}: {error}"));
            break;
        }
    }
    ways.finding()
}

fn note_writable(ways: &mut Ways, path: &Path) {
    match OpenOptions::new().write(true).open(path).map_err(Errno::from) {
        Ok(file) if sys::seals(&file) & libc::F_SEAL_WRITE > 0 => {
            ways.refuse(format!("{} is sealed", path.display()));
        }
        Ok(_) => ways.leak(format!("{} can be written to", path.display())),
        Err(errno) if errno.number() == libc::ETXTBSY => {
            ways.leak(format!("{} can be written to when it does not run", path.display()));
        }
        Err(errno) => ways.refuse(format!("{}: {errno}", path.display())),
    }
}
