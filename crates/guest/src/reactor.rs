//! The guest's only loop. An event marks execs and connections as touched; at the end of each turn all data that can be
//! moved is moved and sent once, so that many small messages are sent in one call.

mod dialing;
mod keeping;
mod keeping_programs;
mod operation;
mod shells;
mod source;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use guest_proto::{FromGuest, ToGuest};
use libc::pid_t;

use self::dialing::carry_on;
pub use self::source::Source;
use crate::carry::Carry;
use crate::connection::{Broken, Connection, Role};
use crate::dial::Dial;
use crate::exec::{Exec, Heard};
use crate::keeper::Keeper;
use crate::own_leaves::OwnLeaves;
use crate::poll::{Id, Interest, Poll, Token};
use crate::programs::{Arriving, Programs};
use crate::shell::Shell;
use crate::shutdown::{Children, Progress, Shutdown, signal_all};
use crate::spawn::Spawner;
use crate::stdin::Watch;
use crate::sys::{self, Discarded, Reaped, Stops};

/// Maximum number of execs that are not forgotten; the oldest ended one is dropped for a new one.
const EXECS_MAX: usize = 2048;
/// Maximum number of ended execs that wait to be forgotten.
const ENDED_MAX: usize = 256;
/// How long commands have to end after the guest got SIGTERM, for example from `docker stop`, which itself waits 10 s.
const SIGTERM_GRACE: Duration = Duration::from_secs(8);

/// How many stopped children are handled in one turn.
const STOPS_MAX: usize = 16;

pub struct Reactor {
    poll: Poll,
    source: Source,
    lifeline: Option<OwnedFd>,
    signals: OwnedFd,
    spawner: Spawner,
    connections: BTreeMap<Id, Connection>,
    execs: BTreeMap<Id, Exec>,
    shells: BTreeMap<Id, Shell>,
    /// Pipes of ended execs that background processes still write to.
    drains: BTreeMap<Id, OwnedFd>,
    /// Pending connections to sandbox ports, by the connection that requested them.
    dials: BTreeMap<Id, Dial>,
    /// Connections whose bytes pass through the guest, by the host's connection.
    carries: BTreeMap<Id, Carry>,
    /// The keepers of commands without a cgroup, by pid.
    keepers: BTreeMap<pid_t, Keeper>,
    /// Programs supplied by the host.
    programs: Programs,
    /// Programs that are still being received, by the host's connection.
    arrivals: BTreeMap<Id, Arriving>,
    /// The cgroups that the guest creates for commands, if it does.
    own_leaves: Option<OwnLeaves>,
    /// Whether commands have cgroups; either all do, or there are keepers.
    has_leaves: bool,
    /// When to look for processes that a killed keeper has left.
    strays: Option<Instant>,
    last_id: u64,
    touched_execs: Vec<Id>,
    touched_connections: Vec<Id>,
    shutdown: Option<Shutdown>,
}

impl Reactor {
    pub fn new(
        source: Source,
        spawner: Spawner,
        own_leaves: Option<OwnLeaves>,
        lifeline: Option<OwnedFd>,
        signals: OwnedFd,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        source.watch(&poll)?;
        poll.add(&signals, Token::Signals, Interest::Read)?;
        if let Some(lifeline) = &lifeline {
            poll.add(lifeline, Token::Lifeline, Interest::Read)?;
        }
        Ok(Self {
            poll,
            source,
            lifeline,
            signals,
            spawner,
            connections: BTreeMap::new(),
            execs: BTreeMap::new(),
            shells: BTreeMap::new(),
            drains: BTreeMap::new(),
            dials: BTreeMap::new(),
            carries: BTreeMap::new(),
            keepers: BTreeMap::new(),
            programs: Programs::default(),
            arrivals: BTreeMap::new(),
            own_leaves,
            has_leaves: false,
            strays: None,
            last_id: 0,
            touched_execs: Vec::new(),
            touched_connections: Vec::new(),
            shutdown: None,
        })
    }

    /// Runs until the sandbox ends; returns the exit code.
    pub fn run(&mut self) -> i32 {
        loop {
            let events = match self.poll.wait(self.timeout()) {
                Ok(events) => events,
                Err(error) => {
                    eprintln!("sandkeep-guest: cannot wait for events: {error}");
                    return 1;
                }
            };
            for token in events {
                self.dispatch(token);
            }
            let now = Instant::now();
            self.tick(now);
            self.settle_turn();
            // After the pending answers: further connections are not urgent.
            self.tick_source(now);
            if self.shut_down(now) == Progress::Over {
                return 0;
            }
        }
    }

    fn new_id(&mut self) -> Id {
        self.last_id += 1;
        Id(self.last_id)
    }

    fn timeout(&self) -> Option<Duration> {
        let shutdown = self.shutdown.as_ref().map(Shutdown::next_tick);
        let next = self
            .execs
            .values()
            .filter_map(Exec::next_tick)
            .chain(self.shells.values().filter_map(Shell::next_tick))
            .chain(shutdown)
            .chain(self.source.next_tick())
            .chain(self.strays)
            .min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    fn dispatch(&mut self, token: Token) {
        match token {
            Token::Listen => self.accept(),
            Token::Signals => self.take_signals(),
            Token::Lifeline => self.look_at_lifeline(),
            Token::Connection(id) => self.serve(id),
            Token::Stdin(id) => {
                if let Some(exec) = self.execs.get_mut(&id) {
                    exec.stdin.flush();
                    self.touched_execs.push(id);
                }
            }
            Token::Stdout(id) | Token::Stderr(id) => self.touched_execs.push(id),
            Token::Drain(id) => {
                let ended = self
                    .drains
                    .get(&id)
                    .is_some_and(|pipe| sys::discard(pipe.as_fd()) == Discarded::Ended);
                if ended {
                    self.drains.remove(&id);
                }
            }
            Token::Dial(id) => self.go_on_dialing(id),
            Token::Carry(id) => self.touched_connections.push(id),
            Token::Shell(id) => self.serve_shell(id),
            Token::Keeper(id) => self.hear_keeper(id),
        }
    }

    /// Reads and handles the messages of a connection.
    fn serve(&mut self, id: Id) {
        self.touched_connections.push(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.role == Role::Carrying {
            return;
        }
        let received = connection.receive();
        if !connection.is_idle() {
            self.taken(id);
        }
        if received.is_err() || self.obey(id).is_err() {
            self.drop_connection(id);
        }
    }

    /// Executes every complete message that has arrived.
    fn obey(&mut self, id: Id) -> Result<(), Broken> {
        while let Some(connection) = self.connections.get_mut(&id) {
            match connection.role {
                Role::Greeting => {
                    if !connection.greet()? {
                        return Ok(());
                    }
                }
                Role::Requesting => match connection.next_request()? {
                    Some(op) => self.carry_out(id, op),
                    None => return Ok(()),
                },
                Role::Watching(exec) => match connection.next_message()? {
                    Some(message) => self.hear(id, exec, message)?,
                    None => return Ok(()),
                },
                Role::Receiving => match connection.next_message()? {
                    Some(message) => self.take_program(id, message)?,
                    None => return Ok(()),
                },
                Role::Terminating | Role::Awaiting => return Ok(()),
                Role::Dialing(_) if connection.is_silent() => return Ok(()),
                Role::Dialing(_) => return Err(Broken),
                Role::Carrying => return Ok(()),
                // Further messages are not read; pending answers are still sent.
                Role::Closing => return Ok(()),
            }
        }
        Ok(())
    }

    /// A message on the connection of an exec.
    fn hear(&mut self, connection: Id, id: Id, message: ToGuest) -> Result<(), Broken> {
        let exec = self.execs.get_mut(&id).ok_or(Broken)?;
        self.touched_execs.push(id);
        match exec.hear(message).map_err(|_| Broken)? {
            Heard::GoesOn => {}
            Heard::Forgotten => {
                self.hand_over_pipes(id);
                self.execs.remove(&id);
                self.connections.remove(&connection);
            }
        }
        Ok(())
    }

    /// Closes a connection; the exec that it watched continues.
    fn drop_connection(&mut self, id: Id) {
        let Some(connection) = self.connections.remove(&id) else { return };
        self.lost(id);
        self.dials.remove(&id);
        self.carries.remove(&id);
        self.arrivals.remove(&id);
        if let Role::Watching(exec) = connection.role
            && let Some(exec) = self.execs.get_mut(&exec)
            && exec.watcher == Some(id)
        {
            exec.watcher = None;
        }
        if let Some(shutdown) = &mut self.shutdown
            && shutdown.asker == Some(id)
        {
            shutdown.asker = None;
        }
    }

    fn take_signals(&mut self) {
        // Otherwise root inside could end the sandbox, which only the host may do.
        let from_host = |signal: &sys::Signal| {
            signal.number == libc::SIGTERM.cast_unsigned() && signal.sender == sys::Sender::Outside
        };
        let asked_to_end = sys::read_signals(&self.signals).iter().any(from_host);
        if asked_to_end && self.shutdown.is_none() {
            self.shutdown = Some(Shutdown::begin(None, SIGTERM_GRACE, Instant::now()));
        }
        self.reap();
    }

    /// Reaps every dead child, including adopted orphans.
    fn reap(&mut self) -> Children {
        // A process that stops a keeper again and again must not keep us here.
        let mut stops = STOPS_MAX;
        loop {
            match sys::reap(if stops > 0 { Stops::Told } else { Stops::NotTold }) {
                Reaped::Child(pid, exit) => self.reaped(pid, exit),
                Reaped::Stopped(pid) => {
                    stops -= 1;
                    self.stopped(pid);
                }
                Reaped::NoneDead => return Children::Some,
                Reaped::NoChildren => return Children::None,
            }
        }
    }

    /// The host holds the other end of the lifeline and writes nothing: an event means its end.
    fn look_at_lifeline(&mut self) {
        let ended = self
            .lifeline
            .as_ref()
            .is_some_and(|lifeline| sys::discard(lifeline.as_fd()) == Discarded::Ended);
        if ended {
            // As PID 1 our exit kills the rest; otherwise the signal does.
            signal_all(libc::SIGKILL);
            sys::exit(0);
        }
    }

    fn tick(&mut self, now: Instant) {
        for (&id, exec) in &mut self.execs {
            if exec.next_tick().is_some_and(|at| now >= at) {
                exec.tick(now);
                self.touched_execs.push(id);
            }
        }
        self.tick_shells(now);
        self.tick_strays(now);
    }

    /// Moves and sends everything that this turn has made possible. It terminates because sockets and windows are
    /// finite: further progress needs an event.
    fn settle_turn(&mut self) {
        while !self.touched_execs.is_empty() || !self.touched_connections.is_empty() {
            for id in std::mem::take(&mut self.touched_execs) {
                self.pump(id);
            }
            for id in std::mem::take(&mut self.touched_connections) {
                self.flush(id);
            }
        }
    }

    fn pump(&mut self, id: Id) {
        let Some(exec) = self.execs.get_mut(&id) else { return };
        if exec.stdin.watch == Watch::Wanted
            && let Some(pipe) = exec.stdin.pipe()
            && self.poll.add(pipe, Token::Stdin(id), Interest::WriteEdge).is_ok()
        {
            exec.stdin.watch = Watch::Watched;
            // Room that appeared before we watched would never be reported.
            exec.stdin.flush();
        }
        let connection = exec.watcher.and_then(|watcher| self.connections.get_mut(&watcher));
        exec.pump(connection);
        self.touched_connections.extend(exec.watcher);
        if exec.has_ended() {
            if let Some(shell) = exec.shell() {
                self.delivered(id, shell);
            }
            self.hand_over_pipes(id);
            self.forget_the_oldest();
        }
    }

    fn flush(&mut self, id: Id) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let Ok(mut interest) = connection.flush() else {
            self.drop_connection(id);
            return;
        };
        if let Some(carry) = self.carries.get_mut(&id)
            && interest == Interest::Read
        {
            let Ok(carried) = carry_on(&self.poll, id, carry, connection.socket()) else {
                self.drop_connection(id);
                return;
            };
            interest = carried;
        }
        let watched = std::mem::replace(&mut connection.watched, interest);
        let token = Token::Connection(id);
        if watched != interest && self.poll.change(connection.socket(), token, interest).is_err() {
            self.drop_connection(id);
            return;
        }
        // Output that did not fit the connection before.
        if let Role::Watching(exec_id) = connection.role
            && interest == Interest::Read
            && self.execs.get(&exec_id).is_some_and(Exec::has_unsent)
        {
            self.touched_execs.push(exec_id);
        }
    }

    /// An ended exec releases its pipes; those still held by background processes are drained.
    fn hand_over_pipes(&mut self, id: Id) {
        let Some(exec) = self.execs.get_mut(&id) else { return };
        let pipes = [exec.stdout.leave_pipe(), exec.stderr.leave_pipe()];
        self.drain(pipes);
    }

    fn drain(&mut self, pipes: [Option<OwnedFd>; 2]) {
        for pipe in pipes.into_iter().flatten() {
            let id = self.new_id();
            if self.poll.change(&pipe, Token::Drain(id), Interest::Read).is_ok() {
                self.drains.insert(id, pipe);
            }
        }
    }

    /// Limits how many ended execs wait for a host that does not come back.
    fn forget_the_oldest(&mut self) {
        let ended = || self.execs.iter().filter(|(_, exec)| exec.has_ended());
        if ended().count() > ENDED_MAX
            && let Some((&oldest, _)) = ended().find(|(_, exec)| exec.watcher.is_none())
        {
            self.execs.remove(&oldest);
        }
    }

    /// Continues the shutdown of the sandbox, if it was requested.
    fn shut_down(&mut self, now: Instant) -> Progress {
        if self.shutdown.is_none() {
            return Progress::Waiting;
        }
        let children = self.reap();
        self.settle_turn();
        let Some(shutdown) = &mut self.shutdown else { return Progress::Waiting };
        let progress = shutdown.tick(children, now);
        if progress == Progress::Over
            && let Some(asker) = shutdown.asker
            && let Some(connection) = self.connections.get_mut(&asker)
        {
            connection.conclude(&FromGuest::Done);
            self.flush(asker);
        }
        progress
    }
}
