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
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use libc::c_long;
use rustix::fs::Mode as FileMode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use sandkeep_core::limits;
use sandkeep_core::rules::Rules;
use sandkeep_sys::board::{Board, Position};
use sandkeep_sys::fork::{self, Forked};
use sandkeep_sys::{enclosure, fuse, socket};

use crate::control::{self, Ids, Mode, Setup, Started, Writers};
use crate::fs::{Filesystem, Served};
use crate::journal::Files;
use crate::notices::Notices;
use crate::peers::{Peers, Told};
use crate::table::Table;
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
    journal: Files,
    peers: Arc<Peers>,
    writers: Writers,
}

fn start(setup: &[u8], fds: Vec<OwnedFd>) -> Result<Kept, Failure> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EPROTO);
    let setup: Setup = control::decode(setup).map_err(invalid).map_err(during("read its setup"))?;
    let rules =
        Rules::try_from(setup.rules).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL));
    let rules = rules.map_err(during("read the rules"))?;
    let mut fds = fds.into_iter();
    let (Some(tree), Some(listener), Some(board)) = (fds.next(), fds.next(), fds.next()) else {
        return Err(("receive its descriptors", io::Error::from_raw_os_error(libc::EPROTO)));
    };
    let board = Board::of(board).map_err(during("map the board of the directory"))?;
    let peers = Arc::new(Peers::new(board, std::process::id()));
    can_hold_rules(&tree).map_err(during("use a file system that ignores case or is remote"))?;
    let connection = Arc::new(fuse::open().map_err(during("open /dev/fuse"))?);
    let mount = fuse::mount(&connection).map_err(during("mount a FUSE file system"))?;
    let number = fuse::connection_of(&mount).map_err(during("find its connection"))?;
    // The peer that a daemon sees is whoever listens.
    rustix::net::listen(&listener, 16).map_err(io::Error::from).map_err(during("listen"))?;
    let journal = Files::create().map_err(io::Error::from);
    let journal = journal.map_err(during("create its journal"))?;
    enclosure::enter(&tree).map_err(during("enter its own namespaces"))?;
    restrict(&tree, setup.mode).map_err(during("give up its rights"))?;
    let Setup { mode, ids, writers, .. } = setup;
    let mount = Some(mount);
    Ok(Kept {
        connection,
        tree,
        listener,
        rules,
        mode,
        ids,
        mount,
        number,
        journal,
        peers,
        writers,
    })
}

fn restrict(tree: &OwnedFd, mode: Mode) -> io::Result<()> {
    rustix::process::umask(FileMode::empty());
    let hard = getrlimit(Resource::Nofile).maximum;
    let wanted = hard.unwrap_or(limits::RULEFS_DESCRIPTORS_MAX).min(limits::RULEFS_DESCRIPTORS_MAX);
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) })?;
    // What it remembers of files grows with what the sandbox makes the kernel remember. Beyond the limit the server
    // ends, and with it after some attempts this mount: no other.
    let most = Some(limits::RULEFS_MEMORY_MAX_BYTES);
    setrlimit(Resource::Data, Rlimit { current: most, maximum: most })?;
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
    if OTHERS.contains(&kind) {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    } else {
        Ok(())
    }
}

impl Kept {
    /// Runs servers, one after the other, until one of them ends by itself.
    fn keep(mut self) -> Result<(), Failure> {
        let (mut quick, mut takeovers) = (0, 0);
        loop {
            let started = Instant::now();
            let child = match fork::fork().map_err(during("start a server"))? {
                Forked::Child => return self.serve(takeovers),
                Forked::Parent { child } => child,
            };
            // The keeper must not have a file of the mount.
            drop(self.mount.take());
            let ended = fork::wait(child).map_err(during("wait for its server"))?;
            // One that was killed did not know that the mount is gone.
            if ended.exit_status().is_some() {
                return Ok(());
            }
            quick = if started.elapsed() < limits::RULEFS_SETTLED { quick + 1 } else { 0 };
            takeovers += 1;
            if quick == limits::RULEFS_TAKEOVERS_MAX {
                // The cause of death would come again; without a keeper, whoever waits gets an error.
                return Err((
                    "keep a server alive",
                    io::Error::from_raw_os_error(libc::ECONNABORTED),
                ));
            }
        }
    }

    fn serve(mut self, takeovers: u32) -> Result<(), Failure> {
        let mount = self.mount.take();
        // Before anything is known that others could change.
        let heard = self.peers.board().now().map_err(during("read the board of the directory"))?;
        let (epochs, known) = match takeovers {
            0 => {
                let agreed = negotiate::initialize(&self.connection, self.mode);
                (agreed.map_err(during("agree with the kernel on how to serve"))?, None)
            }
            // The agreement outlives the server that made it.
            _ => {
                let known = Table::restore(&self.journal).map_err(io::Error::from);
                let known = known.map_err(during("read what the last server knew"))?;
                (known.epochs, Some(known))
            }
        };
        let notices = Arc::new(Notices::new(Arc::clone(&self.connection), epochs));
        let served = Served {
            tree: &self.tree,
            mode: self.mode,
            ids: self.ids,
            connection: Arc::clone(&self.connection),
            epochs,
            notices: Arc::clone(&notices),
            peers: Arc::clone(&self.peers),
            writers: self.writers,
        };
        let fs = match known {
            None => Filesystem::new(&served, self.rules.clone(), &self.journal),
            Some(known) => Filesystem::take_over(&served, known),
        };
        let fs = Arc::new(fs.map_err(io::Error::from).map_err(during("open the directory"))?);
        if takeovers > 0 {
            notices
                .resend()
                .map_err(io::Error::from)
                .map_err(during("have requests sent again"))?;
        }
        let ends = self
            .start_threads(&fs, &notices, heard, takeovers)
            .map_err(during("start its threads"))?;
        if let Some(mount) = mount {
            if self.mode == Mode::Passthrough {
                let checked = fs.check_passthrough().map_err(io::Error::from);
                checked.map_err(during("have the kernel read files of this file system"))?;
            }
            self.peers.tell(&Told::Joined);
            let ready = Started::Ready { connection: self.number };
            let ready = control::encode(&ready).map_err(during("encode its answer"))?;
            socket::send_with_fds(rustix::stdio::stdin(), &ready, &[mount.as_fd()])
                .map_err(during("answer the daemon"))?;
        } else {
            // The last server may have been killed between a change and telling it, and has heard nothing since.
            self.peers.tell(&Told::Again);
            fs.tell_what_is_written(&fs.lock());
            fs.has_missed_something();
            self.peers.tell(&Told::Joined);
        }
        // It fails only once all have ended.
        let _ = ends.recv();
        Ok(())
    }

    /// Starts the threads. The end of any of them is the end of all, and comes through the channel.
    fn start_threads(
        &self,
        fs: &Arc<Filesystem>,
        notices: &Arc<Notices>,
        heard: Position,
        takeovers: u32,
    ) -> io::Result<Receiver<()>> {
        let (ended, ends) = sync_channel(limits::RULEFS_THREADS + 3);
        for _ in 0..limits::RULEFS_THREADS {
            let (connection, fs) = (Arc::clone(&self.connection), Arc::clone(fs));
            spawn("requests", &ended, move || serve::answer_requests(&connection, &fs))?;
        }
        let teller = Arc::clone(notices);
        spawn("notices", &ended, move || teller.run())?;
        let (peers, own_fs, own_notices) =
            (Arc::clone(&self.peers), Arc::clone(fs), Arc::clone(notices));
        spawn("peers", &ended, move || peers.follow(heard, &own_fs, &own_notices))?;
        let control = serve::Control {
            fs: Arc::clone(fs),
            notices: Arc::clone(notices),
            peers: Arc::clone(&self.peers),
            connection: self.number,
            takeovers,
        };
        let listener = self.listener.try_clone()?;
        spawn("control", &ended, move || control.serve(&listener))?;
        Ok(ends)
    }
}

fn spawn(
    name: &str,
    ended: &SyncSender<()>,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    const STACK_BYTES: usize = 256 * 1024;
    let ended = ended.clone();
    let thread = std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
    let run = move || {
        // After a panic, too: without this thread the others would serve only in part.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        let _ = ended.try_send(());
    };
    thread.spawn(run).map(drop)
}
