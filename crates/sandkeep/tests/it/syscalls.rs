//! System calls that a sandbox does not need, made directly: a refusal by a library proves nothing about the kernel.

use serde_json::json;

use crate::daemon;
use crate::isolation::Actor;

/// Name, number on x86_64, arguments. Arguments are such that, were the call let through, it would
/// not answer with one of [`REFUSALS`] just because of them.
const CALLS: &[(&str, u32, &str)] = &[
    ("mount", 165, "0, 0, 0, 0, 0"),
    ("umount2", 166, "0, 0"),
    ("pivot_root", 155, "0, 0"),
    ("open_tree", 428, "-100, 0, 0"),
    ("move_mount", 429, "-1, 0, -1, 0, 0"),
    ("fsopen", 430, "0, 0"),
    ("fsmount", 432, "-1, 0, 0"),
    ("fspick", 433, "-100, 0, 0"),
    ("mount_setattr", 442, "-1, 0, 0, 0, 0"),
    ("unshare(user)", 272, "0x10000000"),
    ("unshare(mount)", 272, "0x20000"),
    ("unshare(net)", 272, "0x40000000"),
    ("setns", 308, "0, 0"),
    ("clone3", 435, "0, 0"),
    ("bpf", 321, "0, 0, 0"),
    ("perf_event_open", 298, "0, 0, -1, -1, 0"),
    ("userfaultfd", 323, "0"),
    ("io_uring_setup", 425, "1, 0"),
    ("io_uring_enter", 426, "-1, 0, 0, 0, 0"),
    ("io_uring_register", 427, "-1, 0, 0, 0"),
    ("keyctl", 250, "0, -3, 0"),
    ("add_key", 248, "0, 0, 0, 0, 0"),
    ("request_key", 249, "0, 0, 0, 0"),
    ("init_module", 175, "0, 0, 0"),
    ("finit_module", 313, "-1, 0, 0"),
    ("delete_module", 176, "0, 0"),
    ("kexec_load", 246, "0, 0, 0, 0"),
    ("kexec_file_load", 320, "-1, -1, 0, 0, 0"),
    ("reboot", 169, "0, 0, 0, 0"),
    ("swapon", 167, "0, 0"),
    ("swapoff", 168, "0"),
    ("sethostname", 170, "0, 0"),
    ("setdomainname", 171, "0, 0"),
    ("iopl", 172, "3"),
    ("ioperm", 173, "0, 1, 1"),
    ("acct", 163, "0"),
    ("settimeofday", 164, "0, 0"),
    ("clock_settime", 227, "0, 0"),
    ("quotactl", 179, "0, 0, 0, 0"),
    ("syslog", 103, "3, 0, 0"),
    ("open_by_handle_at", 304, "-1, 0, 0"),
    ("fanotify_init", 300, "0, 0"),
    ("ptrace(attach 1)", 101, "16, 1, 0, 0"),
    ("ptrace(seize 1)", 101, "0x4206, 1, 0, 0"),
    ("process_vm_readv(1)", 310, "1, vector, 1, vector, 1, 0"),
    ("process_vm_writev(1)", 311, "1, vector, 1, vector, 1, 0"),
    ("ioctl(TIOCSTI)", 16, "0, 0x5412, vector"),
    ("ioctl(TIOCLINUX)", 16, "0, 0x541C, vector"),
    ("x32 getpid", 0x4000_0027, ""),
];

/// EPERM, EACCES, ENOSYS.
const REFUSALS: &[&str] = &["1", "13", "38"];

const PRELUDE: &str = "import ctypes, os\n\
    buffer = ctypes.create_string_buffer(16)\n\
    pair = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 16)\n\
    vector = ctypes.addressof(pair)\n\
    libc = ctypes.CDLL(None, use_errno=True)\n\
    def call(name, number, *arguments):\n    \
        ctypes.set_errno(0)\n    \
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) for a in arguments])\n    \
        print(name, '=', ctypes.get_errno() if result == -1 else 'allowed', flush=True)\n    \
        return result\n";

#[test]
fn dangerous_system_calls_are_refused() {
    let daemon = daemon!();
    let calls = CALLS.iter().map(|(name, number, arguments)| {
        if arguments.is_empty() {
            format!("call('{name}', {number})\n")
        } else {
            format!("call('{name}', {number}, {arguments})\n")
        }
    });
    let script: String = std::iter::once(PRELUDE.to_owned()).chain(calls).collect();
    for actor in Actor::all(&daemon) {
        let said = actor.python(&script).ok();
        assert_eq!(said.lines().count(), CALLS.len(), "{}: {said}", actor.name);
        for line in said.lines() {
            let answer = line.rsplit(" = ").next().expect("an answer");
            assert!(REFUSALS.contains(&answer), "{}: {line}", actor.name);
        }
    }
}

#[test]
fn a_clone_into_a_new_user_namespace_is_refused() {
    let daemon = daemon!();
    let script =
        format!("{PRELUDE}if call('clone', 56, 0x10000000 | 17, 0, 0, 0, 0) == 0: os._exit(0)\n");
    for actor in Actor::all(&daemon) {
        assert_eq!(actor.python(&script).ok(), "clone = 1", "{}", actor.name);
    }
}

#[test]
fn a_descriptor_of_pid_1_cannot_be_stolen() {
    let daemon = daemon!();
    let script = format!(
        "{PRELUDE}pidfd = call('pidfd_open', 434, 1, 0)\n\
         for number in range(3, 10): call('pidfd_getfd', 438, pidfd, number, 0)\n"
    );
    for actor in Actor::all(&daemon) {
        let said = actor.python(&script).ok();
        let stolen = said.lines().filter(|line| line.starts_with("pidfd_getfd"));
        for line in stolen {
            // With seccomp out of the way it is EPERM; without a pidfd to begin with, EBADF.
            assert!(["1", "38", "9"].contains(&line.rsplit(' ').next().unwrap_or("")), "{line}");
        }
    }
}

/// The 32-bit entry has other numbers; it must not bypass a filter on the 64-bit ones.
#[test]
fn the_32_bit_entry_is_closed() {
    let daemon = daemon!();
    let id = daemon.create();
    let script = "import ctypes, mmap\n\
        code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)\n\
        code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n\
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))\n\
        print(ctypes.CFUNCTYPE(ctypes.c_int)(address)())\n";
    let finished = daemon.exec(&id, &json!({ "argv": ["/usr/bin/python3", "-c", script] }));
    match finished.outcome.as_str() {
        "exited" => assert!(finished.ok().starts_with('-'), "getpid by int 0x80: {finished:?}"),
        outcome => assert_eq!(outcome, "signaled", "{finished:?}"),
    }
}

#[test]
fn debuggers_work_among_the_sandboxs_own_processes() {
    let daemon = daemon!();
    let id = daemon.create();
    let script = format!(
        "{PRELUDE}child = os.fork()\n\
         if child == 0:\n    import time\n    time.sleep(60)\n    os._exit(0)\n\
         call('ptrace', 101, 16, child, 0, 0)\nos.waitpid(child, 0)\nos.kill(child, 9)\n"
    );
    let finished = daemon.exec(&id, &json!({ "argv": ["/usr/bin/python3", "-c", script] }));
    assert_eq!(finished.ok(), "ptrace = allowed");
}
