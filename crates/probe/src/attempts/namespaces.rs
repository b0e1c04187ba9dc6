//! Mounts and namespaces.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::walk::Scratch;
use crate::finding::{Finding, Judge, Ways, leaked};
use crate::scene::Scene;
use crate::sys::{self, Arg, Errno};

const OPEN_TREE_CLONE: i64 = 1;
const CLONE_NEWTIME: i32 = 0x80;

/// All kinds but the user namespace.
const OTHERS: [(&str, i32); 7] = [
    ("mount", libc::CLONE_NEWNS),
    ("network", libc::CLONE_NEWNET),
    ("pid", libc::CLONE_NEWPID),
    ("ipc", libc::CLONE_NEWIPC),
    ("uts", libc::CLONE_NEWUTS),
    ("cgroup", libc::CLONE_NEWCGROUP),
    ("time", CLONE_NEWTIME),
];

pub fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// mount(2) of a type, or with only flags.
pub fn mount_at(source: &Path, target: &Path, kind: &str, flags: u64) -> Result<i64, Errno> {
    let (source, target) = (c_path(source), c_path(target));
    let kind = CString::new(kind).unwrap_or_default();
    let flags = i64::from_ne_bytes(flags.to_ne_bytes());
    let arguments = [
        Arg::Text(&source),
        Arg::Text(&target),
        Arg::Text(&kind),
        Arg::Number(flags),
        Arg::Number(0),
    ];
    sys::call(libc::SYS_mount, arguments)
}

pub fn unmount_at(target: &Path) -> Result<i64, Errno> {
    let target = c_path(target);
    sys::call(libc::SYS_umount2, [Arg::Text(&target), Arg::Number(libc::MNT_DETACH.into())])
}

/// Tries to mount each of these in a harmless place; successes are undone.
pub fn mount_each(mounts: &[(&str, &str, u64)]) -> Finding {
    let scratch = match Scratch::new("mount") {
        Ok(scratch) => scratch,
        Err(error) => return leaked(format!("not judged: no directory to mount on: {error}")),
    };
    let mut ways = Ways::judged(Judge::ByRefusal);
    for (source, kind, flags) in mounts {
        let mounted = mount_at(Path::new(source), scratch.path(), kind, *flags);
        if ways.note(if kind.is_empty() { source } else { kind }, mounted).is_some() {
            let _ = unmount_at(scratch.path());
        }
    }
    ways.finding()
}

pub fn mount() -> Finding {
    mount_each(&[("none", "tmpfs", 0), ("none", "proc", 0), ("/", "", libc::MS_BIND)])
}

pub fn mount_api() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    ways.note("fsopen", sys::call(libc::SYS_fsopen, [Arg::Text(c"tmpfs"), Arg::Number(0)]));
    let arguments =
        [Arg::Number(libc::AT_FDCWD.into()), Arg::Text(c"/"), Arg::Number(OPEN_TREE_CLONE)];
    ways.note("open_tree", sys::call(libc::SYS_open_tree, arguments));
    ways.finding()
}

/// Every shared directory, and the root: if it is not a mount point, a kernel that permits the call refuses it for
/// that.
pub fn remount(scene: &Scene) -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    for target in scene.all("shared").into_iter().chain(["/"]) {
        let none = Path::new("none");
        let remounted = mount_at(none, Path::new(target), "", libc::MS_REMOUNT | libc::MS_BIND);
        ways.note(target, remounted);
    }
    ways.finding()
}

/// With arguments that cannot work, so that nothing is lost if it is permitted.
pub fn unmount() -> Finding {
    let scratch = match Scratch::new("unmount") {
        Ok(scratch) => scratch,
        Err(error) => return leaked(format!("not judged: no directory to unmount: {error}")),
    };
    let mut ways = Ways::judged(Judge::ByRefusal);
    ways.note("umount2", unmount_at(scratch.path()));
    let target = c_path(scratch.path());
    let pivoted = sys::call(libc::SYS_pivot_root, [Arg::Text(&target), Arg::Text(&target)]);
    ways.note("pivot_root", pivoted);
    ways.finding()
}

fn unshare(flag: i32) -> Result<i64, Errno> {
    sys::call(libc::SYS_unshare, [Arg::Number(flag.into())])
}

/// A limit of zero namespaces refuses like a filter, with another error.
pub fn unshare_user() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    ways.note("unshare", unshare(libc::CLONE_NEWUSER));
    ways.finding()
}

pub fn clone_user() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    ways.note("clone", sys::clone_with(libc::CLONE_NEWUSER));
    ways.note("clone3", sys::clone3_with(libc::CLONE_NEWUSER));
    ways.finding()
}

pub fn unshare_others() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for (name, flag) in OTHERS {
        ways.note(name, unshare(flag));
    }
    ways.finding()
}

pub fn join() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for name in ["user", "mnt", "net", "pid", "ipc", "uts", "cgroup", "time"] {
        let joined = File::open(format!("/proc/1/ns/{name}")).map_err(Errno::from);
        let joined = joined.and_then(|namespace| {
            let arguments = [Arg::Number(namespace.as_raw_fd().into()), Arg::Number(0)];
            sys::call(libc::SYS_setns, arguments)
        });
        ways.note(name, joined);
    }
    let pidfd = sys::call(libc::SYS_pidfd_open, [Arg::Number(1), Arg::Number(0)]);
    let by_pidfd = pidfd.and_then(|pidfd| {
        let all = libc::CLONE_NEWNS | libc::CLONE_NEWNET;
        sys::call(libc::SYS_setns, [Arg::Number(pidfd), Arg::Number(all.into())])
    });
    ways.note("pidfd", by_pidfd);
    ways.finding()
}
