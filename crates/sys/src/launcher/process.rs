//! The launcher's own process: set-up, then one request after the other.

#![expect(unsafe_code, reason = "shared memory, signals and memfd seals have no safe wrappers")]

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::bare::{self, LauncherRights};
use super::child::{Child, Ids, Report, spawn};
use super::received::{Received, Targets, set_properties};
use super::{Answer, Launch, Lifeline, MESSAGE_MAX_BYTES, Means, Request};
use crate::namespace::{self, ChildStack, IdMap, USER_ID};
use crate::{landlock, mount, sealed, seccomp, socket};
use sandkeep_core::limits;

/// Number of prepared network namespaces.
const NETWORKS_READY: usize = 4;
/// Number of prepared user namespaces.
const USERS_READY: usize = 8;
const STACK_BYTES: usize = 256 * 1024;
/// The ids of a sandbox in a user namespace that has only one itself.
const ONE_ID: IdMap = IdMap::single(USER_ID);

/// Runs the launcher on the socket at its stdin, until the daemon is gone. If the daemon ends without a goodbye, the
/// launcher becomes `heir`, if there is one: only it can clean up after the daemon of a `run`.
pub fn main(heir: Option<Command>) -> ExitCode {
    match launch_and_inherit(heir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandkeep launcher: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The same in a process with one thread, because only such a process can enter a user namespace: a test has more.
#[cfg(any(test, feature = "in-tests"))]
pub fn main_on_one_thread() -> ExitCode {
    // SAFETY: the other thread of a test binary waits for this one and holds no lock that the child
    // could need.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended = main(None);
        // SAFETY: ends this process at once, running nothing of the parent's.
        unsafe { libc::_exit(i32::from(ended != ExitCode::SUCCESS)) }
    }
    let ended = rustix::process::waitpid(
        rustix::process::Pid::from_raw(pid),
        rustix::process::WaitOptions::empty(),
    );
    match ended {
        Ok(Some((_, status))) if status.exit_status() == Some(0) => ExitCode::SUCCESS,
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

fn launch_and_inherit(heir: Option<Command>) -> io::Result<()> {
    let mut process = match Process::set_up() {
        Ok(process) => process,
        Err((step, error)) => return refuse(step, error),
    };
    let ending = match process.serve() {
        // A daemon that was killed with an unread answer, or before one, shows as these errors.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ending::Vanished,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ending::Vanished,
        ended => ended?,
    };
    match (ending, heir) {
        (Ending::Vanished, Some(heir)) => become_heir(heir, &process.host_mounts),
        (Ending::Vanished, None) | (Ending::Goodbye, _) => Ok(()),
    }
}

/// Answers that no sandbox can be created here.
fn refuse(step: &str, error: io::Error) -> io::Result<()> {
    let socket = rustix::stdio::stdin();
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    socket::receive_with_fds(socket, &mut vec![0; MESSAGE_MAX_BYTES])?;
    tell(socket, &Answer::Failed { step: step.to_owned(), errno }, &[])?;
    Err(error)
}

/// How the daemon ended.
enum Ending {
    Goodbye,
    Vanished,
}

fn become_heir(mut heir: Command, host_mounts: &OwnedFd) -> io::Result<()> {
    move_into_link_name_space(host_mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    // SAFETY: the default disposition is what every program expects to start with.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    Err(heir.stdin(Stdio::null()).exec())
}

struct Process {
    socket: BorrowedFd<'static>,
    /// The host's mounts or, in a user namespace, our copy of them.
    host_mounts: OwnedFd,
    own_mounts: OwnedFd,
    /// The host's /proc, which is not mounted in our namespace.
    proc: OwnedFd,
    home_network: OwnedFd,
    guest: OwnedFd,
    filter: seccomp::Filter,
    landlock: bool,
    masks: Vec<bare::Mask>,
    stack: ChildStack,
    report: &'static Report,
    networks: Vec<OwnedFd>,
    users: Vec<(IdMap, OwnedFd)>,
    /// The ids for which to prepare user namespaces while idle.
    wanted: Vec<IdMap>,
}

impl Process {
    /// An error has the name of the failed step.
    fn set_up() -> Result<Self, (&'static str, io::Error)> {
        let standing = LauncherRights::own();
        if standing == LauncherRights::User {
            namespace::enter_user().map_err(|error| ("enter a user namespace", error))?;
        }
        Self::set_up_as(standing).map_err(|error| ("set up its namespaces", error))
    }

    fn set_up_as(standing: LauncherRights) -> io::Result<Self> {
        rustix::thread::set_name(c"sandkeep-launch")?;
        // All that it makes is for sandboxes: the daemon's may be narrower.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        // SAFETY: ignoring SIGCHLD only makes the kernel reap our children by itself.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let proc = open("/proc", read | OFlags::DIRECTORY, Mode::empty())?;
        if standing == LauncherRights::User {
            namespace::leave_host()?;
        }
        let home_network = namespace::open(proc.as_fd(), "thread-self/ns/net")?;
        let host_mounts = namespace::open(proc.as_fd(), "thread-self/ns/mnt")?;
        let guest = guest_image()?;
        bare::shrink_namespace(standing)?;
        Ok(Self {
            socket: rustix::stdio::stdin(),
            host_mounts,
            own_mounts: namespace::open(proc.as_fd(), "thread-self/ns/mnt")?,
            masks: bare::masks(&proc),
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
                // Namespaces that could not be prepared are created, or refused, on request.
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
                Ok(Request::Hello) => tell(self.socket, &Answer::Ready, &[])?,
                Ok(Request::Launch(launch)) => self.answer(*launch, fds)?,
                Ok(Request::Goodbye) => return Ok(Ending::Goodbye),
                Err(_) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    fn answer(&mut self, launch: Launch, fds: Vec<OwnedFd>) -> io::Result<()> {
        if let Err((step, errno)) = self.launch(&launch, fds) {
            tell(self.socket, &Answer::Failed { step: step.to_owned(), errno }, &[])?;
        }
        self.wanted = match launch.means {
            Means::Root { next_id_bases, .. } => {
                next_id_bases.into_iter().map(IdMap::range).collect()
            }
            Means::User { .. } => vec![ONE_ID],
        };
        Ok(())
    }

    /// Launches, and sends the answer. A returned error was not sent yet.
    fn launch(&mut self, launch: &Launch, fds: Vec<OwnedFd>) -> Result<(), (&'static str, i32)> {
        let during = |step: &'static str| {
            move |error: io::Error| (step, error.raw_os_error().unwrap_or(libc::EIO))
        };
        let network = self.network().map_err(during("make a network namespace"))?;
        let (ids, map) = match &launch.means {
            Means::Root { id_base, .. } => (Ids::Range { base: *id_base }, IdMap::range(*id_base)),
            Means::User { .. } => (Ids::Single, ONE_ID),
        };
        let users = self.users(map).map_err(during("make a user namespace"))?;
        let cloned =
            self.clone_named(&launch.means).map_err(during("open its root and template"))?;
        let entry = match &launch.means {
            Means::Root { entry, .. } => Some(*entry),
            Means::User { .. } => None,
        };
        let targets = Targets { binds: &launch.bind_targets, attachments: &launch.attachments };
        let received = Received::sort(launch.lifeline, &launch.root, targets, entry, cloned, fds)
            .ok_or(("receive its descriptors", libc::EPROTO))?;
        set_properties(&received, ids, users.as_fd()).map_err(during("map its ids"))?;
        let root = received.root.mount(users.as_fd(), ids, bare::NEW_ROOT, &mut self.stack);
        let root = root.map_err(during("mount the overlay of its root"))?;
        let dev = bare::dev_mount().map_err(during("prepare /dev"))?;
        let masks = bare::mask_mounts(&self.masks).map_err(during("prepare what masks /proc"))?;
        self.report.clear();
        let child = Child {
            hostname: &launch.hostname,
            ids,
            privilege: launch.privilege,
            shm_bytes: launch.shm_bytes,
            root,
            binds: received.binds,
            attachments: received.attachments,
            dev,
            masks,
            network,
            users,
            tasks: received.tasks,
            into_cgroup: received.into_cgroup,
            listener: received.listener,
            lifeline: received.lifeline,
            guest: self.guest.as_fd(),
            arguments: arguments(launch).ok_or(("name its guest", libc::EINVAL))?,
            filter: &self.filter,
            landlock: self.landlock,
            report: self.report,
        };
        let (pid, pidfd) = spawn(&child, &mut self.stack).map_err(during("clone"))?;
        if let Some(failure) = self.report.failure() {
            namespace::wait_gone(&pidfd).map_err(during("end a failed launch"))?;
            return Err(failure);
        }
        // Before the child's descriptors are closed here, which takes a while and delays nobody.
        tell(self.socket, &Answer::Launched { pid }, &[pidfd.as_fd()]).map_err(during("tell so"))
    }

    fn network(&mut self) -> io::Result<OwnedFd> {
        match self.networks.pop() {
            Some(ready) => Ok(ready),
            None => namespace::network(self.proc.as_fd(), self.home_network.as_fd()),
        }
    }

    fn users(&mut self, ids: IdMap) -> io::Result<OwnedFd> {
        match self.users.iter().position(|(ready, _)| *ready == ids) {
            Some(at) => Ok(self.users.swap_remove(at).1),
            None => namespace::user(self.proc.as_fd(), &mut self.stack, ids),
        }
    }

    /// Trees without descriptors are looked up in the host's mounts: the root, the binds, then the attachments.
    fn clone_named(&self, means: &Means) -> io::Result<Vec<OwnedFd>> {
        let Means::User { roots, binds, attachments, .. } = means else { return Ok(Vec::new()) };
        let kind = Some(LinkNameSpaceType::Mount);
        move_into_link_name_space(self.host_mounts.as_fd(), kind)?;
        let path = |bytes: &Vec<u8>| mount::clone_tree(Path::new(OsStr::from_bytes(bytes)));
        let cloned = roots.iter().chain(binds).chain(attachments).map(path).collect();
        move_into_link_name_space(self.own_mounts.as_fd(), kind)?;
        cloned
    }

    /// Prepares namespaces, one at a time, while no request waits. Starts only after a quiet period: right after a
    /// launch the new guest and the daemon need the CPUs.
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
            let Some(ids) = self.wanted.pop() else { return Ok(()) };
            if self.users.iter().any(|(ready, _)| *ready == ids) {
                continue;
            }
            if self.users.len() >= USERS_READY {
                self.users.remove(0);
            }
            let made = namespace::user(self.proc.as_fd(), &mut self.stack, ids)?;
            self.users.push((ids, made));
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

/// The guest's command line.
fn arguments(launch: &Launch) -> Option<Vec<CString>> {
    let mut words = vec!["sandkeep-guest", "--listen-fd", "3"];
    match launch.lifeline {
        Lifeline::None => {}
        Lifeline::Passed => words.extend(["--lifeline-fd", "4"]),
    }
    match &launch.means {
        Means::Root { .. } => {}
        Means::User { badge, .. } => words.extend(["--badge", badge]),
    }
    words.into_iter().map(|word| CString::new(word).ok()).collect()
}

/// The guest as an unnamed, immutable executable.
pub fn guest_image() -> io::Result<OwnedFd> {
    let memfd = sealed::program("sandkeep-guest", sandkeep_embedded::GUEST)?;
    // Above the fixed descriptor numbers of the guest.
    Ok(rustix::io::fcntl_dupfd_cloexec(&memfd, super::child::FIRST_FREE_FD)?)
}

/// A page that is shared with a child even if it has only a copy of our memory.
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
