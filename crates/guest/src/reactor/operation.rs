//! The operations. A request is answered, refused, or makes its connection the watcher of an exec.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use guest_proto::{Carrier, FromGuest, How, NAME_MAX, Offsets, Op, StdinMode, TerminalSize};
use libc::pid_t;

use super::{EXECS_MAX, Reactor};
use crate::connection::{Connection, Role};
use crate::exec::{Exec, Pipes};
use crate::plan::{NotStarted, Plan, Stdio, StdioKind};
use crate::poll::{Id, Interest, Token};
use crate::shutdown::Shutdown;
use crate::terminal::Terminal;
use crate::tree::Leaf;
use crate::{sys, user};

/// Why a request is refused.
pub(super) struct Refused(String);

impl Refused {
    pub(super) fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// The kind of a command and its streams.
pub(super) enum Manner {
    Streams,
    Terminal(TerminalSize),
    /// A supplied program, with streams.
    Kept(OwnedFd),
}

impl Reactor {
    /// Carries out the one request of a connection.
    pub(super) fn carry_out(&mut self, id: Id, op: Op) {
        let result = match op {
            Op::Ping => Ok(Some(FromGuest::Pong)),
            Op::Exec(request) => self.exec(id, &request, Manner::Streams).map(|()| None),
            Op::Keep { program, source } => self.keep(id, program, source),
            Op::ExecKept { program, exec } => self.exec_kept(id, &program, &exec),
            Op::Attach { exec_id, from } => self.attach(id, &exec_id, from).map(|()| None),
            Op::Signal { exec_id, signal } => self.signal(&exec_id, signal).map(|()| DONE),
            Op::Cancel { exec_id } => {
                let cancel = |exec: &mut Exec| exec.kill(How::Canceled, Instant::now());
                self.bring_to_an_end(&exec_id, cancel).map(|()| DONE)
            }
            Op::End { exec_id, grace_ms } => {
                let grace = Duration::from_millis(grace_ms);
                let end = |exec: &mut Exec| exec.end(grace, Instant::now());
                self.bring_to_an_end(&exec_id, end).map(|()| DONE)
            }
            Op::List => Ok(Some(FromGuest::Execs(self.execs.values().map(Exec::listed).collect()))),
            Op::Terminate { grace_ms } => self.terminate(id, grace_ms).map(|()| None),
            Op::Terminal { exec, size } => {
                self.exec(id, &exec, Manner::Terminal(size)).map(|()| None)
            }
            Op::Dial { port } => self.dial(id, port, Carrier::Descriptor).map(|()| None),
            Op::DialThrough { port } => self.dial(id, port, Carrier::Connection).map(|()| None),
            Op::ShellOpen(open) => self.open_shell(id, open),
            Op::ShellExec(request) => self.shell_exec(id, request),
            Op::Shells => Ok(Some(FromGuest::Shells(self.listed_shells()))),
            Op::ShellUsers => Ok(Some(FromGuest::ShellUsers(self.shell_users()))),
            Op::ShellClose { shell_id } => self.close_shell(id, &shell_id),
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        // Descriptors are only used by execs; those sent with another request are closed.
        drop(connection.take_descriptors());
        match result {
            Ok(Some(answer)) => connection.conclude(&answer),
            Ok(None) => {}
            Err(Refused(reason)) => connection.conclude(&FromGuest::Refused { reason }),
        }
    }

    pub(super) fn find(&mut self, exec_id: &str) -> Result<(Id, &mut Exec), Refused> {
        self.execs
            .iter_mut()
            .find(|(_, exec)| exec.exec_id == exec_id)
            .map(|(&id, exec)| (id, exec))
            .ok_or_else(|| Refused::because(format!("there is no exec {exec_id:?}")))
    }

    pub(super) fn exec(
        &mut self,
        id: Id,
        request: &guest_proto::Exec,
        manner: Manner,
    ) -> Result<(), Refused> {
        self.admit(request)?;
        let connection = self.connection(id)?;
        let descriptors = connection.take_descriptors();
        let (leaf, enter) = self.leaf(request.leaf, descriptors)?;
        let exec_id = self.new_id();
        let started = Instant::now();
        let mut exec = match self.start(exec_id, request, manner, &leaf, &enter) {
            Ok((pid, pipes)) => Exec::running(request, started, pid, leaf, pipes),
            Err(why) => Exec::not_started(request, why),
        };
        // From here on nothing is refused: a running command must be reported.
        if let Some(connection) = self.connections.get_mut(&id) {
            exec.watcher = Some(id);
            exec.introduce(connection);
            connection.role = Role::Watching(exec_id);
        }
        self.execs.insert(exec_id, exec);
        self.touched_execs.push(exec_id);
        Ok(())
    }

    fn admit(&mut self, request: &guest_proto::Exec) -> Result<(), Refused> {
        self.admit_exec(&request.exec_id)?;
        if request.argv.is_empty() {
            return Err(Refused::because("argv is empty"));
        }
        if request.leaf_name.len() > NAME_MAX {
            return Err(Refused::because("the name of the exec's leaf is too long"));
        }
        Ok(())
    }

    /// Whether another exec is allowed, with this id.
    pub(super) fn admit_exec(&mut self, exec_id: &str) -> Result<(), Refused> {
        let reason = if self.shutdown.is_some() {
            "the sandbox is ending"
        } else if exec_id.len() > NAME_MAX {
            "the id of the exec is too long"
        } else if self.execs.len() >= EXECS_MAX {
            "too many execs are running or not yet collected"
        } else if self.find(exec_id).is_ok() {
            "an exec of this id exists"
        } else {
            return Ok(());
        };
        Err(Refused::because(reason))
    }

    pub(super) fn connection(&mut self, id: Id) -> Result<&mut Connection, Refused> {
        self.connections.get_mut(&id).ok_or_else(|| Refused::because("the connection is gone"))
    }

    fn start(
        &mut self,
        id: Id,
        request: &guest_proto::Exec,
        manner: Manner,
        leaf: &Leaf,
        enter: &[OwnedFd],
    ) -> Result<(pid_t, Pipes), NotStarted> {
        let (what, made, program) = match manner {
            Manner::Streams => ("standard streams", self.pipes(request.stdin), None),
            Manner::Kept(file) => ("standard streams", self.pipes(request.stdin), Some(file)),
            Manner::Terminal(size) => {
                let opened = Terminal::open(owner(&request.user)?, size, request.stdin);
                ("terminal", opened, None)
            }
        };
        let (pipes, stdio) = made.map_err(|error| {
            NotStarted::cannot(format!("cannot make the command's {what}: {error}"))
        })?;
        let mut plan = Plan::new(request, stdio, enter, self.spawner.descriptor_limit)?;
        plan.program = program;
        // Before the process exists: one that cannot be watched must not run.
        self.watch_pipes(id, &pipes)?;
        let pid = self.launch(plan, leaf)?;
        Ok((pid, pipes))
    }

    /// The pipes of a new exec: our non-blocking ends, and its own.
    pub(super) fn pipes(&mut self, stdin: StdinMode) -> std::io::Result<(Pipes, Stdio)> {
        use std::os::fd::AsFd;
        let (stdout, child_stdout) = sys::pipe()?;
        let (stderr, child_stderr) = sys::pipe()?;
        sys::set_nonblocking(stdout.as_fd())?;
        sys::set_nonblocking(stderr.as_fd())?;
        let (child_stdin, stdin) = match stdin {
            StdinMode::Null => (self.spawner.null()?, None),
            StdinMode::Piped => {
                let (child_stdin, stdin) = sys::pipe()?;
                sys::set_nonblocking(stdin.as_fd())?;
                (child_stdin, Some(stdin))
            }
        };
        let stdio = Stdio {
            stdin: child_stdin,
            stdout: child_stdout,
            stderr: child_stderr,
            kind: StdioKind::Streams,
        };
        Ok((Pipes { stdin, stdout, stderr: Some(stderr), terminal: None }, stdio))
    }

    fn watch_pipes(&mut self, id: Id, pipes: &Pipes) -> Result<(), NotStarted> {
        self.poll
            .add(&pipes.stdout, Token::Stdout(id), Interest::ReadEdge)
            .and_then(|()| match &pipes.stderr {
                Some(stderr) => self.poll.add(stderr, Token::Stderr(id), Interest::ReadEdge),
                None => Ok(()),
            })
            .map_err(|error| NotStarted::cannot(format!("cannot watch the command: {error}")))
    }

    fn attach(&mut self, id: Id, exec_id: &str, from: Offsets) -> Result<(), Refused> {
        let (key, exec) = self.find(exec_id)?;
        let former = exec.watcher;
        exec.attach(id, from)
            .map_err(|_| Refused::because("the exec has not said that much yet"))?;
        if let Some(former) = former {
            self.connections.remove(&former);
        }
        let (Some(exec), Some(connection)) = (self.execs.get(&key), self.connections.get_mut(&id))
        else {
            return Err(Refused::because("the connection is gone"));
        };
        exec.introduce(connection);
        connection.role = Role::Watching(key);
        self.touched_execs.push(key);
        Ok(())
    }

    fn signal(&mut self, exec_id: &str, signal: i32) -> Result<(), Refused> {
        let (id, exec) = self.find(exec_id)?;
        if let Some(shell) = exec.shell() {
            return self.signal_in_shell(id, shell, signal);
        }
        if !exec.owns_pid() {
            return Err(Refused::because(format!("exec {exec_id:?} has ended")));
        }
        sys::kill(exec.pid, signal)
            .map_err(|error| Refused::because(format!("cannot send signal {signal}: {error}")))
    }

    /// Applies an operation that leads to the end of an exec.
    fn bring_to_an_end(
        &mut self,
        exec_id: &str,
        act: impl FnOnce(&mut Exec),
    ) -> Result<(), Refused> {
        let (id, exec) = self.find(exec_id)?;
        if let Some(shell) = exec.shell() {
            return self.cancel_in_shell(id, shell);
        }
        if !exec.is_under_way() {
            return Err(Refused::because(format!("exec {exec_id:?} has ended")));
        }
        act(exec);
        self.touched_execs.push(id);
        Ok(())
    }

    fn terminate(&mut self, id: Id, grace_ms: u64) -> Result<(), Refused> {
        // A second request, or one after a signal, may shorten the grace period; it also receives the end.
        let grace = Duration::from_millis(grace_ms);
        self.shutdown = Some(Shutdown::begin(Some(id), grace, Instant::now()));
        self.connection(id)?.role = Role::Terminating;
        Ok(())
    }
}

/// The owner of a command's terminal, and of a shell's pipes.
pub(super) fn owner(user: &str) -> Result<u32, NotStarted> {
    let account = user::find(user).map_err(|error| NotStarted::cannot(error.to_string()))?;
    Ok(account.uid)
}

const DONE: Option<FromGuest> = Some(FromGuest::Done);
