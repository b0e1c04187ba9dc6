//! The system calls that a sandbox may make. Calls that could affect the kernel's global state, other namespaces, or
//! large unaudited interfaces are refused with EPERM; unknown calls return ENOSYS, so that programs fall back as on an
//! older kernel.

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
    /// Decided by the lower half of an argument, counted from 0: by the arm with its value, otherwise by the last. The
    /// arms' actions look at other arguments.
    Match {
        argument: u32,
        arms: &'static [(&'static [u32], Self)],
        otherwise: &'static Self,
    },
}

/// The last number that was reviewed: `file_setattr` of Linux 6.17.
pub const LAST_KNOWN: u32 = 469;

/// Unused numbers. From 424 on all architectures use the same numbers.
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

const REFUSE: Action = Action::Errno(libc::EPERM);
const NO_SUCH_FAMILY: Action = Action::Errno(libc::EAFNOSUPPORT);
const NO_SUCH_PROTOCOL: Action = Action::Errno(libc::EPROTONOSUPPORT);

/// Injecting input into other terminals; line disciplines, which load modules; and creating, removing or changing btrfs
/// subvolumes: new ones would not count towards the sandbox's disk quota, and the sandbox's own must stay as the
/// storage created it.
const IOCTLS: Action = Action::Match {
    argument: 1,
    arms: &[(
        &[
            libc::TIOCSTI as u32,
            libc::TIOCLINUX as u32,
            libc::TIOCSETD as u32,
            // SUBVOL_CREATE, SNAP_CREATE and their second versions.
            0x5000_940E,
            0x5000_9418,
            0x5000_9401,
            0x5000_9417,
            // SNAP_DESTROY, its second version, SUBVOL_SETFLAGS, SET_RECEIVED_SUBVOL.
            0x5000_940F,
            0x5000_943F,
            0x4008_941A,
            0xC0C8_9425,
        ],
        REFUSE,
    )],
    otherwise: &Action::Allow,
};

/// Ordinary sockets. Other families (AF_ALG, AF_VSOCK, AF_PACKET, …) lead to the host or to rarely used parts of the
/// kernel; other protocols (SCTP, L2TP, SMC, …) load modules; and netlink includes, besides routes and sockets of its
/// own network, the host's uevents and audit messages.
const SOCKETS: Action = Action::Match {
    argument: 0,
    arms: &[
        (&[libc::AF_UNIX as u32], Action::Allow),
        (&[libc::AF_INET as u32, libc::AF_INET6 as u32], INTERNET),
        (&[libc::AF_NETLINK as u32], NETLINK),
    ],
    otherwise: &NO_SUCH_FAMILY,
};

const INTERNET: Action = Action::Match {
    argument: 2,
    arms: &[(
        &[
            0,
            libc::IPPROTO_ICMP as u32,
            libc::IPPROTO_TCP as u32,
            libc::IPPROTO_UDP as u32,
            libc::IPPROTO_ICMPV6 as u32,
        ],
        Action::Allow,
    )],
    otherwise: &NO_SUCH_PROTOCOL,
};

const NETLINK: Action = Action::Match {
    argument: 2,
    arms: &[(&[libc::NETLINK_ROUTE as u32, libc::NETLINK_SOCK_DIAG as u32], Action::Allow)],
    otherwise: &NO_SUCH_PROTOCOL,
};

const SOCKET_PAIRS: Action = Action::Match {
    argument: 0,
    arms: &[(&[libc::AF_UNIX as u32], Action::Allow)],
    otherwise: &NO_SUCH_FAMILY,
};

/// Buffer sizes are accepted and not applied. They would override the limits of the sandbox's network, and the kernel
/// charges data in a connection that was not accepted to no sandbox.
const SOCKET_OPTIONS: Action = Action::Match {
    argument: 1,
    arms: &[(
        &[libc::SOL_SOCKET as u32],
        Action::Match {
            argument: 2,
            arms: &[(
                &[
                    libc::SO_SNDBUF as u32,
                    libc::SO_RCVBUF as u32,
                    libc::SO_SNDBUFFORCE as u32,
                    libc::SO_RCVBUFFORCE as u32,
                ],
                Action::Errno(0),
            )],
            otherwise: &Action::Allow,
        },
    )],
    otherwise: &Action::Allow,
};

/// The guest is PID 1 and has the ids of root inside, which is all that the kernel checks before it changes another
/// process's limits or priority.
const fn but_not_the_guest(argument: u32) -> Action {
    Action::Match { argument, arms: &[(&[1], REFUSE)], otherwise: &Action::Allow }
}

pub fn action(number: u32) -> Action {
    let call = c_long::from(number);
    if number > LAST_KNOWN || GAP.contains(&number) || MISSING.contains(&call) {
        return Action::Errno(libc::ENOSYS);
    }
    if REFUSED.contains(&call) || REFUSED_ON_THIS_ARCHITECTURE.contains(&call) {
        return REFUSE;
    }
    match call {
        libc::SYS_clone => Action::UnlessFlags { mask: NEW_NAMESPACES, refuse: libc::EPERM },
        libc::SYS_ioctl => IOCTLS,
        libc::SYS_socket => SOCKETS,
        libc::SYS_socketpair => SOCKET_PAIRS,
        libc::SYS_setsockopt => SOCKET_OPTIONS,
        libc::SYS_prlimit64
        | libc::SYS_sched_setscheduler
        | libc::SYS_sched_setparam
        | libc::SYS_sched_setattr
        | libc::SYS_sched_setaffinity => but_not_the_guest(0),
        libc::SYS_setpriority | libc::SYS_ioprio_set => but_not_the_guest(1),
        _ => Action::Allow,
    }
}

/// clone3 hides its flags behind a pointer; without it libraries use clone. io_setup contexts are counted for the whole
/// machine (`fs.aio-max-nr`); without it programs use threads.
const MISSING: &[c_long] = &[libc::SYS_clone3, libc::SYS_io_setup];

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
    // Keys are not namespaced; handles open files outside of the root.
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
