//! A process between the guest and a command, for sandboxes whose execs have no cgroup.
//!
//! Orphans are adopted by the nearest subreaper. That is the keeper here, and not PID 1, where their origin would be
//! unknown: so all descendants of a command stay below its keeper, even a daemon that has left its session and all of
//! its parents. The keeper waits for its children, reports to the guest how the first of them ended, and exits when it
//! has none.
//!
//! ```text
//!  guest (PID 1) ── keeper ── command ── …
//!                          └─ orphans
//! ```
//!
//! # Guarantees
//! The keeper runs as the guest's user, blocks every signal, and cannot be traced or inspected. Commands of other users
//! cannot affect it. A command of the same user (root in most sandboxes, everybody in one of a single id) can kill or
//! stop it, like any process:
//! - a stopped keeper is continued at once;
//! - if a keeper is killed, its descendants are adopted by the guest, all of whose legitimate children are keepers, and
//!   are killed there. So killing a keeper ends its tree, and no process escapes.
//!
//! Limitations: until the guest checks again, such a tree may still run; and a process that can kill its own keeper can
//! also kill another's. Then that tree ends, too, but it could have been killed directly.

#![expect(unsafe_code, reason = "fork, and a process that only waits")]

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::pid_t;

use crate::plan::{NotStarted, Plan};
use crate::spawn::Spawner;
use crate::sys::{self, Exit};
use crate::tree::Leaf;

/// How long a keeper may take to report whether the command runs; it gives up by itself earlier.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often to check whether it was stopped meanwhile.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// Maximum length of the reason for a failure; the rest is cut off.
const REASON_MAX: usize = 1024;
/// The exit code in the first message if the command runs.
const RUNS: i32 = 0;

/// The keepers of an exec or a shell, whose descendants are its processes. There is more than one while a shell
/// replaces another that is not quite dead.
#[derive(Default)]
pub struct Kept {
    keepers: RefCell<Vec<pid_t>>,
}

impl Kept {
    /// Those that are not reaped, whose pids are still theirs.
    pub fn keepers(&self) -> Vec<pid_t> {
        self.keepers.borrow().clone()
    }
}

/// The guest's side of a keeper.
pub struct Keeper {
    kept: Rc<Kept>,
    /// The command.
    leader: pid_t,
    /// Open until the command's end is reported. When it is closed, the keeper reaps the command, whose pid cannot be
    /// reused until then.
    line: Option<OwnedFd>,
}

/// A new keeper, and whether its command runs.
pub struct Begun {
    pub pid: pid_t,
    pub line: OwnedFd,
    pub command: Result<pid_t, NotStarted>,
}

impl Keeper {
    pub fn new(kept: &Rc<Kept>, pid: pid_t, leader: pid_t, line: Option<OwnedFd>) -> Self {
        kept.keepers.borrow_mut().push(pid);
        Self { kept: Rc::clone(kept), leader, line }
    }

    /// The end of the command, if it was just reported.
    pub fn hear(&mut self) -> Option<(pid_t, Exit)> {
        let mut word = [0; size_of::<i32>() * 2];
        let heard = sys::read(self.line.as_ref()?.as_fd(), &mut word);
        if heard.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            return None;
        }
        self.line = None;
        let (kind, status) = numbers(word.get(..heard.ok()?)?)?;
        let exit = match kind {
            libc::CLD_EXITED => Exit::Code(status),
            _ => Exit::Signal(status),
        };
        Some((self.leader, exit))
    }

    /// It has been reaped.
    pub fn gone(&self, pid: pid_t) {
        self.kept.keepers.borrow_mut().retain(|keeper| *keeper != pid);
    }
}

fn numbers(word: &[u8]) -> Option<(i32, i32)> {
    let (first, rest) = word.split_first_chunk()?;
    let (second, _) = rest.split_first_chunk()?;
    Some((i32::from_ne_bytes(*first), i32::from_ne_bytes(*second)))
}

/// Creates a keeper that starts the command.
pub fn keep(spawner: &mut Spawner, plan: Plan) -> Result<Begun, NotStarted> {
    let cannot = |error| NotStarted::cannot(format!("cannot start another process: {error}"));
    let (line, theirs) = sys::socket_pair().map_err(cannot)?;
    // SAFETY: the guest has one thread. The child only ever runs `run`, which does not return.
    match unsafe { libc::fork() } {
        -1 => Err(cannot(io::Error::last_os_error())),
        0 => run(spawner, plan, &theirs),
        pid => {
            drop(theirs);
            let command = first_word(pid, line.as_fd());
            sys::set_nonblocking(line.as_fd()).map_err(cannot)?;
            Ok(Begun { pid, line, command })
        }
    }
}

fn first_word(keeper: pid_t, line: BorrowedFd<'_>) -> Result<pid_t, NotStarted> {
    let silent = || NotStarted::cannot("something in the sandbox keeps the command from starting");
    let deadline = Instant::now() + PATIENCE;
    while !sys::wait_readable(line, LOOK_PAUSE) {
        if Instant::now() >= deadline {
            return Err(silent());
        }
        // The command may run already, and may stop its keeper.
        let _ = sys::kill(keeper, libc::SIGCONT);
    }
    let mut word = [0; size_of::<i32>() + REASON_MAX];
    let len = sys::read(line, &mut word).map_err(|_| silent())?;
    let (code, rest) = word[..len].split_first_chunk().ok_or_else(silent)?;
    match i32::from_ne_bytes(*code) {
        RUNS => rest.first_chunk().map(|pid| pid_t::from_ne_bytes(*pid)).ok_or_else(silent),
        code => Err(NotStarted { code, error: String::from_utf8_lossy(rest).into_owned() }),
    }
}

/// The keeper.
fn run(spawner: &mut Spawner, plan: Plan, line: &OwnedFd) -> ! {
    sys::set_name(c"sandkeep-keeper");
    let adopts = sys::adopt_orphans();
    let started = match adopts {
        Ok(()) => spawner.spawn(plan, &Leaf::None),
        Err(error) => Err(NotStarted::cannot(format!("cannot adopt orphans: {error}"))),
    };
    let (code, mut word) = match &started {
        Ok(pid) => (RUNS, pid.to_ne_bytes().to_vec()),
        Err(NotStarted { code, error }) => (*code, error.as_bytes().to_vec()),
    };
    word.truncate(REASON_MAX);
    word.splice(..0, code.to_ne_bytes());
    // Descriptors of the guest must not be held here.
    sys::close_all_but(line.as_raw_fd());
    let _ = sys::send(line.as_fd(), &word);
    wait(line, started.ok());
    sys::exit(0)
}

/// Reaps children until there are none. The first is reaped when the guest knows of its end.
fn wait(line: &OwnedFd, mut leader: Option<pid_t>) {
    while let Some(dead) = sys::wait_for_dead() {
        if leader == Some(dead.pid) {
            leader = None;
            let mut word = dead.kind.to_ne_bytes().to_vec();
            word.extend(dead.status.to_ne_bytes());
            let _ = sys::send(line.as_fd(), &word);
            let _ = sys::read(line.as_fd(), &mut [0]);
        }
        sys::reap_this(dead.pid);
    }
}
