//! The code between clone and exec: the child enters the sandbox and becomes the guest.
//!
//! The order matters. The user namespace is entered last, so every other namespace belongs to the host's: not even root
//! inside has a capability over them. The root is moved onto `/` of an otherwise empty mount namespace, and not
//! pivoted: pivot_root visits every task of the host, and the classic escape from a chroot leads back to the same root
//! here. A non-root launcher's child does pivot: its namespace contains the host's /proc, which is thereby left behind
//! permanently.
//!
//! The child may share the launcher's memory (the launcher is suspended meanwhile), so nothing here unwinds, and the
//! parent prepares everything that it needs.

#![expect(unsafe_code, reason = "clone, execveat and signal calls have no safe wrappers")]

use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rustix::fs::{Mode, OFlags, open};
use rustix::mount::MountAttrFlags;
use rustix::process::{Gid, Signal, Uid};
use rustix::thread::{CapabilitySet, LinkNameSpaceType, UnshareFlags};

use super::bare::NEW_ROOT;
use super::{Attachment, Privilege};
use crate::landlock::Ruleset;
use crate::namespace::{ChildStack, USER_ID};
use crate::{capability, dev, mount, seccomp};

/// Numbers of the guest's descriptors.
const LISTEN_FD: RawFd = 3;
const LIFELINE_FD: RawFd = 4;
pub const FIRST_FREE_FD: RawFd = 5;

/// The steps, in order; a failure names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Step {
    None,
    Cgroup,
    Network,
    Hostname,
    Root,
    Binds,
    Proc,
    Masks,
    Dev,
    Attachments,
    Chroot,
    Users,
    Capabilities,
    Landlock,
    Descriptors,
    Seccomp,
    Exec,
}

impl Step {
    pub const ALL: [(Self, &str); 16] = [
        (Self::Cgroup, "enter its control group"),
        (Self::Network, "enter its network namespace"),
        (Self::Hostname, "set its host name"),
        (Self::Root, "mount its root"),
        (Self::Binds, "mount its template"),
        (Self::Proc, "mount /proc"),
        (Self::Masks, "mask /proc"),
        (Self::Dev, "mount /dev"),
        (Self::Attachments, "mount what it is given"),
        (Self::Chroot, "change to its root"),
        (Self::Users, "enter its user namespace"),
        (Self::Capabilities, "drop capabilities"),
        (Self::Landlock, "restrict itself with Landlock"),
        (Self::Descriptors, "arrange its descriptors"),
        (Self::Seccomp, "load its system call filter"),
        (Self::Exec, "execute the guest"),
    ];
}

/// Where a failing child reports its error; in memory shared by both even if nothing else is.
#[repr(C)]
pub struct Report {
    step: AtomicU32,
    errno: AtomicI32,
}

impl Report {
    pub fn clear(&self) {
        self.step.store(Step::None as u32, Ordering::Relaxed);
    }

    fn set(&self, step: Step, error: &io::Error) {
        self.errno.store(error.raw_os_error().unwrap_or(libc::EIO), Ordering::Relaxed);
        self.step.store(step as u32, Ordering::Relaxed);
    }

    /// The failure, if any.
    pub fn failure(&self) -> Option<(&'static str, i32)> {
        let step = self.step.load(Ordering::Relaxed);
        let (_, text) = Step::ALL.iter().find(|(known, _)| *known as u32 == step)?;
        Some((text, self.errno.load(Ordering::Relaxed)))
    }
}

/// The ids of a sandbox, as seen where its namespaces are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids {
    /// A range whose first id is root inside.
    Range { base: u32 },
    /// Only that of `user`.
    Single,
}

impl Ids {
    /// Enters the user namespace with this mapping, and becomes its first id.
    pub fn enter(self, users: BorrowedFd<'_>) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::User);
        rustix::thread::move_into_link_name_space(users, kind)?;
        let (uid, gid) = match self {
            Self::Range { .. } => {
                rustix::thread::set_thread_groups(&[])?;
                (Uid::ROOT, Gid::ROOT)
            }
            // Its groups cannot be dropped; of the host it sees only what everybody may read.
            Self::Single => (Uid::from_raw(USER_ID), Gid::from_raw(USER_ID)),
        };
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
    }

    /// The owner of the sandbox's own files in /dev.
    fn owner(self) -> u32 {
        match self {
            Self::Range { base } => base,
            Self::Single => USER_ID,
        }
    }

    /// The group of its terminals.
    fn tty(self) -> u32 {
        match self {
            Self::Range { base } => base + dev::TTY_GID,
            Self::Single => USER_ID,
        }
    }
}

/// Everything a child needs, prepared by the parent.
pub struct Child<'a> {
    pub hostname: &'a str,
    pub ids: Ids,
    pub privilege: Privilege,
    pub shm_bytes: u64,
    pub root: OwnedFd,
    pub binds: Vec<(String, OwnedFd)>,
    pub attachments: Vec<(Attachment, OwnedFd)>,
    pub dev: OwnedFd,
    /// Masks of /proc as detached mounts, with their targets.
    pub masks: Vec<(&'static str, OwnedFd)>,
    pub network: OwnedFd,
    pub users: OwnedFd,
    /// v1 `tasks` files.
    pub tasks: Vec<OwnedFd>,
    /// v2 directory.
    pub into_cgroup: Option<OwnedFd>,
    pub listener: OwnedFd,
    pub lifeline: Option<OwnedFd>,
    pub guest: BorrowedFd<'a>,
    pub arguments: Vec<CString>,
    pub filter: &'a seccomp::Filter,
    pub landlock: bool,
    pub report: &'a Report,
}

/// Files of /proc with information about the machine or about other users; masked by /dev/null.
pub const MASKED: [&str; 9] = [
    "proc/cmdline",
    "proc/config.gz",
    "proc/interrupts",
    "proc/kcore",
    "proc/keys",
    "proc/latency_stats",
    "proc/sched_debug",
    "proc/timer_list",
    "proc/timer_stats",
];
/// The same for directories; masked by empty ones.
pub const MASKED_DIRS: [&str; 3] = ["proc/acpi", "proc/asound", "proc/scsi"];
/// Parts of /proc through which the machine could be changed, if the ids ever matched.
pub const READ_ONLY: [&str; 5] =
    ["proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"];

/// libc's constant has too narrow a type for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

const NAMESPACES: libc::c_int =
    libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;

/// Clones the child and returns when it has become the guest, or has reported a failure.
pub fn spawn(child: &Child<'_>, stack: &mut ChildStack) -> io::Result<(u32, OwnedFd)> {
    let mut pidfd: RawFd = -1;
    let pid = match &child.into_cgroup {
        None => clone_sharing_memory(child, stack, &mut pidfd),
        Some(cgroup) => clone_into(child, cgroup.as_fd(), &mut pidfd),
    }?;
    // SAFETY: on success the kernel stored a new descriptor there, which nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok((pid, pidfd))
}

fn clone_sharing_memory(
    child: &Child<'_>,
    stack: &mut ChildStack,
    pidfd: &mut RawFd,
) -> io::Result<u32> {
    let flags = NAMESPACES | libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
    let argument = std::ptr::from_ref(child).cast_mut().cast::<c_void>();
    // SAFETY: the child runs on its own stack and only reads what `child` refers to; it may allocate,
    // from the heap that it shares with us. With CLONE_VFORK this thread, the only one, stands still
    // until it has executed or exited, so nothing that it uses can change or go away. A child killed
    // in the middle of an allocation could leave the heap locked: then we hang, and are replaced.
    let pid = unsafe { libc::clone(enter, stack.top(), flags, argument, pidfd) };
    u32::try_from(pid).map_err(|_| io::Error::last_os_error())
}

/// Only clone3 clones into a cgroup, and it has no wrapper that gives the child a stack; so the child gets a copy of
/// the memory, as with fork.
fn clone_into(child: &Child<'_>, cgroup: BorrowedFd<'_>, pidfd: &mut RawFd) -> io::Result<u32> {
    let flags = NAMESPACES | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    let mut arguments = [0u64; 11];
    arguments[0] = flags as u64 | CLONE_INTO_CGROUP;
    arguments[1] = std::ptr::from_mut(pidfd).addr() as u64;
    arguments[4] = libc::SIGCHLD as u64;
    arguments[10] = cgroup.as_raw_fd() as u64;
    // SAFETY: `arguments` has the layout of `struct clone_args`; without CLONE_VM the child returns
    // here on a copy of this stack, like a fork of this single-threaded process.
    let pid =
        unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    if pid == 0 {
        enter(std::ptr::from_ref(child).cast_mut().cast());
    }
    u32::try_from(pid).map_err(|_| io::Error::last_os_error())
}

/// The child's first function. It never returns.
extern "C" fn enter(child: *mut c_void) -> libc::c_int {
    // SAFETY: the parent passed a reference to a `Child` that lives until this process has executed
    // or exited.
    let child = unsafe { &*child.cast::<Child<'_>>() };
    let (step, error) = become_guest(child);
    child.report.set(step, &error);
    // SAFETY: ends this process at once, running nothing of the parent's.
    unsafe { libc::_exit(1) }
}

/// Runs the steps; returns only if one fails.
fn become_guest(child: &Child<'_>) -> (Step, io::Error) {
    type Run = fn(&Child<'_>) -> io::Result<()>;
    const STEPS: [(Step, Run); 16] = [
        (Step::Cgroup, enter_cgroup),
        (Step::Network, enter_network),
        (Step::Hostname, set_hostname),
        (Step::Root, mount_root),
        (Step::Binds, mount_binds),
        (Step::Proc, mount_proc),
        (Step::Masks, mask_proc),
        (Step::Dev, mount_dev),
        (Step::Attachments, mount_attachments),
        (Step::Chroot, change_root),
        (Step::Users, enter_users),
        (Step::Capabilities, drop_capabilities),
        (Step::Landlock, restrict),
        (Step::Descriptors, arrange_descriptors),
        (Step::Seccomp, load_filter),
        (Step::Exec, execute_guest),
    ];
    for (step, run) in STEPS {
        if let Err(error) = run(child) {
            return (step, error);
        }
    }
    (Step::Exec, io::ErrorKind::Other.into())
}

fn enter_cgroup(child: &Child<'_>) -> io::Result<()> {
    die_with_launcher(Some(Signal::KILL))?;
    for tasks in &child.tasks {
        rustix::io::write(tasks, b"0")?;
    }
    if child.into_cgroup.is_some() {
        // On v2 a namespace rooted in the guest's own group would prevent it from cloning execs into their leaves
        // beside it.
        return Ok(());
    }
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWCGROUP)? };
    Ok(())
}

fn enter_network(child: &Child<'_>) -> io::Result<()> {
    let kind = Some(LinkNameSpaceType::Network);
    Ok(rustix::thread::move_into_link_name_space(child.network.as_fd(), kind)?)
}

fn set_hostname(child: &Child<'_>) -> io::Result<()> {
    Ok(rustix::system::sethostname(child.hostname.as_bytes())?)
}

fn mount_root(child: &Child<'_>) -> io::Result<()> {
    let place = match child.ids {
        Ids::Range { .. } => "/",
        Ids::Single => NEW_ROOT,
    };
    mount::attach(&child.root, place)?;
    Ok(rustix::process::fchdir(&child.root)?)
}

fn mount_binds(child: &Child<'_>) -> io::Result<()> {
    for (target, bind) in &child.binds {
        mount::attach(bind, target.as_str())?;
        match child.ids {
            // Something is mounted there only for a non-root child.
            Ids::Range { .. } => mount::cover_with_own_inodes(target, NEW_ROOT)?,
            // All sandboxes belong to one user, who may see everything.
            Ids::Single => {}
        }
    }
    Ok(())
}

fn mount_proc(_: &Child<'_>) -> io::Result<()> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::attach(mount::new_filesystem("proc", &[], attributes)?, "proc")
}

fn mask_proc(child: &Child<'_>) -> io::Result<()> {
    for (target, mask) in &child.masks {
        mount::attach(mask, *target)?;
    }
    for path in READ_ONLY {
        unless_missing(make_read_only(path))?;
    }
    Ok(())
}

/// Not every kernel has every file of /proc.
fn unless_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn make_read_only(path: &str) -> io::Result<()> {
    let bind = mount::clone_path(path.as_ref())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    mount::set_attributes(&bind, attributes)?;
    mount::attach(bind, path)
}

fn mount_dev(child: &Child<'_>) -> io::Result<()> {
    mount::attach(&child.dev, "dev")?;
    mount::attach(dev::terminals(child.ids.tty())?, "dev/pts")?;
    mount::attach(dev::shared_memory(child.ids.owner(), child.shm_bytes)?, "dev/shm")
}

fn mount_attachments(child: &Child<'_>) -> io::Result<()> {
    child.attachments.iter().try_for_each(|(attachment, mount)| attachment.attach(mount))
}

fn change_root(child: &Child<'_>) -> io::Result<()> {
    match child.ids {
        Ids::Range { .. } => rustix::process::chroot(".")?,
        Ids::Single => {
            rustix::process::pivot_root(".", ".")?;
            rustix::mount::unmount(".", rustix::mount::UnmountFlags::DETACH)?;
        }
    }
    rustix::process::chdir("/")?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::setsid()?;
    Ok(())
}

fn enter_users(child: &Child<'_>) -> io::Result<()> {
    child.ids.enter(child.users.as_fd())?;
    // The kernel resets this when ids change.
    die_with_launcher(Some(Signal::KILL))
}

/// Until it is the guest, the child must not outlive a killed launcher: before it is in its cgroup it could not be
/// found. The guest itself does outlive it.
fn die_with_launcher(signal: Option<Signal>) -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(signal)?)
}

/// The guest gets the rest of the bounding set when it is executed as root, and nothing as another user.
fn drop_capabilities(child: &Child<'_>) -> io::Result<()> {
    let keep = match child.ids {
        Ids::Single => CapabilitySet::empty(),
        Ids::Range { .. } => capability::of_guest(child.privilege),
    };
    // Some kernels know fewer capabilities than we do; those need not be dropped.
    for capability in CapabilitySet::all().difference(keep).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match child.privilege {
        Privilege::None => Ok(rustix::thread::set_no_new_privs(true)?),
        Privilege::Root => Ok(()),
    }
}

fn restrict(child: &Child<'_>) -> io::Result<()> {
    if !child.landlock {
        return Ok(());
    }
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    Ruleset::new(root)?.restrict()
}

fn arrange_descriptors(child: &Child<'_>) -> io::Result<()> {
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // The sources are moved out of the way first, because they may have the numbers of targets.
    let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE_FD);
    let (null, listener) = (high(null.as_fd())?, high(child.listener.as_fd())?);
    let lifeline = child.lifeline.as_ref().map(|fd| high(fd.as_fd())).transpose()?;
    let mut plan = vec![(0, &null), (1, &null), (2, &null), (LISTEN_FD, &listener)];
    plan.extend(lifeline.as_ref().map(|fd| (LIFELINE_FD, fd)));
    for (target, source) in plan {
        // SAFETY: this process owns its copies of all descriptors and uses none of those that are
        // replaced here again.
        if unsafe { libc::dup2(source.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // Everything else, including an unused lifeline number, is closed by the exec.
    let first = if child.lifeline.is_some() { FIRST_FREE_FD } else { LIFELINE_FD };
    // SAFETY: takes numbers only; descriptors are marked, not closed.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if marked != 0 {
        return Err(io::Error::last_os_error());
    }
    reset_signals();
    Ok(())
}

/// The launcher ignores SIGCHLD, which the guest would inherit.
fn reset_signals() {
    // SAFETY: sets default dispositions and an empty mask of this process alone (no CLONE_SIGHAND).
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

fn load_filter(child: &Child<'_>) -> io::Result<()> {
    match child.ids {
        Ids::Range { .. } => die_with_launcher(None)?,
        // It cannot be found before it is the guest, which then detaches from the launcher itself.
        Ids::Single => {}
    }
    child.filter.load()
}

fn execute_guest(child: &Child<'_>) -> io::Result<()> {
    let mut arguments: Vec<_> = child.arguments.iter().map(|word| word.as_ptr()).collect();
    arguments.push(std::ptr::null());
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end with a null pointer and hold pointers to strings that the parent keeps.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            child.guest.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error())
}
