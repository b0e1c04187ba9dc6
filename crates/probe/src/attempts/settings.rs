//! Settings of the whole machine in /proc and /sys. Files are opened for writing, and nothing is written.

use std::fs::OpenOptions;
use std::path::Path;

use crate::finding::{Finding, Judge, Ways, held};

/// None of these is a namespace's own.
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

pub fn proc_sys() -> Finding {
    open_each(&PROC_SYS).finding()
}

pub fn sysrq() -> Finding {
    open_each(&["/proc/sysrq-trigger"]).finding()
}

pub fn sysfs() -> Finding {
    match Path::new("/sys/kernel").exists() {
        true => open_each(&SYS).finding(),
        false => held("there is no /sys"),
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
