//! The life of one command.
//!
//! ```text
//!            first process exits              output taken from the pipes
//!  running ──────────────────────▶ exited ──────────────────────────────▶ ended ──▶ forgotten
//!     │  timeout or cancel            ▲                                     (by the host)
//!     ├────────────▶ killing ─────────┤
//!     │ end           ▲ grace is over │
//!     └────────────▶ ending ──────────┘
//!                     (until the tree is empty)
//! ```
//!
//! An exec has exactly one end, and all output that belongs to it is sent before. Background processes are not waited
//! for: a command ends when its first process does, as in a shell. A command *of* a shell first waits for its turn; the
//! shell determines when it starts and how it ends (`shell`).

mod ending;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_proto::{
    CHUNK_MAX, End, Fate, FromGuest, How, ListedExec, Offsets, ShellEnd, Stream, TerminalSize,
    ToGuest,
};
use libc::pid_t;

use self::ending::Ending;
use crate::connection::Connection;
use crate::output::Output;
use crate::plan::NotStarted;
use crate::poll::Id;
use crate::stdin::{AtEnd, Stdin};
use crate::sys::Exit;
use crate::terminal::Terminal;
use crate::tree::{Leaf, Tree};
use crate::window::BeyondEnd;

/// The first pause between two kills of a tree; it doubles up to the second value.
const KILL_PAUSE: Duration = Duration::from_millis(1);
const KILL_PAUSE_MAX: Duration = Duration::from_millis(64);
/// After this an exec ends even if a process of its tree does not die (for example, because it waits for a disk); the
/// host's own cgroup will still kill it with the sandbox.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

pub struct Exec {
    pub exec_id: String,
    pub leaf_name: String,
    /// 0 if it was never started.
    pub pid: pid_t,
    leaf: Leaf,
    started: Instant,
    deadline: Option<Instant>,
    phase: Phase,
    pub stdin: Stdin,
    pub stdout: Output,
    pub stderr: Output,
    /// Until its first process has exited.
    terminal: Option<Terminal>,
    /// The connection that watches it.
    pub watcher: Option<Id>,
    /// Whether the watcher has received the end.
    end_told: Told,
    /// For a command of a shell.
    in_shell: Option<InShell>,
}

#[derive(Clone, Copy)]
struct InShell {
    shell: Id,
    fate: Fate,
    skipped: Offsets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    NotYet,
    Yes,
}

enum Phase {
    /// In a shell, for earlier commands.
    Waiting,
    Running,
    /// The whole tree was sent SIGTERM.
    Ending(Ending),
    Killing(Killing),
    /// The first process is gone; output may still be in the pipes.
    Exited {
        how: How,
        at: Instant,
    },
    Ended(End),
}

struct Killing {
    verdict: How,
    since: Instant,
    next: Instant,
    pause: Duration,
    tree: Tree,
    exited: Option<Instant>,
}

/// The effect of a host's message on the exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    GoesOn,
    /// The host has its end; nothing of it is needed any more.
    Forgotten,
}

/// The host sent a message that is not allowed now.
#[derive(Debug, PartialEq, Eq)]
pub struct AgainstTheRules;

/// The process environment of a shell's commands.
pub struct ShellProcess {
    pub pid: pid_t,
    pub leaf_name: String,
}

/// The guest's ends of a new exec's pipes. A terminal has one for all.
pub struct Pipes {
    pub stdin: Option<OwnedFd>,
    pub stdout: OwnedFd,
    pub stderr: Option<OwnedFd>,
    pub terminal: Option<Terminal>,
}

impl Exec {
    /// `started` is measured before the process exists, because it may run before we know of it.
    pub fn running(
        request: &guest_proto::Exec,
        started: Instant,
        pid: pid_t,
        leaf: Leaf,
        pipes: Pipes,
    ) -> Self {
        let timeout = request.timeout_ms.map(Duration::from_millis);
        let at_end = match &pipes.terminal {
            None => AtEnd::Close,
            Some(_) => AtEnd::Type,
        };
        Self {
            exec_id: request.exec_id.clone(),
            leaf_name: request.leaf_name.clone(),
            pid,
            leaf,
            started,
            // A deadline beyond the clock's range is none.
            deadline: timeout.and_then(|timeout| started.checked_add(timeout)),
            phase: Phase::Running,
            stdin: Stdin::new(pipes.stdin, at_end),
            stdout: Output::new(Some(pipes.stdout)),
            stderr: Output::new(pipes.stderr),
            terminal: pipes.terminal,
            watcher: None,
            end_told: Told::NotYet,
            in_shell: None,
        }
    }

    pub fn not_started(request: &guest_proto::Exec, why: NotStarted) -> Self {
        let how = How::Exited(why.code);
        Self {
            exec_id: request.exec_id.clone(),
            leaf_name: request.leaf_name.clone(),
            pid: 0,
            leaf: Leaf::None,
            started: Instant::now(),
            deadline: None,
            phase: Phase::Ended(End { how, error: Some(why.error), duration_ms: 0 }),
            stdin: Stdin::new(None, AtEnd::Close),
            stdout: Output::new(None),
            stderr: Output::new(None),
            terminal: None,
            watcher: None,
            end_told: Told::NotYet,
            in_shell: None,
        }
    }

    /// A command that waits for its turn in a shell.
    pub fn waiting(request: &guest_proto::ShellExec, shell: Id, place: ShellProcess) -> Self {
        let in_shell = InShell { shell, fate: Fate::Kept, skipped: Offsets::default() };
        Self {
            exec_id: request.exec_id.clone(),
            leaf_name: place.leaf_name,
            pid: place.pid,
            leaf: Leaf::None,
            started: Instant::now(),
            deadline: None,
            phase: Phase::Waiting,
            stdin: Stdin::awaited(),
            terminal: None,
            stdout: Output::new(None),
            stderr: Output::new(None),
            watcher: None,
            end_told: Told::NotYet,
            in_shell: Some(in_shell),
        }
    }

    /// Its turn in the shell has come.
    pub fn begin(
        &mut self,
        now: Instant,
        stdin: Option<OwnedFd>,
        [stdout, stderr]: [Option<OwnedFd>; 2],
        skipped: Offsets,
    ) {
        self.phase = Phase::Running;
        self.started = now;
        self.stdout = Output::new(stdout);
        self.stderr = Output::new(stderr);
        self.stdin.open(stdin);
        if let Some(in_shell) = &mut self.in_shell {
            in_shell.skipped = skipped;
        }
    }

    /// The shell reports its end; its output may still be in the pipes.
    pub fn finish(&mut self, how: How, fate: Fate, now: Instant) {
        if let Some(in_shell) = &mut self.in_shell {
            in_shell.fate = fate;
            self.phase = Phase::Exited { how, at: now };
            self.settle();
        }
    }

    /// Its turn will not come.
    pub fn give_up(&mut self, error: Option<String>, fate: Fate) {
        if let Some(in_shell) = &mut self.in_shell {
            in_shell.fate = fate;
            self.stdin.close();
            self.phase = Phase::Ended(End { how: How::Canceled, error, duration_ms: 0 });
        }
    }

    /// The shell that runs it.
    pub fn shell(&self) -> Option<Id> {
        self.in_shell.map(|in_shell| in_shell.shell)
    }

    /// Whether its first process is alive, or dead and not reaped: its pid cannot be reused yet.
    pub fn owns_pid(&self) -> bool {
        match &self.phase {
            Phase::Running => self.in_shell.is_none(),
            Phase::Ending(ending) => ending.exited.is_none(),
            Phase::Killing(killing) => killing.exited.is_none(),
            Phase::Waiting | Phase::Exited { .. } | Phase::Ended(_) => false,
        }
    }

    /// Whether there may still be processes to kill.
    pub fn is_under_way(&self) -> bool {
        self.owns_pid() || matches!(self.phase, Phase::Ending(_) | Phase::Killing(_))
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Whether there is output that was not sent to the watcher.
    pub fn has_unsent(&self) -> bool {
        !self.stdout.window.all_sent() || !self.stderr.window.all_sent()
    }

    pub fn listed(&self) -> ListedExec {
        ListedExec {
            exec_id: self.exec_id.clone(),
            leaf_name: self.leaf_name.clone(),
            running: !self.has_ended(),
        }
    }

    /// When the loop must check it again, unless something happens before.
    pub fn next_tick(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Running => self.deadline,
            Phase::Ending(ending) => Some(ending.next_tick(self.deadline)),
            Phase::Killing(killing) => Some(killing.next),
            Phase::Waiting | Phase::Exited { .. } | Phase::Ended(_) => None,
        }
    }

    /// Its first process has been reaped.
    pub fn exited(&mut self, exit: Exit, now: Instant) {
        match &mut self.phase {
            Phase::Running => {
                self.phase = Phase::Exited { how: exit.into(), at: now };
                self.settle();
            }
            Phase::Ending(ending) => {
                ending.exited = Some((exit.into(), now));
                self.tick(now);
            }
            Phase::Killing(killing) => {
                killing.exited = Some(now);
                killing.next = now;
                self.tick(now);
            }
            Phase::Waiting | Phase::Exited { .. } | Phase::Ended(_) => {}
        }
    }

    /// Starts killing the whole tree. Does nothing if that is in progress or the exec has ended. If the first process
    /// has exited by itself, that stays its outcome.
    pub fn kill(&mut self, verdict: How, now: Instant) {
        let (verdict, exited) = match &self.phase {
            Phase::Running => (verdict, None),
            Phase::Ending(Ending { exited: None, .. }) => (verdict, None),
            Phase::Ending(Ending { exited: Some((how, at)), .. }) => (*how, Some(*at)),
            Phase::Waiting | Phase::Killing(_) | Phase::Exited { .. } | Phase::Ended(_) => return,
        };
        self.phase = Phase::Killing(Killing {
            verdict,
            since: now,
            next: now,
            pause: KILL_PAUSE,
            tree: Tree::Alive,
            exited,
        });
        self.tick(now);
    }

    /// Handles what is due: a deadline has passed, or the tree must be checked again.
    pub fn tick(&mut self, now: Instant) {
        match &self.phase {
            Phase::Running | Phase::Ending(_) if self.deadline.is_some_and(|at| now >= at) => {
                self.kill(How::TimedOut, now);
            }
            Phase::Ending(_) => self.tick_ending(now),
            Phase::Killing(_) => self.tick_killing(now),
            Phase::Running | Phase::Waiting | Phase::Exited { .. } | Phase::Ended(_) => {}
        }
    }

    fn tick_killing(&mut self, now: Instant) {
        let Phase::Killing(killing) = &mut self.phase else { return };
        if now < killing.next {
            return;
        }
        if killing.tree == Tree::Alive {
            killing.tree = self.leaf.kill();
        }
        killing.next = now + killing.pause;
        killing.pause = (killing.pause * 2).min(KILL_PAUSE_MAX);
        let patient = now < killing.since + KILL_PATIENCE;
        if let Some(at) = killing.exited
            && (killing.tree == Tree::Empty || !patient)
        {
            self.phase = Phase::Exited { how: killing.verdict, at };
            self.settle();
        }
    }

    /// The present content of the pipes is the last that counts.
    fn settle(&mut self) {
        self.stdin.close();
        self.leaf = Leaf::None;
        match self.terminal.take() {
            None => self.stdout.settle(),
            Some(_) => self.stdout.settle_terminal(),
        }
        self.stderr.settle();
    }

    /// Sets the size of its terminal.
    fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.terminal {
            terminal.resize(size);
            // gVisor's kernel changes the size and sends no signal.
            if let Leaf::Own(_) = &self.leaf {
                self.leaf.signal(libc::SIGWINCH);
            }
        }
    }

    /// gVisor's kernel passes signal keys to the command like any others, and does not report the foreground process
    /// group: there they interrupt the whole exec. Also returns how many keys those were.
    fn sort_out_signals(&self, mut typed: Vec<u8>) -> (Vec<u8>, usize) {
        let (Some(terminal), Leaf::Own(_)) = (&self.terminal, &self.leaf) else {
            return (typed, 0);
        };
        let signals = terminal.sort_out_signals(&mut typed);
        signals.iter().for_each(|signal| self.leaf.signal(*signal));
        (typed, signals.len())
    }

    /// Reads more output where there is room, and ends the exec after the last.
    fn advance(&mut self) {
        self.stdout.fill();
        self.stderr.fill();
        let Phase::Exited { how, at } = self.phase else { return };
        if self.stdout.is_complete() && self.stderr.is_complete() {
            let duration = at.saturating_duration_since(self.started);
            let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.phase = Phase::Ended(End { how, error: None, duration_ms });
        }
    }

    /// Handles a message of the host.
    pub fn hear(&mut self, message: ToGuest) -> Result<Heard, AgainstTheRules> {
        match message {
            ToGuest::Stdin(bytes) if !self.has_ended() => {
                let (bytes, swallowed) = self.sort_out_signals(bytes);
                self.stdin.feed(bytes, swallowed).map_err(|_| AgainstTheRules)?;
            }
            // It ended while the bytes were in transit.
            ToGuest::Stdin(_) => {}
            ToGuest::StdinEof => self.stdin.end(),
            ToGuest::Resize(size) => self.resize(size),
            ToGuest::Ack(offsets) => self.acknowledge(offsets).map_err(|_| AgainstTheRules)?,
            ToGuest::Forget if self.has_ended() => return Ok(Heard::Forgotten),
            ToGuest::Forget | ToGuest::Program(_) => return Err(AgainstTheRules),
        }
        Ok(Heard::GoesOn)
    }

    /// The host has everything below these offsets.
    fn acknowledge(&mut self, offsets: Offsets) -> Result<(), BeyondEnd> {
        self.stdout.window.acknowledge(offsets.stdout)?;
        self.stderr.window.acknowledge(offsets.stderr)
    }

    /// A new watcher attaches at these offsets.
    pub fn attach(&mut self, watcher: Id, from: Offsets) -> Result<(), BeyondEnd> {
        if from.stdout > self.stdout.window.end() || from.stderr > self.stderr.window.end() {
            return Err(BeyondEnd);
        }
        self.stdout.window.rewind(from.stdout)?;
        self.stderr.window.rewind(from.stderr)?;
        self.watcher = Some(watcher);
        self.end_told = Told::NotYet;
        Ok(())
    }

    /// The first message to a new watcher.
    pub fn introduce(&self, connection: &mut Connection) {
        if self.pid > 0 {
            let pid = self.pid.unsigned_abs();
            connection.say(&FromGuest::Started { pid, stdin_offset: self.stdin.received() });
        }
        if self.stdin.received() > 0 {
            connection.say(&FromGuest::StdinWanted { up_to: self.stdin.announced() });
        }
    }

    /// Moves all data that can be moved: from the pipes to the windows and on to the connection.
    pub fn pump(&mut self, connection: Option<&mut Connection>) {
        self.advance();
        let Some(connection) = connection else { return };
        while connection.has_room() && !self.stdout.window.all_sent() {
            let (offset, data) = self.stdout.window.take_unsent(CHUNK_MAX);
            connection.pass_on(Stream::Stdout, offset, data);
        }
        while connection.has_room() && !self.stderr.window.all_sent() {
            let (offset, data) = self.stderr.window.take_unsent(CHUNK_MAX);
            connection.pass_on(Stream::Stderr, offset, data);
        }
        if let Phase::Ended(end) = &self.phase {
            if self.end_told == Told::NotYet && !self.has_unsent() {
                connection.say(&self.last_message(end.clone()));
                self.end_told = Told::Yes;
            }
        } else if let Some(up_to) = self.stdin.announce() {
            connection.say(&FromGuest::StdinWanted { up_to });
        }
    }

    fn last_message(&self, end: End) -> FromGuest {
        match self.in_shell {
            None => FromGuest::Ended(end),
            Some(InShell { fate, skipped, .. }) => {
                FromGuest::ShellEnded(ShellEnd { end, fate, skipped })
            }
        }
    }
}
