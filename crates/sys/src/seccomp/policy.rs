//! Which system calls a sandbox may make. What could reach the kernel's wider state, other
//! namespaces, or large unaudited interfaces is refused with EPERM; what this list does not know
//! answers ENOSYS, so that programs fall back as on an older kernel.

use libc::c_long;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Allow,
    Errno(i32),
    /// Refused if the first argument has any of these bits.
    UnlessFlags {
        mask: u32,
        refuse: i32,
    },
    /// Refused if the first argument is one of these.
    UnlessFirst {
        values: &'static [u32],
        refuse: i32,
    },
    /// Refused if the second argument is one of these.
    UnlessSecond {
        values: &'static [u32],
        refuse: i32,
    },
    /// Refused if the first argument is none of these.
    OnlyFirst {
        values: &'static [u32],
        refuse: i32,
    },
}

/// The last number that was reviewed: `file_setattr` of Linux 6.17.
pub const LAST_KNOWN: u32 = 469;

/// Numbers without a call. From 424 on all architectures number alike.
#[cfg(target_arch = "x86_64")]
const GAP: std::ops::Range<u32> = 336..424;
#[cfg(target_arch = "aarch64")]
const GAP: std::ops::Range<u32> = 295..424;

const NEW_NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;

/// Typing into, or pasting on, somebody else's terminal; and making subvolumes and snapshots on
/// btrfs (in both versions of each call), which would not count towards the sandbox's disk quota.
const REFUSED_IOCTLS: &[u32] = &[
    libc::TIOCSTI as u32,
    libc::TIOCLINUX as u32,
    0x5000_940E,
    0x5000_9418,
    0x5000_9401,
    0x5000_9417,
];

/// Ordinary sockets. The others (AF_ALG, AF_VSOCK, AF_PACKET, …) are a way to the host or to a
/// rarely used part of the kernel.
const SOCKET_FAMILIES: &[u32] =
    &[libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, libc::AF_NETLINK as u32];

const PAIR_FAMILIES: &[u32] = &[libc::AF_UNIX as u32];

/// The guest is PID 1 and has the ids of root inside, which is all that the kernel asks for before
/// it changes another process's limits or priority.
const THE_GUEST: &[u32] = &[1];

pub fn action(number: u32) -> Action {
    let call = c_long::from(number);
    if number > LAST_KNOWN || GAP.contains(&number) || call == libc::SYS_clone3 {
        // clone3 hides its flags behind a pointer; without it libraries use clone.
        return Action::Errno(libc::ENOSYS);
    }
    if REFUSED.contains(&call) || REFUSED_ON_THIS_ARCHITECTURE.contains(&call) {
        return Action::Errno(libc::EPERM);
    }
    match call {
        libc::SYS_clone => Action::UnlessFlags { mask: NEW_NAMESPACES, refuse: libc::EPERM },
        libc::SYS_ioctl => Action::UnlessSecond { values: REFUSED_IOCTLS, refuse: libc::EPERM },
        libc::SYS_socket => {
            Action::OnlyFirst { values: SOCKET_FAMILIES, refuse: libc::EAFNOSUPPORT }
        }
        libc::SYS_socketpair => {
            Action::OnlyFirst { values: PAIR_FAMILIES, refuse: libc::EAFNOSUPPORT }
        }
        libc::SYS_prlimit64
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setattr
        | libc::SYS_sched_setaffinity => {
            Action::UnlessFirst { values: THE_GUEST, refuse: libc::EPERM }
        }
        libc::SYS_setpriority | libc::SYS_ioprio_set => {
            Action::UnlessSecond { values: THE_GUEST, refuse: libc::EPERM }
        }
        _ => Action::Allow,
    }
}

const REFUSED: &[c_long] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    OPEN_TREE_ATTR,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // The kernel itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_vhangup,
    // Clocks of the whole machine.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // Large interfaces with a history of escapes.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_fanotify_mark,
    // Keys are not namespaced; handles open files past the root.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    // Pages of other processes and nodes.
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    SET_MEMPOLICY_HOME_NODE,
];

/// Too new for libc's list; the same number everywhere.
const SET_MEMPOLICY_HOME_NODE: c_long = 450;
const OPEN_TREE_ATTR: c_long = 467;

#[cfg(target_arch = "x86_64")]
const REFUSED_ON_THIS_ARCHITECTURE: &[c_long] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_ioperm,
    libc::SYS_iopl,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(target_arch = "aarch64")]
const REFUSED_ON_THIS_ARCHITECTURE: &[c_long] = &[294];
