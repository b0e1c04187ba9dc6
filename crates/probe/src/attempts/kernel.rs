//! Kernel interfaces that a sandbox does not need, and the other system call entries.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;

use super::walk::Scratch;
#[cfg(not(target_arch = "x86_64"))]
use crate::finding::not_applicable;
use crate::finding::{Finding, Judge, Ways};
use crate::sys::{self, Arg, ROOM};

const UFFD_USER_MODE_ONLY: i64 = 1;
const BPF_MAP_CREATE: i64 = 0;
const KEYCTL_GET_KEYRING_ID: i64 = 0;
const KEY_SPEC_PROCESS_KEYRING: i64 = -2;
const KEY_SPEC_SESSION_KEYRING: i64 = -3;
const SYSLOG_ACTION_READ_ALL: i64 = 3;
/// Neither a flag nor a magic number of any call here.
const NONSENSE: i64 = 0x5A5A_5A50;

/// An array with one element, the smallest possible.
pub fn bpf() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let mut attributes = [0u8; ROOM];
    for (at, value) in [2u8, 4, 4, 1].into_iter().enumerate() {
        attributes[at * 4] = value;
    }
    let arguments = [Arg::Number(BPF_MAP_CREATE), Arg::Room(&mut attributes), Arg::Number(72)];
    ways.note("map", sys::call(libc::SYS_bpf, arguments));
    ways.finding()
}

pub fn keyring() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let arguments = [KEYCTL_GET_KEYRING_ID, KEY_SPEC_SESSION_KEYRING, 0].map(Arg::Number);
    ways.note("keyctl", sys::call(libc::SYS_keyctl, arguments));
    let arguments = [
        Arg::Text(c"user"),
        Arg::Text(c"sandkeep-probe"),
        Arg::Bytes(b"x"),
        Arg::Number(1),
        Arg::Number(KEY_SPEC_PROCESS_KEYRING),
    ];
    ways.note("add_key", sys::call(libc::SYS_add_key, arguments));
    let arguments =
        [Arg::Text(c"user"), Arg::Text(c"sandkeep-probe"), Arg::Number(0), Arg::Number(0)];
    ways.note("request_key", sys::call(libc::SYS_request_key, arguments));
    ways.finding()
}

pub fn io_uring() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let mut parameters = [0; ROOM];
    let arguments = [Arg::Number(1), Arg::Room(&mut parameters)];
    ways.note("io_uring_setup", sys::call(libc::SYS_io_uring_setup, arguments));
    ways.finding()
}

/// One context for one operation, which is destroyed again.
pub fn aio() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let mut context = [0; ROOM];
    let arguments = [Arg::Number(1), Arg::Room(&mut context)];
    if ways.note("io_setup", sys::call(libc::SYS_io_setup, arguments)).is_some() {
        let handle = context.first_chunk().map_or(0, |bytes| i64::from_ne_bytes(*bytes));
        let _ = sys::call(libc::SYS_io_destroy, [Arg::Number(handle)]);
    }
    ways.finding()
}

/// The smallest event: this process's own user time.
pub fn perf() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let mut attributes = [0u8; ROOM];
    // Type 1 is software, 64 the size of the first version; the flags exclude the kernel and the hypervisor.
    (attributes[0], attributes[4], attributes[40]) = (1, 64, 0b0110_0000);
    let arguments = [
        Arg::Room(&mut attributes),
        Arg::Number(0),
        Arg::Number(-1),
        Arg::Number(-1),
        Arg::Number(0),
    ];
    ways.note("perf_event_open", sys::call(libc::SYS_perf_event_open, arguments));
    ways.finding()
}

pub fn userfaultfd() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let arguments = [Arg::Number(UFFD_USER_MODE_ONLY | i64::from(libc::O_CLOEXEC))];
    ways.note("userfaultfd", sys::call(libc::SYS_userfaultfd, arguments));
    ways.finding()
}

/// The module to load is invalid, and the one to unload does not exist.
pub fn module() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let garbage = [b'x'; 64];
    let arguments = [Arg::Bytes(&garbage), Arg::Number(64), Arg::Text(c"")];
    ways.note("init_module", sys::call(libc::SYS_init_module, arguments));
    if let Ok(scratch) = Scratch::new("module") {
        let path = scratch.join("garbage");
        let written = std::fs::write(&path, garbage).and_then(|()| File::open(&path));
        if let Ok(file) = written {
            let arguments = [Arg::Number(file.as_raw_fd().into()), Arg::Text(c""), Arg::Number(0)];
            ways.note("finit_module", sys::call(libc::SYS_finit_module, arguments));
        }
    }
    let arguments = [Arg::Text(c"sandkeep_no_such_module"), Arg::Number(libc::O_NONBLOCK.into())];
    ways.note("delete_module", sys::call(libc::SYS_delete_module, arguments));
    ways.finding()
}

/// With invalid flags: with fewer segments than one it would unload what is loaded.
pub fn kexec() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let arguments = [0, 1 << 20, 0, NONSENSE].map(Arg::Number);
    ways.note("kexec_load", sys::call(libc::SYS_kexec_load, arguments));
    #[cfg(target_arch = "x86_64")]
    {
        let arguments = [-1, -1, 0, 0, NONSENSE].map(Arg::Number);
        ways.note("kexec_file_load", sys::call(libc::SYS_kexec_file_load, arguments));
    }
    ways.finding()
}

/// With wrong magic numbers, which are checked after the permission.
pub fn reboot() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    let arguments = [NONSENSE, NONSENSE, NONSENSE, 0].map(Arg::Number);
    ways.note("reboot", sys::call(libc::SYS_reboot, arguments));
    ways.finding()
}

/// A masked file can be opened and is empty.
pub fn memory() -> Finding {
    let mut ways = Ways::judged(Judge::BySuccess);
    for path in ["/proc/kcore", "/dev/mem", "/dev/kmem", "/dev/port"] {
        match File::open(path).and_then(|mut file| file.read(&mut [0; 16])) {
            Ok(0) => ways.refuse(format!("{path} is empty")),
            read => drop(ways.note(path, read)),
        }
    }
    let mut room = [0; ROOM];
    let arguments = [Arg::Number(SYSLOG_ACTION_READ_ALL), Arg::Room(&mut room), Arg::Number(64)];
    ways.note("syslog", sys::call(libc::SYS_syslog, arguments));
    ways.finding()
}

/// Calls that the 64-bit entry refuses, and that take no pointers: unshare of a user namespace, keyctl and setns.
#[cfg(target_arch = "x86_64")]
fn by_another_entry(
    getpid: u32,
    forbidden: [(&str, u32, u32); 2],
    call: impl Fn(u32, u32) -> Result<u32, sys::Errno>,
) -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    match call(getpid, 0) {
        Ok(pid) if pid == std::process::id() => {
            ways.refuse("it is open");
            for (name, number, argument) in forbidden {
                ways.note(name, call(number, argument));
            }
        }
        Ok(other) => ways.leak(format!("getpid answered {other}")),
        Err(errno) => ways.refuse(format!("it is closed: {errno}")),
    }
    ways.finding()
}

#[cfg(target_arch = "x86_64")]
pub fn i386() -> Finding {
    let user = libc::CLONE_NEWUSER.cast_unsigned();
    let forbidden = [("unshare", 310, user), ("keyctl", 288, 0)];
    by_another_entry(20, forbidden, |number, first| {
        sys::i386_call(number, first, KEY_SPEC_SESSION_KEYRING as u32, 0)
    })
}

#[cfg(target_arch = "x86_64")]
pub fn x32() -> Finding {
    let user = libc::CLONE_NEWUSER.cast_unsigned();
    let forbidden = [("unshare", 272, user), ("keyctl", 250, 0)];
    by_another_entry(39, forbidden, |number, first| {
        sys::x32_call(number.into(), first.into(), KEY_SPEC_SESSION_KEYRING, 0)
    })
}

#[cfg(not(target_arch = "x86_64"))]
pub fn i386() -> Finding {
    not_applicable("only x86-64 has such an entry")
}

#[cfg(not(target_arch = "x86_64"))]
pub fn x32() -> Finding {
    not_applicable("only x86-64 has such an entry")
}
