//! A persistent shell: a real shell process that runs one command after the other.
//!
//! ```text
//!             ready                 its turn                reported
//!  opening ───────────▶ idle ─────────────────▶ running ─────────────▶ delivering ──▶ idle
//!     ▲                                            │ timeout, cancel       ▲
//!     │            killed, a new one in its place  ▼        reported       │
//!     └───────────────────────────────────── interrupting ───────────▶ settling
//!
//!  exits, whenever: ended                       closed by the host, whenever: closing ──▶ gone
//! ```
//!
//! The shell is controlled over private descriptors (`channel`) in its own language (`script`), and all its commands
//! share one stdout and one stderr. At most one command has these at a time. Output of background jobs between commands
//! is included in the next command's output or, beyond IDLE_MAX, discarded and counted, so that a job never blocks for
//! lack of a reader.
//!
//! This module handles a single shell; the reactor handles who waits for what.

mod channel;
mod script;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use guest_proto::{
    Exec, How, ListedShell, Offsets, ShellOpen, ShellProgram, ShellState, StdinMode,
};
use libc::pid_t;

pub use channel::{Channel, Heard};
use script::{Before, Source};
pub use script::{Dialect, Report};

use crate::poll::Id;
use crate::sys;
use crate::tree::{Leaf, Tree};

/// How long a shell may take to report for the first time.
pub const OPEN_PATIENCE: Duration = Duration::from_secs(8);
/// How long a shell may take to abandon a command before it is killed.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(1);
/// Interval for repeating the interrupt. It is repeated because the shell does not receive it before the command has
/// started; but not while the shell is abandoning the command, because a second one, outside of the command, would end
/// dash itself.
const TELL_PAUSE: Duration = Duration::from_millis(100);
/// How long a process that can no longer report may take to end.
const DEAF_PATIENCE: Duration = Duration::from_secs(1);
/// How long SIGKILL may take.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
/// The first pause between two kills; it doubles up to the second value.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);
/// How much output between two commands is kept for the next: half of a pipe.
const IDLE_MAX: usize = 32 * 1024;
/// How often to check for more of it at a time.
const SKIPS: usize = 16;
/// Maximum total size of queued commands in one shell.
const WAITING_MAX: usize = 4 * 1024 * 1024;

pub struct Shell {
    /// The request that opened it, for a replacement.
    pub request: ShellOpen,
    pub dialect: Dialect,
    pub pid: pid_t,
    pub leaf: Leaf,
    /// What its process enters before it executes.
    pub enter: Vec<OwnedFd>,
    pub channel: Channel,
    /// While no command uses them.
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
    pub state: State,
    pub queue: VecDeque<Waiting>,
    serial: u64,
    before: Before,
    skipped: Offsets,
}

/// A queued command.
pub struct Waiting {
    pub exec: Id,
    pub command: String,
    pub stdin: StdinMode,
    pub timeout: Option<Duration>,
}

pub enum State {
    Opening {
        asker: Option<Id>,
        until: Instant,
    },
    Idle,
    Running(Run),
    Interrupting(Interrupt),
    /// The command was abandoned; the shell confirms that it is ready for the next.
    Settling(Interrupt),
    /// The command has ended; its output is being delivered.
    Delivering(Id),
    Ended,
    Closing(Closing),
}

/// A running command.
pub struct Run {
    pub exec: Id,
    pub deadline: Option<Instant>,
    /// Since when the shell can no longer report.
    deaf_since: Option<Instant>,
    /// Processes that existed before it: background jobs of earlier commands, and the shell.
    before: Vec<pid_t>,
}

/// A command being interrupted.
pub struct Interrupt {
    pub run: Run,
    pub verdict: How,
    pace: Pace,
    /// When to repeat the interrupt, if the shell has not abandoned the command by then.
    tell_again: Instant,
    reported: Option<Before>,
    /// Whether the shell itself is to be killed, and replaced.
    hopeless: Option<Hopeless>,
}

/// The shell did not abandon its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hopeless;

pub struct Closing {
    pub askers: Vec<Id>,
    pace: Pace,
}

/// When to retry, and the current pause.
struct Pace {
    since: Instant,
    next: Instant,
    pause: Duration,
}

impl Pace {
    fn new(now: Instant) -> Self {
        Self { since: now, next: now, pause: PAUSE }
    }

    fn step(&mut self, now: Instant) {
        self.next = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// What is due for a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Nothing,
    /// It has not reported that it is ready.
    NeverReady,
    /// Its command has timed out.
    TimeIsUp,
    /// Nothing of it is left: a new process can replace it.
    Replace,
    /// Nothing of it is left, as requested.
    Gone,
}

impl Shell {
    pub fn new(
        request: ShellOpen,
        dialect: Dialect,
        (leaf, enter): (Leaf, Vec<OwnedFd>),
        process: Process,
        asker: Id,
    ) -> Self {
        let until = Instant::now() + OPEN_PATIENCE;
        Self {
            request,
            dialect,
            pid: process.pid,
            leaf,
            enter,
            channel: process.channel,
            stdout: process.stdout,
            stderr: process.stderr,
            state: State::Opening { asker: Some(asker), until },
            queue: VecDeque::new(),
            serial: 0,
            before: Before::default(),
            skipped: Offsets::default(),
        }
    }

    pub fn listed(&self) -> ListedShell {
        let program = match self.dialect {
            Dialect::Bash => ShellProgram::Bash,
            Dialect::Sh => ShellProgram::Sh,
        };
        let state = match self.state {
            State::Idle => ShellState::Ready,
            State::Ended | State::Closing(_) => ShellState::Ended,
            State::Opening { .. }
            | State::Running(_)
            | State::Interrupting(_)
            | State::Settling(_)
            | State::Delivering(_) => ShellState::Busy,
        };
        ListedShell {
            shell_id: self.request.shell_id.clone(),
            leaf_name: self.request.leaf_name.clone(),
            program,
            state,
            pid: self.pid.unsigned_abs(),
            waiting: u32::try_from(self.queue.len()).unwrap_or(u32::MAX),
            created_ms: self.request.created_ms,
        }
    }

    pub fn has_room_for(&self, command: &str) -> bool {
        let bytes: usize = self.queue.iter().map(|waiting| waiting.command.len()).sum();
        self.queue.len() < guest_proto::SHELL_QUEUE_MAX && bytes + command.len() <= WAITING_MAX
    }

    /// The running command.
    pub fn current(&self) -> Option<Id> {
        match &self.state {
            State::Running(run) => Some(run.exec),
            State::Interrupting(interrupt) | State::Settling(interrupt) => Some(interrupt.run.exec),
            State::Opening { .. }
            | State::Idle
            | State::Delivering(_)
            | State::Ended
            | State::Closing(_) => None,
        }
    }

    /// Tells the shell to run a command; returns the end to write its stdin to, if it reads any.
    pub fn run(&mut self, waiting: &Waiting, now: Instant) -> io::Result<Option<OwnedFd>> {
        let (stdin, source) = match waiting.stdin {
            StdinMode::Null => (None, Source::Nothing),
            StdinMode::Piped => (Some(self.channel.new_stdin()?), Source::Pipe),
        };
        let before = self.leaf.members();
        self.serial += 1;
        let prepared = self.dialect.command(self.serial, self.before, source, &waiting.command);
        self.channel.say(prepared)?;
        let deadline = waiting.timeout.and_then(|timeout| now.checked_add(timeout));
        self.state = State::Running(Run { exec: waiting.exec, deadline, deaf_since: None, before });
        Ok(stdin)
    }

    /// The amount of discarded output between commands, and resets the counter.
    pub fn take_skipped(&mut self) -> Offsets {
        std::mem::take(&mut self.skipped)
    }

    /// Handles output while no command runs.
    pub fn look_at_idle_output(&mut self) {
        self.skipped.stdout += skip(self.stdout.as_ref());
        self.skipped.stderr += skip(self.stderr.as_ref());
    }

    /// Handles a report. An unexpected one changes nothing.
    pub fn take_report(&mut self, report: Report) -> Reported {
        if report.serial != self.serial {
            return Reported::Nothing;
        }
        match &mut self.state {
            State::Running(run) => {
                let exec = run.exec;
                self.before = report.before_next;
                self.state = State::Delivering(exec);
                Reported::Finished(exec, How::Exited(report.before_next.status.into()))
            }
            State::Interrupting(interrupt) if interrupt.reported.is_none() => {
                interrupt.reported = Some(report.before_next);
                Reported::Interrupted
            }
            State::Opening { asker, .. } => {
                let asker = *asker;
                self.state = State::Idle;
                Reported::Ready(asker)
            }
            State::Settling(interrupt) => {
                let (exec, verdict) = (interrupt.run.exec, interrupt.verdict);
                self.state = State::Delivering(exec);
                Reported::Finished(exec, verdict)
            }
            State::Interrupting(_)
            | State::Idle
            | State::Delivering(_)
            | State::Ended
            | State::Closing(_) => Reported::Nothing,
        }
    }

    /// Starts interrupting the running command.
    pub fn interrupt(&mut self, verdict: How, now: Instant) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Running(run) => {
                let pace = Pace::new(now);
                self.state = State::Interrupting(Interrupt {
                    run,
                    verdict,
                    pace,
                    tell_again: now,
                    reported: None,
                    hopeless: None,
                });
            }
            other => self.state = other,
        }
    }

    /// Starts killing the shell and its processes.
    pub fn close(&mut self, asker: Option<Id>, now: Instant) {
        if let State::Closing(closing) = &mut self.state {
            closing.askers.extend(asker);
            return;
        }
        let askers = asker.into_iter().collect();
        self.state = State::Closing(Closing { askers, pace: Pace::new(now) });
    }

    /// When the loop must check it again, unless something happens before.
    pub fn next_tick(&self) -> Option<Instant> {
        match &self.state {
            State::Opening { until, .. } => Some(*until),
            State::Running(run) => {
                let deaf = run.deaf_since.map(|since| since + DEAF_PATIENCE);
                run.deadline.into_iter().chain(deaf).min()
            }
            State::Interrupting(interrupt) | State::Settling(interrupt) => {
                Some(interrupt.pace.next)
            }
            State::Closing(closing) => Some(closing.pace.next),
            State::Idle | State::Delivering(_) | State::Ended => None,
        }
    }

    /// Handles what is due.
    pub fn tick(&mut self, now: Instant) -> Due {
        match &mut self.state {
            State::Opening { until, .. } if now >= *until => Due::NeverReady,
            State::Running(run) if run.deadline.is_some_and(|at| now >= at) => Due::TimeIsUp,
            State::Running(run) if run.deaf_since.is_some_and(|at| now >= at + DEAF_PATIENCE) => {
                run.deaf_since = None;
                if self.channel.is_read() {
                    self.broken(now);
                }
                Due::Nothing
            }
            State::Interrupting(_) => self.go_on_interrupting(now),
            State::Settling(interrupt) => {
                if now >= interrupt.pace.since + INTERRUPT_PATIENCE {
                    self.give_up_hope(now);
                } else {
                    interrupt.pace.step(now);
                }
                Due::Nothing
            }
            State::Closing(closing) => {
                let tree = self.leaf.kill();
                closing.pace.step(now);
                let patient = now < closing.pace.since + KILL_PATIENCE;
                if tree == Tree::Empty && self.pid == 0 || !patient {
                    Due::Gone
                } else {
                    Due::Nothing
                }
            }
            State::Opening { .. }
            | State::Idle
            | State::Running(_)
            | State::Delivering(_)
            | State::Ended => Due::Nothing,
        }
    }

    /// First the shell, which otherwise would continue with the rest of the command; then the processes that it waits
    /// for.
    fn go_on_interrupting(&mut self, now: Instant) -> Due {
        let State::Interrupting(interrupt) = &mut self.state else { return Due::Nothing };
        interrupt.pace.step(now);
        if interrupt.hopeless.is_some() || self.pid == 0 {
            let tree = self.leaf.kill();
            let patient = now < interrupt.pace.since + KILL_PATIENCE;
            return if (tree == Tree::Empty || !patient) && self.pid == 0 {
                Due::Replace
            } else {
                Due::Nothing
            };
        }
        if interrupt.reported.is_none() && now >= interrupt.tell_again {
            interrupt.tell_again = now + TELL_PAUSE;
            let _ = sys::kill(self.pid, script::INTERRUPT);
        }
        let started = self.started();
        for &pid in &started {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
        let State::Interrupting(interrupt) = &mut self.state else { return Due::Nothing };
        if now >= interrupt.pace.since + INTERRUPT_PATIENCE {
            self.give_up_hope(now);
        } else if let Some(before) = interrupt.reported
            && started.is_empty()
        {
            self.before = before;
            self.settle(now);
        }
        Due::Nothing
    }

    /// Processes started since the current command began.
    fn started(&self) -> Vec<pid_t> {
        let (State::Running(run)
        | State::Interrupting(Interrupt { run, .. })
        | State::Settling(Interrupt { run, .. })) = &self.state
        else {
            return Vec::new();
        };
        let mut members = self.leaf.members();
        members.retain(|pid| *pid > 0 && *pid != self.pid && !run.before.contains(pid));
        members
    }

    /// Signals the processes that the command has started.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        for pid in self.started() {
            match sys::kill(pid, signal) {
                // It has just ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                result => result?,
            }
        }
        Ok(())
    }

    /// The shell itself will be killed, and replaced.
    pub fn give_up_hope(&mut self, now: Instant) {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Interrupting(interrupt) | State::Settling(interrupt) => {
                let (pace, hopeless) = (Pace::new(now), Some(Hopeless));
                self.state = State::Interrupting(Interrupt { pace, hopeless, ..interrupt });
            }
            other => self.state = other,
        }
    }

    /// Another process has written to the report pipe, so the expected report may be corrupted: the command is killed,
    /// and the shell with it.
    pub fn broken(&mut self, now: Instant) {
        self.interrupt(How::Signaled(libc::SIGKILL), now);
        self.give_up_hope(now);
    }

    /// The process can no longer report. It is ending, or has executed something else, or has lost its private
    /// descriptors.
    pub fn deafened(&mut self, now: Instant) {
        if let State::Running(run) = &mut self.state {
            run.deaf_since.get_or_insert(now);
        }
    }

    fn settle(&mut self, now: Instant) {
        if let State::Interrupting(interrupt) = std::mem::replace(&mut self.state, State::Idle) {
            self.serial += 1;
            self.channel.say_line(self.dialect.settle(self.serial));
            self.state = State::Settling(Interrupt { pace: Pace::new(now), ..interrupt });
        }
    }

    /// A new process has replaced the old one.
    pub fn renew(&mut self, process: Process) {
        self.pid = process.pid;
        self.channel = process.channel;
        self.stdout = process.stdout;
        self.stderr = process.stderr;
        self.serial = 0;
        self.before = Before::default();
        self.state = State::Opening { asker: None, until: Instant::now() + OPEN_PATIENCE };
    }
}

/// The meaning of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    Nothing,
    /// The shell is ready, and this connection waits for that.
    Ready(Option<Id>),
    /// It has abandoned the command, whose processes may still exist.
    Interrupted,
    Finished(Id, How),
}

/// The process of a shell, and our ends of its descriptors.
pub struct Process {
    pub pid: pid_t,
    pub channel: Channel,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// Discards output beyond the limit; returns how much. A few reads are enough at a time: further output causes another
/// event.
fn skip(pipe: Option<&OwnedFd>) -> u64 {
    let Some(pipe) = pipe else { return 0 };
    let (mut nowhere, mut skipped) = (Vec::new(), 0);
    for _ in 0..SKIPS {
        if sys::pending(pipe.as_fd()) <= IDLE_MAX {
            break;
        }
        match sys::read_append(pipe.as_fd(), &mut nowhere, IDLE_MAX) {
            Ok(count) => skipped += count as u64,
            Err(_) => break,
        }
        nowhere.clear();
    }
    skipped
}

/// The dialects to try for a program, better ones first.
pub fn dialects(program: ShellProgram) -> &'static [Dialect] {
    match program {
        ShellProgram::Any => &[Dialect::Bash, Dialect::Sh],
        ShellProgram::Bash => &[Dialect::Bash],
        ShellProgram::Sh => &[Dialect::Sh],
    }
}

/// The shell as an ordinary command.
pub fn as_exec(open: &ShellOpen, dialect: Dialect) -> Exec {
    Exec {
        exec_id: open.shell_id.clone(),
        argv: dialect.argv(),
        env: open.env.clone(),
        cwd: open.cwd.clone(),
        user: open.user.clone(),
        stdin: StdinMode::Null,
        timeout_ms: None,
        privilege: open.privilege,
        leaf: open.leaf,
        leaf_name: open.leaf_name.clone(),
    }
}
