//! Shells in the loop: requests, turns, and answers.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_proto::{
    Fate, FromGuest, How, ListedShell, NAME_MAX, SHELL_COMMAND_MAX, SHELLS_MAX, ShellExec,
    ShellOpen, ShellProgram, ShellRefusal, StdinMode,
};
use libc::pid_t;

use super::Reactor;
use super::operation::{Refused, owner};
use crate::connection::Role;
use crate::exec::{Exec, Pipes, ShellProcess};
use crate::plan::{NotStarted, Plan};
use crate::poll::{Id, Interest, Token};
use crate::shell::{
    Channel, Dialect, Due, Heard, Process, Report, Reported, Shell, State, Waiting, as_exec,
    dialects,
};
use crate::sys::Exit;
use crate::tree::Leaf;

/// Whether a dead child was a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Found,
    Unknown,
}

const ENDED_BEFORE: &str = "the shell ended before the turn of this command came; open another";

impl Reactor {
    /// Opens a shell for the connection `asker`, which is answered when the shell is ready.
    pub(super) fn open_shell(
        &mut self,
        asker: Id,
        open: ShellOpen,
    ) -> Result<Option<FromGuest>, Refused> {
        self.admit_shell(&open)?;
        if self.shells.len() >= SHELLS_MAX {
            return Ok(Some(FromGuest::ShellRefused(ShellRefusal::TooMany)));
        }
        let descriptors = self.connection(asker)?.take_descriptors();
        let (leaf, enter) = self.leaf(open.leaf, descriptors)?;
        let id = self.new_id();
        let mut started = Err(NotStarted::not_found("there is no such shell"));
        for &dialect in dialects(open.program) {
            started = self
                .start_shell(id, &open, dialect, (&leaf, &enter))
                .map(|process| (dialect, process));
            if !matches!(&started, Err(NotStarted { code: 127, .. })) {
                break;
            }
        }
        let (dialect, process) = started.map_err(|why| no_shell(open.program, why))?;
        self.shells.insert(id, Shell::new(open, dialect, (leaf, enter), process, asker));
        self.connection(asker)?.role = Role::Awaiting;
        Ok(None)
    }

    pub(super) fn listed_shells(&self) -> Vec<ListedShell> {
        self.shells.values().map(Shell::listed).collect()
    }

    pub(super) fn shell_users(&self) -> Vec<(String, String)> {
        let requests = self.shells.values().map(|shell| &shell.request);
        requests.map(|open| (open.shell_id.clone(), open.user.clone())).collect()
    }

    fn admit_shell(&self, open: &ShellOpen) -> Result<(), Refused> {
        let reason = if self.shutdown.is_some() {
            "the sandbox is ending"
        } else if open.shell_id.len() > NAME_MAX || open.leaf_name.len() > NAME_MAX {
            "the id of the shell or the name of its leaf is too long"
        } else if self.shells.values().any(|shell| shell.request.shell_id == open.shell_id) {
            "a shell of this id exists"
        } else {
            return Ok(());
        };
        Err(Refused::because(reason))
    }

    fn start_shell(
        &mut self,
        id: Id,
        open: &ShellOpen,
        dialect: Dialect,
        (leaf, enter): (&Leaf, &[OwnedFd]),
    ) -> Result<Process, NotStarted> {
        let cannot = |error| NotStarted::cannot(format!("cannot make the shell's pipes: {error}"));
        let (Pipes { stdout, stderr, .. }, stdio) = self.pipes(StdinMode::Null).map_err(cannot)?;
        let (mut channel, given) = Channel::open(dialect, owner(&open.user)?).map_err(cannot)?;
        let exec = as_exec(open, dialect);
        let mut plan = Plan::new(&exec, stdio, enter, self.spawner.descriptor_limit)?;
        plan.given = given;
        let token = Token::Shell(id);
        let [script, status] = channel.watched();
        self.poll
            .add(script, token, Interest::WriteEdge)
            .and_then(|()| self.poll.add(status, token, Interest::ReadEdge))
            .and_then(|()| self.poll.add(&stdout, token, Interest::ReadEdge))
            .and_then(|()| {
                stderr.iter().try_for_each(|pipe| self.poll.add(pipe, token, Interest::ReadEdge))
            })
            .map_err(cannot)?;
        channel.flush();
        let pid = self.launch(plan, leaf)?;
        Ok(Process { pid, channel, stdout: Some(stdout), stderr })
    }

    /// Queues a command for a shell; it runs when its turn comes. Returns the answer, if there is one now.
    pub(super) fn shell_exec(
        &mut self,
        watcher: Id,
        request: ShellExec,
    ) -> Result<Option<FromGuest>, Refused> {
        self.admit_shell_exec(&request)?;
        let exec_id = self.new_id();
        let Some((&id, shell)) =
            self.shells.iter_mut().find(|(_, shell)| shell.request.shell_id == request.shell_id)
        else {
            return Ok(Some(FromGuest::ShellRefused(ShellRefusal::Unknown)));
        };
        if let State::Ended | State::Closing(_) = shell.state {
            return Ok(Some(FromGuest::ShellRefused(ShellRefusal::Ended)));
        }
        if !shell.has_room_for(&request.command) {
            return Ok(Some(FromGuest::ShellRefused(ShellRefusal::Full)));
        }
        let place = ShellProcess { pid: shell.pid, leaf_name: shell.request.leaf_name.clone() };
        let mut exec = Exec::waiting(&request, id, place);
        shell.queue.push_back(Waiting {
            exec: exec_id,
            command: request.command,
            stdin: request.stdin,
            timeout: request.timeout_ms.map(Duration::from_millis),
        });
        if let Some(connection) = self.connections.get_mut(&watcher) {
            exec.watcher = Some(watcher);
            exec.introduce(connection);
            connection.role = Role::Watching(exec_id);
        }
        self.execs.insert(exec_id, exec);
        self.touched_execs.push(exec_id);
        self.next_turn(id);
        Ok(None)
    }

    fn admit_shell_exec(&mut self, request: &ShellExec) -> Result<(), Refused> {
        self.admit_exec(&request.exec_id)?;
        if request.command.len() > SHELL_COMMAND_MAX || request.command.contains('\0') {
            return Err(Refused::because("the command is too long or holds a NUL byte"));
        }
        Ok(())
    }

    /// Starts the next command of an idle shell.
    fn next_turn(&mut self, id: Id) {
        let now = Instant::now();
        while let Some(shell) = self.shells.get_mut(&id)
            && let State::Idle = shell.state
            && let Some(waiting) = shell.queue.pop_front()
        {
            let Some(exec) = self.execs.get_mut(&waiting.exec) else { continue };
            self.touched_execs.push(waiting.exec);
            match shell.run(&waiting, now) {
                Err(error) => {
                    let why = format!("cannot give the shell its command: {error}");
                    exec.give_up(Some(why), Fate::Kept);
                }
                Ok(stdin) => {
                    let (stdout, stderr) = (shell.stdout.take(), shell.stderr.take());
                    let tokens = [Token::Stdout(waiting.exec), Token::Stderr(waiting.exec)];
                    for (pipe, token) in [&stdout, &stderr].into_iter().zip(tokens) {
                        if let Some(pipe) = pipe {
                            // Both are watched already; only the target changes.
                            let _ = self.poll.change(pipe, token, Interest::ReadEdge);
                        }
                    }
                    exec.begin(now, stdin, [stdout, stderr], shell.take_skipped());
                }
            }
        }
    }

    /// An event on the private descriptors of a shell, or on its output between commands.
    pub(super) fn serve_shell(&mut self, id: Id) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        shell.channel.flush();
        shell.look_at_idle_output();
        loop {
            let Some(shell) = self.shells.get_mut(&id) else { return };
            match shell.channel.hear() {
                Heard::Nothing => return,
                Heard::Report(report) => self.take_report(id, report),
                Heard::Junk => shell.broken(Instant::now()),
                Heard::Closed => return shell.deafened(Instant::now()),
            }
        }
    }

    fn take_report(&mut self, id: Id, report: Report) {
        let now = Instant::now();
        let Some(shell) = self.shells.get_mut(&id) else { return };
        match shell.take_report(report) {
            Reported::Nothing => {}
            Reported::Interrupted => self.tick_shell(id, now),
            Reported::Ready(asker) => {
                let opened = FromGuest::ShellOpened(shell.listed());
                self.answer(asker, &opened);
                self.next_turn(id);
            }
            Reported::Finished(exec_id, how) => self.finish(exec_id, how, Fate::Kept),
        }
    }

    fn finish(&mut self, exec_id: Id, how: How, fate: Fate) {
        if let Some(exec) = self.execs.get_mut(&exec_id) {
            exec.finish(how, fate, Instant::now());
            self.touched_execs.push(exec_id);
        }
    }

    fn answer(&mut self, asker: Option<Id>, message: &FromGuest) {
        if let Some(asker) = asker
            && let Some(connection) = self.connections.get_mut(&asker)
            && connection.role == Role::Awaiting
        {
            connection.conclude(message);
            self.touched_connections.push(asker);
        }
    }

    /// A command of a shell has ended with all its output: the pipes belong to the shell again.
    pub(super) fn delivered(&mut self, exec_id: Id, id: Id) {
        let (Some(exec), Some(shell)) = (self.execs.get_mut(&exec_id), self.shells.get_mut(&id))
        else {
            return;
        };
        if !matches!(shell.state, State::Delivering(current) if current == exec_id) {
            return;
        }
        shell.stdout = exec.stdout.give_back();
        shell.stderr = exec.stderr.give_back();
        for pipe in [&shell.stdout, &shell.stderr].into_iter().flatten() {
            let _ = self.poll.change(pipe, Token::Shell(id), Interest::ReadEdge);
        }
        shell.state = State::Idle;
        self.next_turn(id);
    }

    pub(super) fn tick_shells(&mut self, now: Instant) {
        let due = |(&id, shell): (&Id, &Shell)| {
            shell.next_tick().is_some_and(|at| now >= at).then_some(id)
        };
        let due: Vec<Id> = self.shells.iter().filter_map(due).collect();
        for id in due {
            self.tick_shell(id, now);
        }
    }

    fn tick_shell(&mut self, id: Id, now: Instant) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        match shell.tick(now) {
            Due::Nothing => {}
            Due::TimeIsUp => self.interrupt(id, How::TimedOut, now),
            Due::NeverReady => {
                let reason = "the shell does not read its commands as they come; try another";
                self.never_opened(id, reason.to_owned());
            }
            Due::Replace => self.replace(id),
            Due::Gone => {
                let Some(shell) = self.shells.remove(&id) else { return };
                self.drain([shell.stdout, shell.stderr]);
                if let State::Closing(closing) = shell.state {
                    for asker in closing.askers {
                        self.answer(Some(asker), &FromGuest::Done);
                    }
                }
            }
        }
    }

    /// Forgets a requested shell that could not be started; ends one whose replacement failed.
    fn never_opened(&mut self, id: Id, reason: String) {
        let now = Instant::now();
        let Some(shell) = self.shells.get_mut(&id) else { return };
        match std::mem::replace(&mut shell.state, State::Ended) {
            State::Opening { asker: None, .. } => {
                let _ = shell.leaf.kill();
                self.ended(id);
            }
            State::Opening { asker, .. } => {
                shell.close(None, now);
                self.answer(asker, &FromGuest::Refused { reason });
                self.tick_shell(id, now);
            }
            other => shell.state = other,
        }
    }

    fn interrupt(&mut self, id: Id, verdict: How, now: Instant) {
        if let Some(shell) = self.shells.get_mut(&id) {
            shell.interrupt(verdict, now);
            self.tick_shell(id, now);
        }
    }

    /// Starts a new process for a shell that did not abandon its command.
    fn replace(&mut self, id: Id) {
        let Some(mut shell) = self.shells.remove(&id) else { return };
        let State::Interrupting(interrupt) = &shell.state else {
            self.shells.insert(id, shell);
            return;
        };
        let (exec, verdict) = (interrupt.run.exec, interrupt.verdict);
        let started =
            self.start_shell(id, &shell.request, shell.dialect, (&shell.leaf, &shell.enter));
        let fate = match started {
            Ok(process) => {
                shell.renew(process);
                Fate::Replaced
            }
            Err(_) => {
                shell.state = State::Ended;
                Fate::Ended
            }
        };
        self.shells.insert(id, shell);
        self.finish(exec, verdict, fate);
        if fate == Fate::Ended {
            self.ended(id);
        }
    }

    /// A dead child may have been a shell: whether it was, and what happens to its commands.
    pub(super) fn reaped_shell(&mut self, pid: pid_t, exit: Exit) -> Owner {
        let owner = self.shells.iter_mut().find(|(_, shell)| shell.pid == pid);
        let Some((&id, shell)) = owner else { return Owner::Unknown };
        let now = Instant::now();
        shell.pid = 0;
        let how = How::from(exit);
        match &shell.state {
            State::Opening { .. } => {
                let reason = match shell.dialect {
                    Dialect::Bash => format!("bash ended before it was ready: {how:?}"),
                    Dialect::Sh => format!(
                        "sh ended before it was ready: {how:?}; if it is a bash here, ask for bash"
                    ),
                };
                self.never_opened(id, reason);
            }
            State::Running(run) => {
                let exec = run.exec;
                shell.state = State::Ended;
                self.finish(exec, how, Fate::Ended);
                self.ended(id);
            }
            State::Interrupting(_) | State::Settling(_) => {
                shell.give_up_hope(now);
                self.tick_shell(id, now);
            }
            State::Idle | State::Delivering(_) => {
                shell.state = State::Ended;
                self.ended(id);
            }
            State::Closing(_) => self.tick_shell(id, now),
            State::Ended => {}
        }
        Owner::Found
    }

    /// No further command will run in this shell, and the output of its background jobs is discarded.
    fn ended(&mut self, id: Id) {
        let Some(shell) = self.shells.get_mut(&id) else { return };
        let waiting = std::mem::take(&mut shell.queue);
        let pipes = [shell.stdout.take(), shell.stderr.take()];
        for Waiting { exec, .. } in waiting {
            if let Some(given_up) = self.execs.get_mut(&exec) {
                given_up.give_up(Some(ENDED_BEFORE.to_owned()), Fate::Ended);
                self.touched_execs.push(exec);
            }
        }
        self.drain(pipes);
    }

    /// Kills a shell with all its processes; `asker` is answered when nothing is left.
    pub(super) fn close_shell(
        &mut self,
        asker: Id,
        shell_id: &str,
    ) -> Result<Option<FromGuest>, Refused> {
        let found = self.shells.iter().find(|(_, shell)| shell.request.shell_id == shell_id);
        let Some((&id, _)) = found else {
            return Ok(Some(FromGuest::ShellRefused(ShellRefusal::Unknown)));
        };
        self.connection(asker)?.role = Role::Awaiting;
        let now = Instant::now();
        let Some(shell) = self.shells.get_mut(&id) else { return Ok(None) };
        let current = shell.current();
        shell.close(Some(asker), now);
        if let Some(exec) = current {
            self.finish(exec, How::Canceled, Fate::Ended);
        }
        self.ended(id);
        self.tick_shell(id, now);
        Ok(None)
    }

    /// Cancels a command of a shell: before its turn, or while it runs.
    pub(super) fn cancel_in_shell(&mut self, exec_id: Id, id: Id) -> Result<(), Refused> {
        let Some(shell) = self.shells.get_mut(&id) else {
            return Err(Refused::because("the shell is gone"));
        };
        if let Some(at) = shell.queue.iter().position(|waiting| waiting.exec == exec_id) {
            shell.queue.remove(at);
            if let Some(exec) = self.execs.get_mut(&exec_id) {
                exec.give_up(None, Fate::Kept);
                self.touched_execs.push(exec_id);
            }
            return Ok(());
        }
        if !matches!(&shell.state, State::Running(run) if run.exec == exec_id) {
            return Err(Refused::because("the exec has ended, or is ending"));
        }
        self.interrupt(id, How::Canceled, Instant::now());
        Ok(())
    }

    /// Signals the processes that a shell's command has started; never the shell itself.
    pub(super) fn signal_in_shell(
        &mut self,
        exec_id: Id,
        id: Id,
        signal: i32,
    ) -> Result<(), Refused> {
        let running = self
            .shells
            .get(&id)
            .filter(|shell| matches!(&shell.state, State::Running(run) if run.exec == exec_id));
        let shell = running.ok_or_else(|| Refused::because("the exec does not run"))?;
        shell
            .signal(signal)
            .map_err(|error| Refused::because(format!("cannot send signal {signal}: {error}")))
    }
}

/// Why a shell cannot be opened. In an image with a single program there may be none, permanently.
fn no_shell(wanted: ShellProgram, why: NotStarted) -> Refused {
    match (wanted, why) {
        (ShellProgram::Any, NotStarted { code: 127, .. }) => Refused::because(
            "the sandbox has neither bash nor sh in its PATH; run its programs by `argv` instead",
        ),
        (_, NotStarted { error, .. }) => Refused::because(error),
    }
}
