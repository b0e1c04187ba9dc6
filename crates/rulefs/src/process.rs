//! The process of a mount, and its keeper.
//!
//! ```text
//! daemon ──Setup + tree + socket──▶ keeper ──fork──▶ server ──Started + mount──▶ daemon
//!                                     │ waits           │ answers the kernel and the daemon
//!                                     ◀────killed───────┘
//!                                     ──fork──▶ next server, on the same /dev/fuse
//! ```
//!
//! Both are this same binary. They have the tree as their root and nothing else, no network, and only the rights that
//! serving needs. They belong to no daemon: one that is killed leaves them alone, and the next one finds them by their
//! socket. The keeper holds the connection, but no file of the mount: it could otherwise wait for itself.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use libc::c_long;
use rustix::fs::Mode as FileMode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use sandkeep_core::limits;
use sandkeep_core::rules::Rules;
use sandkeep_sys::fork::{self, Forked};
use sandkeep_sys::{enclosure, fuse, socket};

use crate::control::{self, Ids, Mode, Setup, Started};
use crate::fs::{Epochs, Filesystem};
use crate::notices::Notices;
use crate::{negotiate, serve};

/// Acting for the users of a sandbox on their files: they own them, the server does not.
const CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Only for the kernel's permission to read a file by itself.
const CAPABILITIES_PASSTHROUGH: CapabilitySet = CAPABILITIES.union(CapabilitySet::SYS_ADMIN);

/// Everything that a server, its threads and its keeper call.
const CALLS: &[c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_mknodat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat2,
    libc::SYS_readlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_copy_file_range,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_flistxattr,
    libc::SYS_fremovexattr,
    libc::SYS_ioctl,
    libc::SYS_fcntl,
    libc::SYS_dup,
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_setsockopt,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_wait4,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_tgkill,
    libc::SYS_prctl,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
];

/// Serves a directory, on the request that comes through the socket at stdin, until the mount or its keeper is gone.
/// The process must have one thread.
pub fn main() -> ExitCode {
    let daemon = rustix::stdio::stdin();
    let mut buffer = vec![0; limits::RULEFS_MESSAGE_MAX_BYTES];
    let Ok((len, fds)) = socket::receive_with_fds(daemon, &mut buffer) else {
        return ExitCode::FAILURE;
    };
    match start(&buffer[..len], fds).and_then(|kept| kept.keep()) {
        Ok(()) => ExitCode::SUCCESS,
        Err((step, error)) => {
            refuse(step, &error);
            ExitCode::FAILURE
        }
    }
}

type Failure = (&'static str, io::Error);

fn during(step: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| (step, error)
}

/// Answers that there is no mount. Nobody listens after a start.
fn refuse(step: &str, error: &io::Error) {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let failed = Started::Failed { step: step.to_owned(), errno };
    if let Ok(message) = control::encode(&failed) {
        let _ = socket::send_with_fds(rustix::stdio::stdin(), &message, &[]);
    }
}

/// What the keeper holds for its servers.
struct Kept {
    connection: Arc<OwnedFd>,
    tree: OwnedFd,
    listener: OwnedFd,
    rules: Rules,
    mode: Mode,
    ids: Ids,
    /// Until the first server has sent it.
    mount: Option<OwnedFd>,
    number: u32,
}

fn start(setup: &[u8], fds: Vec<OwnedFd>) -> Result<Kept, Failure> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EPROTO);
    let setup: Setup = control::decode(setup).map_err(invalid).map_err(during("read its setup"))?;
    let rules =
        Rules::try_from(setup.rules).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let rules = rules.map_err(during("read the rules"))?;
    let mut fds = fds.into_iter();
    let (Some(tree), Some(listener)) = (fds.next(), fds.next()) else {
        return Err(("receive its descriptors", io::Error::from_raw_os_error(libc::EPROTO)));
    };
    can_hold_rules(&tree).map_err(during("use a file system that ignores case or is remote"))?;
    let connection = Arc::new(fuse::open().map_err(during("open /dev/fuse"))?);
    let mount = fuse::mount(&connection).map_err(during("mount a FUSE file system"))?;
    let number = fuse::connection_of(&mount).map_err(during("find its connection"))?;
    // The peer that a daemon sees is whoever listens.
    rustix::net::listen(&listener, 16).map_err(io::Error::from).map_err(during("listen"))?;
    enclosure::enter(&tree).map_err(during("enter its own namespaces"))?;
    restrict(&tree, setup.mode).map_err(during("give up its rights"))?;
    let Setup { mode, ids, .. } = setup;
    Ok(Kept { connection, tree, listener, rules, mode, ids, mount: Some(mount), number })
}

fn restrict(tree: &OwnedFd, mode: Mode) -> io::Result<()> {
    rustix::process::umask(FileMode::empty());
    let hard = getrlimit(Resource::Nofile).maximum;
    let wanted = hard.unwrap_or(limits::RULEFS_DESCRIPTORS_MAX).min(limits::RULEFS_DESCRIPTORS_MAX);
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) })?;
    let capabilities = match mode {
        Mode::ZeroMessage => CAPABILITIES,
        Mode::Passthrough => CAPABILITIES_PASSTHROUGH,
    };
    enclosure::restrict(tree, capabilities, CALLS)
}

/// Rules are about the bytes of names. A file system that finds a file by another spelling would show hidden ones.
fn can_hold_rules(tree: &OwnedFd) -> io::Result<()> {
    // FAT, exFAT, NTFS (two drivers), CIFS, SMB2, HFS+, HFS, NFS.
    const OTHERS: [u64; 9] = [
        0x4d44,
        0x2011_bab0,
        0x5346_544e,
        0x7366_746e,
        0xff53_4d42,
        0xfe53_4d42,
        0x482b,
        0x4244,
        0x6969,
    ];
    let kind = rustix::fs::fstatfs(tree)?.f_type as u64 & 0xffff_ffff;
    match OTHERS.contains(&kind) {
        true => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        false => Ok(()),
    }
}

impl Kept {
    /// Runs one server, and waits for its end.
    fn keep(mut self) -> Result<(), Failure> {
        let child = match fork::fork().map_err(during("start a server"))? {
            Forked::Child => return self.serve(),
            Forked::Parent { child } => child,
        };
        drop(self.mount.take());
        let nowhere = rustix::pipe::pipe()
            .map_err(io::Error::from)
            .map_err(during("let go of the daemon"))?;
        rustix::stdio::dup2_stdin(&nowhere.0)
            .map_err(io::Error::from)
            .map_err(during("let go of the daemon"))?;
        fork::wait(child).map_err(during("wait for its server")).map(drop)
    }

    fn serve(mut self) -> Result<(), Failure> {
        let negotiated = negotiate::initialize(&self.connection, self.mode)
            .map_err(during("agree with the kernel on how to serve"))?;
        let mount = self.mount.take().ok_or(io::ErrorKind::NotFound.into());
        let mount = mount.map_err(during("find its mount"))?;
        let notices = Arc::new(Notices::new(Arc::clone(&self.connection), negotiated));
        let fs = self.filesystem(negotiated, &notices).map_err(during("open the directory"))?;
        let threads = self.start_threads(&fs, &notices).map_err(during("start its threads"))?;
        let ready = Started::Ready { connection: self.number };
        let ready = control::encode(&ready).map_err(during("encode its answer"))?;
        socket::send_with_fds(rustix::stdio::stdin(), &ready, &[mount.as_fd()])
            .map_err(during("answer the daemon"))?;
        drop(mount);
        wait_for(threads);
        Ok(())
    }

    fn filesystem(&self, epochs: Epochs, notices: &Arc<Notices>) -> io::Result<Arc<Filesystem>> {
        let connection = (Arc::clone(&self.connection), epochs);
        let tree = self.tree.try_clone()?;
        let (rules, served) = (self.rules.clone(), (self.mode, self.ids));
        Ok(Arc::new(Filesystem::new(tree, rules, served, connection, Arc::clone(notices))?))
    }

    fn start_threads(
        &self,
        fs: &Arc<Filesystem>,
        notices: &Arc<Notices>,
    ) -> io::Result<Vec<std::thread::JoinHandle<()>>> {
        const STACK_BYTES: usize = 256 * 1024;
        let thread =
            |name: &str| std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let mut threads = Vec::new();
        for _ in 0..limits::RULEFS_THREADS {
            let (connection, fs) = (Arc::clone(&self.connection), Arc::clone(fs));
            threads.push(thread("requests").spawn(move || {
                serve::answer_requests(&connection, &fs);
                // The connection has ended, for all of us.
                std::process::exit(0);
            })?);
        }
        let teller = Arc::clone(notices);
        threads.push(thread("notices").spawn(move || teller.run())?);
        let control = serve::Control {
            fs: Arc::clone(fs),
            notices: Arc::clone(notices),
            connection: self.number,
            takeovers: 0,
        };
        let listener = self.listener.try_clone()?;
        threads.push(thread("control").spawn(move || {
            control.serve(&listener);
            std::process::exit(0);
        })?);
        Ok(threads)
    }
}

fn wait_for(threads: Vec<std::thread::JoinHandle<()>>) {
    for thread in threads {
        // One that panicked has ended, too.
        let _ = thread.join();
    }
}
