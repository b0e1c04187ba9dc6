//! The stage's own process: one request, a sequence of steps, and the tool.

#![expect(unsafe_code, reason = "unshare and dup2 have no safe wrappers")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, makedev, mkdir, mknodat, open};
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount,
};
use rustix::thread::UnshareFlags;

use super::{
    BUNDLE, Bundle, Dev, FILTER_FD, Failure, Identity, Lifeline, MESSAGE_MAX_BYTES, Meeting, Order,
    ROOT, STATE, Staging, USERS, bare, caught,
};
use crate::cgroup::{MountKind, cgroup_mounts};
use crate::landlock::{self, Ruleset};
use crate::launcher::{Attachment, Ids, Received, RootKind, Targets, guest_image, set_properties};
use crate::namespace::{self, ChildStack, IdMap};
use crate::{dev, mount, seccomp, socket};

const LISTEN_FD: RawFd = 3;
const GUEST_FD: RawFd = 4;
const LIFELINE_FD: RawFd = 5;
/// Above all fixed numbers.
const FIRST_FREE_FD: RawFd = 8;
/// The socket to the daemon, which the guest closes.
const SOCKET_FD: RawFd = 7;

const STACK_BYTES: usize = 64 * 1024;
const EMPTY: &str = "/tmp/empty";
/// Space for a tool's state of one sandbox.
const SCRATCH_BYTES: &str = "16m";

/// Runs the stage on the socket at its stdin. Returns only if there is no tool, or it cannot be executed.
pub fn main() -> ExitCode {
    // All that it makes is for a sandbox: the daemon's may be narrower.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let error = match receive() {
        Ok((order, fds)) => {
            let performed = match &order {
                Order::Set(staging) => perform(staging, fds),
                Order::Bare(staging) => bare::perform(staging, fds),
                Order::Catch(catching) => return ended(caught::perform(*catching, &fds)),
            };
            match performed {
                Ok(never) => match never {},
                Err(failure) => tell(&failure),
            }
        }
        // The peer is gone, or would not understand an answer.
        Err(error) => Err(error),
    };
    ended(error);
    ExitCode::FAILURE
}

fn ended(result: io::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandkeep stage: {error}");
            ExitCode::FAILURE
        }
    }
}

fn receive() -> io::Result<(Order, Vec<OwnedFd>)> {
    let mut buffer = vec![0; MESSAGE_MAX_BYTES];
    let (len, fds) = socket::receive_with_fds(rustix::stdio::stdin(), &mut buffer)?;
    Ok((serde_json::from_slice(&buffer[..len])?, fds))
}

/// The socket is stdin or, later, where the last steps have moved it.
fn tell(failure: &Failure) -> io::Result<()> {
    let message = serde_json::to_vec(failure)?;
    match socket::send_with_fds(rustix::stdio::stdin(), &message, &[]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {
            // SAFETY: the number is the socket's; it is borrowed for this call only.
            let moved = unsafe { BorrowedFd::borrow_raw(SOCKET_FD) };
            socket::send_with_fds(moved, &message, &[]).map(drop)
        }
        sent => sent.map(drop),
    }
}

pub fn during(step: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure { step: step.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

pub enum Never {}

fn perform(staging: &Staging, fds: Vec<OwnedFd>) -> Result<Never, Failure> {
    let mut things = Things::sort(staging, fds).ok_or_else(|| {
        during("receive its descriptors")(io::Error::from_raw_os_error(libc::EPROTO))
    })?;
    // First of all: from here on we can be found by the sandbox.
    things.enter_groups().map_err(during("enter its control group"))?;
    rustix::process::setsid().map_err(|errno| during("begin a session")(errno.into()))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = open("/proc", flags, Mode::empty()).map_err(|e| during("open /proc")(e.into()))?;
    namespace::enter_network(proc.as_fd()).map_err(during("make a network namespace"))?;
    let (mut stack, ids) = (ChildStack::new(STACK_BYTES), IdMap::range(staging.id_base));
    let users = namespace::user(proc.as_fd(), &mut stack, ids);
    let users = users.map_err(during("make a user namespace"))?;
    let guest = guest_image().map_err(during("make the guest executable"))?;
    private_mounts().map_err(during("leave the host's mounts"))?;
    let ids = Ids::Range { base: staging.id_base };
    set_properties(&things.received, ids, users.as_fd()).map_err(during("map its ids"))?;
    let Received { listener, lifeline, root, binds, attachments, .. } = things.received;
    let root = root.mount(users.as_fd(), ids, "/tmp", &mut stack);
    let root = root.map_err(during("mount the overlay of its root"))?;
    let set = Set { root, binds, attachments, bundle: things.bundle, users };
    let null = lay_out(staging, &set).map_err(during("lay out its root"))?;
    hide_groups().map_err(during("hide the control groups"))?;
    restrict().map_err(during("restrict itself with Landlock"))?;
    let filter = match staging.identity {
        Identity::Host => None,
        Identity::Sandbox => {
            ids.enter(set.users.as_fd()).map_err(during("enter its user namespace"))?;
            Some(filter().map_err(during("make its system call filter"))?)
        }
    };
    // A descriptor that is closed later must not have a number that is about to be reassigned.
    drop(set);
    let given = Given { null, listener, guest, lifeline, filter };
    given.arrange(staging.meeting).map_err(during("arrange its descriptors"))?;
    Err(during("execute the tool")(execute(&staging.program, &staging.arguments)))
}

/// The descriptors of a request, identified.
struct Things {
    received: Received,
    bundle: Option<OwnedFd>,
}

impl Things {
    fn sort(staging: &Staging, mut fds: Vec<OwnedFd>) -> Option<Self> {
        // It is between the attachments and the entries.
        let lifeline = usize::from(staging.lifeline == Lifeline::Passed);
        let root = match &staging.root {
            RootKind::Dir | RootKind::Shifted => 1,
            RootKind::Overlay(_) => 2,
        };
        let at = 1 + lifeline + root + staging.bind_targets.len() + staging.attachments.len();
        let bundle = match staging.bundle {
            Bundle::None => None,
            Bundle::Passed => Some((at < fds.len()).then(|| fds.remove(at))?),
        };
        let entry = Some(staging.entry);
        let targets = Targets { binds: &staging.bind_targets, attachments: &staging.attachments };
        let (lifeline, root) = (staging.lifeline, &staging.root);
        let received = Received::sort(lifeline, root, targets, entry, Vec::new(), fds)?;
        Some(Self { received, bundle })
    }

    fn enter_groups(&mut self) -> io::Result<()> {
        for tasks in std::mem::take(&mut self.received.tasks) {
            rustix::io::write(tasks, b"0")?;
        }
        if let Some(group) = self.received.into_cgroup.take() {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let procs = rustix::fs::openat(group, "cgroup.procs", flags, Mode::empty())?;
            rustix::io::write(procs, b"0")?;
        }
        Ok(())
    }
}

/// The tool's input.
struct Set {
    root: OwnedFd,
    binds: Vec<(String, OwnedFd)>,
    attachments: Vec<(Attachment, OwnedFd)>,
    bundle: Option<OwnedFd>,
    users: OwnedFd,
}

pub fn private_mounts() -> io::Result<()> {
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)? };
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?)
}

/// Puts everything in its place, and creates a null device for the tool's stdio: crun changes the owner of that device
/// to the sandbox's root, which must not happen to the host's.
fn lay_out(staging: &Staging, set: &Set) -> io::Result<OwnedFd> {
    let plain = Mode::from_raw_mode(0o755);
    let scratch = mount::new_filesystem(
        "tmpfs",
        &[("mode", "755"), ("size", SCRATCH_BYTES)],
        MountAttrFlags::MOUNT_ATTR_NOSUID,
    )?;
    mount::attach(&scratch, "/tmp")?;
    let null = Mode::from_raw_mode(0o666);
    mknodat(&scratch, "null", FileType::CharacterDevice, null, makedev(1, 3))?;
    for dir in [ROOT, BUNDLE, STATE, EMPTY] {
        mkdir(dir, plain)?;
    }
    if staging.identity == Identity::Sandbox {
        std::os::unix::fs::chown(STATE, Some(staging.id_base), Some(staging.id_base))?;
    }
    mount::attach(&set.root, ROOT)?;
    rustix::process::fchdir(&set.root)?;
    for (target, bind) in &set.binds {
        mount::attach(bind, target.as_str())?;
        mount::cover_with_own_inodes(target, EMPTY)?;
    }
    if let Dev::Stage { shm_bytes } = staging.dev {
        attach_dev(staging.id_base, shm_bytes)?;
    }
    set.attachments.iter().try_for_each(|(attachment, mount)| attachment.attach(mount))?;
    rustix::process::chdir("/")?;
    drop(open(USERS, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)?);
    mount_bind(format!("/proc/self/fd/{}", set.users.as_raw_fd()), USERS)?;
    if let Some(bundle) = &set.bundle {
        mount::set_attributes(bundle, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        mount::attach(bundle, BUNDLE)?;
    }
    Ok(open("/tmp/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Relative to the working directory, which is the root.
fn attach_dev(id_base: u32, shm_bytes: u64) -> io::Result<()> {
    let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let devices = mount::new_filesystem("tmpfs", &[("mode", "755"), ("size", "64k")], quiet)?;
    dev::fill(&devices)?;
    mount::set_attributes(&devices, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    mount::attach(&devices, "dev")?;
    mount::attach(dev::terminals(id_base + dev::TTY_GID)?, "dev/pts")?;
    mount::attach(dev::shared_memory(id_base, shm_bytes)?, "dev/shm")
}

/// The groups are ours to manage. A tool that cannot write to them leaves them alone, and one that sees both versions
/// (a hybrid layout) may refuse to work at all: then only the first is visible.
fn hide_groups() -> io::Result<()> {
    let mounts = cgroup_mounts()?;
    let hybrid = mounts.iter().any(|mount| matches!(mount.kind, MountKind::V1(_)));
    for found in mounts {
        if hybrid && found.kind == MountKind::V2 {
            unmount(&found.path, UnmountFlags::DETACH)?;
            continue;
        }
        let group = open(&found.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        mount::set_attributes(&group, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    }
    Ok(())
}

/// None of our descendants can signal processes outside, or reach their abstract sockets.
pub fn restrict() -> io::Result<()> {
    if landlock::available() { Ruleset::of_scopes()?.restrict() } else { Ok(()) }
}

/// The filter as a file, for a tool that loads it.
pub fn filter() -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("filter", MemfdFlags::CLOEXEC)?;
    let bytes = seccomp::Filter::new().bytes();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file)
}

/// The descriptors that the tool inherits.
pub struct Given {
    pub null: OwnedFd,
    pub listener: OwnedFd,
    pub guest: OwnedFd,
    pub lifeline: Option<OwnedFd>,
    pub filter: Option<OwnedFd>,
}

impl Given {
    /// Moves each descriptor to its number; stderr stays as the daemon set it.
    pub fn arrange(self, meeting: Meeting) -> io::Result<()> {
        // The sources are moved out of the way first, because they may have the numbers of targets.
        let high = |fd: BorrowedFd<'_>| rustix::io::fcntl_dupfd_cloexec(fd, FIRST_FREE_FD);
        let socket = high(rustix::stdio::stdin().as_fd())?;
        let mut plan = vec![(SOCKET_FD, socket), (1, high(self.null.as_fd())?)];
        match meeting {
            Meeting::Listen => {
                plan.push((0, high(self.null.as_fd())?));
                plan.push((LISTEN_FD, high(self.listener.as_fd())?));
                plan.push((GUEST_FD, high(self.guest.as_fd())?));
                if let Some(lifeline) = &self.lifeline {
                    plan.push((LIFELINE_FD, high(lifeline.as_fd())?));
                }
            }
            Meeting::Dial => plan.push((0, high(self.listener.as_fd())?)),
        }
        if let Some(filter) = &self.filter {
            plan.push((FILTER_FD as RawFd, high(filter.as_fd())?));
        }
        // All other descriptors are closed by the exec, whatever their number.
        mark_close_on_exec(LISTEN_FD as u32)?;
        for (target, source) in &plan {
            // SAFETY: this process owns all its descriptors, and those that are replaced here are
            // not used again; `self` is forgotten below for that reason.
            if unsafe { libc::dup2(source.as_raw_fd(), *target) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        if meeting == Meeting::Dial {
            mark_close_on_exec(LISTEN_FD as u32)?;
        }
        // Their numbers may belong to copies now, which dropping them would close.
        std::mem::forget(self);
        Ok(())
    }
}

fn mark_close_on_exec(first: u32) -> io::Result<()> {
    // SAFETY: takes numbers only; descriptors are marked, not closed.
    let marked =
        unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    match marked {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Becomes the tool, with an empty environment; returns only on failure.
pub fn execute(program: &str, arguments: &[String]) -> io::Error {
    Command::new(program).args(arguments).env_clear().exec()
}

/// Tests execute their own binary as the stage, with this argument. Their harness runs tests outside of its main
/// thread, and only a single-threaded process can enter a user namespace: so this runs before it.
#[cfg(any(test, feature = "in-tests"))]
pub mod before_main {
    pub const ARGUMENT: &str = "act-as-stage";

    // SAFETY: the C library calls what is in this section with the program's arguments, once, after
    // the standard library has noted them down.
    #[unsafe(link_section = ".init_array")]
    #[used]
    static ACT: extern "C" fn() = act;

    extern "C" fn act() {
        if std::env::args_os().nth(1).is_some_and(|argument| argument == ARGUMENT) {
            super::main();
            // SAFETY: ends this process, in which nothing else has begun yet.
            unsafe { libc::_exit(1) };
        }
    }
}
