//! The launcher's own process: set-up, then one request after the other.

#![expect(unsafe_code, reason = "shared memory, signals and memfd seals have no safe wrappers")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags, open};
use rustix::mount::MountAttrFlags;

use super::child::{Child, MASKED, Report, spawn};
use super::{Answer, EntryKind, Launch, Lifeline, MESSAGE_MAX_BYTES, Request};
use crate::guest::image;
use crate::limits;
use crate::sys::namespace::{self, ChildStack};
use crate::sys::{dev, landlock, mount, seccomp, socket};

/// Network namespaces kept ready.
const NETWORKS_READY: usize = 4;
/// User namespaces kept ready.
const USERS_READY: usize = 8;
const STACK_BYTES: usize = 256 * 1024;

/// Runs the launcher on the socket that is its stdin, until the daemon goes away. If that goes
/// without a goodbye, the launcher becomes `heir`, if there is one: the daemon of a `run` has nobody
/// else to clear up after it.
pub fn main(heir: Option<Command>) -> ExitCode {
    match launch_and_inherit(heir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandkeep launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

fn launch_and_inherit(heir: Option<Command>) -> io::Result<()> {
    let read = OFlags::RDONLY | OFlags::CLOEXEC;
    let host_mounts = open("/proc/self/ns/mnt", read, Mode::empty())?;
    let ending = Process::set_up()?.serve()?;
    match (ending, heir) {
        (Ending::Vanished, Some(heir)) => become_heir(heir, &host_mounts),
        (Ending::Vanished, None) | (Ending::Goodbye, _) => Ok(()),
    }
}

/// How the daemon left.
enum Ending {
    Goodbye,
    Vanished,
}

fn become_heir(mut heir: Command, host_mounts: &OwnedFd) -> io::Result<()> {
    let kind = Some(rustix::thread::LinkNameSpaceType::Mount);
    rustix::thread::move_into_link_name_space(host_mounts.as_fd(), kind)?;
    // SAFETY: the default disposition is what every program expects to start with.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    Err(heir.stdin(Stdio::null()).exec())
}

struct Process {
    socket: BorrowedFd<'static>,
    /// The host's /proc, which is not mounted in our namespace.
    proc: OwnedFd,
    home_network: OwnedFd,
    guest: OwnedFd,
    filter: seccomp::Filter,
    landlock: bool,
    stack: ChildStack,
    report: &'static Report,
    networks: Vec<OwnedFd>,
    users: Vec<(u32, OwnedFd)>,
    /// Ranges whose user namespaces are to be made when nobody waits.
    wanted: Vec<u32>,
}

impl Process {
    fn set_up() -> io::Result<Self> {
        rustix::thread::set_name(c"sandkeep-launch")?;
        // SAFETY: ignoring SIGCHLD only makes the kernel reap our children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let proc = open("/proc", read | OFlags::DIRECTORY, Mode::empty())?;
        let home_network = namespace::open(proc.as_fd(), "thread-self/ns/net")?;
        let guest = guest_image()?;
        shrink_namespace()?;
        Ok(Self {
            socket: rustix::stdio::stdin(),
            proc,
            home_network,
            guest,
            filter: seccomp::Filter::new(),
            landlock: landlock::available(),
            stack: ChildStack::new(STACK_BYTES),
            report: shared_report()?,
            networks: Vec::new(),
            users: Vec::new(),
            wanted: Vec::new(),
        })
    }

    fn serve(&mut self) -> io::Result<Ending> {
        let mut buffer = vec![0; MESSAGE_MAX_BYTES];
        loop {
            if let Err(error) = self.prepare_while_idle() {
                // What could not be made ahead is made, or refused, when it is asked for.
                eprintln!("sandkeep launcher: cannot make namespaces ahead: {error}");
            }
            let (len, fds) = match socket::receive_with_fds(self.socket, &mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                received => received?,
            };
            if len == 0 {
                return Ok(Ending::Vanished);
            }
            match postcard::from_bytes(&buffer[..len]) {
                Ok(Request::Launch(launch)) => self.answer(launch, fds)?,
                Ok(Request::Goodbye) => return Ok(Ending::Goodbye),
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn answer(&mut self, launch: Launch, fds: Vec<OwnedFd>) -> io::Result<()> {
        if let Err((step, errno)) = self.launch(&launch, fds) {
            tell(self.socket, &Answer::Failed { step: step.to_owned(), errno }, &[])?;
        }
        self.wanted = launch.next_id_bases;
        Ok(())
    }

    /// Launches, and tells so. An error was not told yet.
    fn launch(&mut self, launch: &Launch, fds: Vec<OwnedFd>) -> Result<(), (&'static str, i32)> {
        let during = |step: &'static str| {
            move |error: io::Error| (step, error.raw_os_error().unwrap_or(libc::EIO))
        };
        let network = self.network().map_err(during("make a network namespace"))?;
        let users = self.users(launch.id_base).map_err(during("make a user namespace"))?;
        let received = Received::sort(launch.lifeline, &launch.bind_targets, launch.entry, fds)
            .ok_or(("receive its descriptors", libc::EPROTO))?;
        set_properties(&received, users.as_fd()).map_err(during("map its ids"))?;
        let (dev, nulls) = dev_mounts().map_err(during("prepare /dev"))?;
        self.report.clear();
        let child = Child {
            hostname: &launch.hostname,
            id_base: launch.id_base,
            privilege: launch.privilege,
            shm_bytes: launch.shm_bytes,
            root: received.root,
            binds: received.binds,
            dev,
            nulls,
            network,
            users,
            tasks: received.tasks,
            into_cgroup: received.into_cgroup,
            listener: received.listener,
            lifeline: received.lifeline,
            guest: self.guest.as_fd(),
            filter: &self.filter,
            landlock: self.landlock,
            report: self.report,
        };
        let (pid, pidfd) = spawn(&child, &mut self.stack).map_err(during("clone"))?;
        if let Some(failure) = self.report.failure() {
            namespace::wait_gone(&pidfd).map_err(during("end a failed launch"))?;
            return Err(failure);
        }
        // Before the child's descriptors are closed here, which takes a while and nobody waits for.
        tell(self.socket, &Answer::Launched { pid }, &[pidfd.as_fd()]).map_err(during("tell so"))
    }

    fn network(&mut self) -> io::Result<OwnedFd> {
        match self.networks.pop() {
            Some(ready) => Ok(ready),
            None => namespace::network(self.proc.as_fd(), self.home_network.as_fd()),
        }
    }

    fn users(&mut self, base: u32) -> io::Result<OwnedFd> {
        match self.users.iter().position(|(ready, _)| *ready == base) {
            Some(at) => Ok(self.users.swap_remove(at).1),
            None => namespace::user(self.proc.as_fd(), &mut self.stack, base),
        }
    }

    /// Makes namespaces ahead, one at a time, as long as no request waits. It begins only after a
    /// while of quiet: right after a launch the new guest and the daemon need the processors.
    fn prepare_while_idle(&mut self) -> io::Result<()> {
        let mut patience = limits::LAUNCHER_QUIET;
        loop {
            if self.networks.len() >= NETWORKS_READY && self.wanted.is_empty() {
                return Ok(());
            }
            if self.request_comes_within(patience)? {
                return Ok(());
            }
            patience = Duration::ZERO;
            if self.networks.len() < NETWORKS_READY {
                let made = namespace::network(self.proc.as_fd(), self.home_network.as_fd())?;
                self.networks.push(made);
                continue;
            }
            let Some(base) = self.wanted.pop() else { return Ok(()) };
            if self.users.iter().any(|(ready, _)| *ready == base) {
                continue;
            }
            if self.users.len() >= USERS_READY {
                self.users.remove(0);
            }
            let made = namespace::user(self.proc.as_fd(), &mut self.stack, base)?;
            self.users.push((base, made));
        }
    }

    fn request_comes_within(&self, patience: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        Ok(poll(&mut fds, Some(&patience))? > 0)
    }
}

fn tell(socket: BorrowedFd<'_>, answer: &Answer, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = postcard::to_allocvec(answer).map_err(io::Error::other)?;
    socket::send_with_fds(socket, &bytes, fds).map(drop)
}

/// The descriptors of a request, told apart.
pub struct Received {
    pub root: OwnedFd,
    pub listener: OwnedFd,
    pub lifeline: Option<OwnedFd>,
    pub binds: Vec<(CString, OwnedFd)>,
    pub tasks: Vec<OwnedFd>,
    pub into_cgroup: Option<OwnedFd>,
}

impl Received {
    pub fn sort(
        lifeline: Lifeline,
        bind_targets: &[String],
        entry: EntryKind,
        fds: Vec<OwnedFd>,
    ) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (root, listener) = (fds.next()?, fds.next()?);
        let lifeline = match lifeline {
            Lifeline::None => None,
            Lifeline::Passed => Some(fds.next()?),
        };
        let mut binds = Vec::with_capacity(bind_targets.len());
        for target in bind_targets {
            binds.push((CString::new(target.as_str()).ok()?, fds.next()?));
        }
        let (tasks, into_cgroup) = match entry {
            EntryKind::V1 => (fds.collect(), None),
            EntryKind::V2 => (Vec::new(), Some(fds.next()?)),
        };
        Some(Self { root, listener, lifeline, binds, tasks, into_cgroup })
    }
}

/// The root is the sandbox's own, so its ids are shifted. Binds are the host's and are not: as root
/// inside owns nothing there, it reads only what everybody may.
pub fn set_properties(received: &Received, users: BorrowedFd<'_>) -> io::Result<()> {
    mount::set_id_map(&received.root, MountAttrFlags::MOUNT_ATTR_NODEV, users)?;
    let read_only = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    received.binds.iter().try_for_each(|(_, bind)| mount::set_attributes(bind, read_only))
}

/// A mount of the shared /dev, and one of its null for each masked file.
fn dev_mounts() -> io::Result<(OwnedFd, Vec<OwnedFd>)> {
    let dev = mount::clone_path("/dev".as_ref())?;
    let nulls = MASKED.iter().map(|_| mount::clone_path("/dev/null".as_ref()));
    Ok((dev, nulls.collect::<io::Result<_>>()?))
}

/// The guest as an executable that no file system holds and nobody can change.
pub fn guest_image() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // MFD_EXEC states the intent and is unknown before Linux 6.3.
    let memfd = rustix::fs::memfd_create("sandkeep-guest", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create("sandkeep-guest", flags))?;
    let mut rest = image::BYTES;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&memfd, rest)?..];
    }
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&memfd, seals)?;
    // Out of the way of the descriptors that the guest expects at fixed places.
    Ok(rustix::io::fcntl_dupfd_cloexec(&memfd, super::child::FIRST_FREE_FD)?)
}

/// A page that a child sees even if it has only a copy of our memory.
fn shared_report() -> io::Result<&'static Report> {
    // SAFETY: a fresh anonymous mapping, larger than a report, never unmapped; all-zero bytes are a
    // valid report, whose fields are atomics.
    unsafe {
        let page = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            size_of::<Report>(),
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::SHARED,
        )?;
        Ok(&*page.cast::<Report>())
    }
}

/// Leaves the host's mounts for a namespace with an empty root and /dev.
fn shrink_namespace() -> io::Result<()> {
    use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
    // SAFETY: only CLONE_FILES would endanger descriptors of other threads; it is not asked for.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS)? };
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let root = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    // Any directory will do to hang the new root up; this one always exists.
    mount::attach(&root, "/proc")?;
    rustix::process::fchdir(&root)?;
    rustix::fs::mkdir("dev", Mode::from_raw_mode(0o755))?;
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    rustix::process::chdir("/")?;
    let devices = small_tmpfs(MountAttrFlags::MOUNT_ATTR_NOEXEC)?;
    mount::attach(&devices, "/dev")?;
    // Real device nodes, made once and shared read-only by all sandboxes.
    dev::fill(&devices)?;
    mount::set_attributes(&devices, MountAttrFlags::MOUNT_ATTR_RDONLY)?;
    mount::set_attributes(&root, MountAttrFlags::MOUNT_ATTR_RDONLY)
}

fn small_tmpfs(attributes: MountAttrFlags) -> io::Result<OwnedFd> {
    let attributes = attributes | MountAttrFlags::MOUNT_ATTR_NOSUID;
    mount::new_filesystem("tmpfs", &[("mode", "755"), ("size", "64k")], attributes)
}
