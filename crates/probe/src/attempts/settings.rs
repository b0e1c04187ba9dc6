//! Machine-wide settings in /proc and /sys. Files are opened for writing, and nothing is written.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::Path;

use crate::finding::{Finding, Judge, Ways, held, leaked};
use crate::sys::{self, Arg, ROOM};

/// None of these belongs to a namespace.
const PROC_SYS: [&str; 8] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/sysrq",
    "/proc/sys/kernel/printk",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/binfmt_misc/register",
];

const SYS: [&str; 7] = [
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/ksm/run",
    "/sys/kernel/profiling",
    "/sys/power/state",
    "/sys/module/kernel/parameters/panic",
    "/sys/kernel/security/apparmor/.load",
];

/// Information about the machine, or about other users.
const MACHINE: [&str; 5] = [
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/latency_stats",
    "/proc/timer_list",
];
const MACHINE_DIRS: [&str; 3] = ["/proc/acpi", "/proc/asound", "/proc/scsi"];

/// A masked file can be opened and is empty, and so is a masked directory.
pub fn proc_machine() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for path in MACHINE {
        match File::open(path).and_then(|mut file| file.read(&mut [0; 16])) {
            Ok(0) => ways.refuse(format!("{path} is empty")),
            read => drop(ways.note(path, read)),
        }
    }
    for path in MACHINE_DIRS {
        match fs::read_dir(path).map(Iterator::count) {
            Ok(0) => ways.refuse(format!("{path} is empty")),
            count => drop(ways.note(path, count)),
        }
    }
    ways.finding()
}

/// A process whose core limit is above one byte, or can be raised above it, is passed to the host's core handler.
pub fn core_dump() -> Finding {
    let mut limits = [0; ROOM];
    let arguments = [
        Arg::Number(0),
        Arg::Number(libc::RLIMIT_CORE.into()),
        Arg::Number(0),
        Arg::Room(&mut limits),
    ];
    if let Err(errno) = sys::call(libc::SYS_prlimit64, arguments) {
        return leaked(format!("not judged: prlimit: {errno}"));
    }
    let hard = limits[8..].first_chunk().map_or(u64::MAX, |bytes| u64::from_ne_bytes(*bytes));
    match hard {
        0 | 1 => held(format!("cores have {hard} bytes at most")),
        more => leaked(format!("cores may have {more} bytes")),
    }
}

pub fn proc_sys() -> Finding {
    open_each(&PROC_SYS).finding()
}

pub fn sysrq() -> Finding {
    open_each(&["/proc/sysrq-trigger"]).finding()
}

pub fn sysfs() -> Finding {
    if Path::new("/sys/kernel").exists() {
        open_each(&SYS).finding()
    } else {
        held("there is no /sys")
    }
}

pub fn open_each<P: AsRef<Path>>(paths: &[P]) -> Ways {
    let mut ways = Ways::judged(Judge::BySuccess);
    for path in paths.iter().map(AsRef::as_ref) {
        let opened = OpenOptions::new().write(true).open(path);
        ways.note(&path.display().to_string(), opened);
    }
    ways
}
