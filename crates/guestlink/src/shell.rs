//! The host's side of persistent shells. A command of a shell is an [`Execution`] like any other; its end has the state
//! of the shell.
//!
//! A shell has one leaf while it is open, shared by its commands. So whether a command ran out of memory is determined
//! by the increase of the leaf's counter since it was sent.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guest_proto::{
    FRAME_MAX, Fate, FromGuest, ListedShell, Op, SHELL_COMMAND_MAX, SHELL_QUEUE_MAX, ShellExec,
    ShellOpen, ShellRefusal,
};

use super::client::{Along, GuestClient, unexpected, wire_privilege, wire_stdin};
use super::leaf::{Dispatch, Leaf};
use super::{ExecLimits, Execution, GuestError, Offsets, Stdin};
use sandkeep_core::{
    ExecId, Privilege, ShellId,
    api::{ShellFate, ShellProgram, ShellState},
    limits,
};

/// A shell to open. The host builds the whole environment; nothing is inherited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellRequest {
    pub id: ShellId,
    /// Default: bash if it exists, otherwise sh.
    pub program: Option<ShellProgram>,
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    /// As in the guest protocol's `Exec`.
    pub user: String,
    pub privilege: Privilege,
}

/// A command for a shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShellExecRequest {
    pub id: ExecId,
    pub shell: ShellId,
    pub command: String,
    pub stdin: Stdin,
    /// From its own start, not from when it was queued.
    pub timeout: Option<Duration>,
}

/// A shell that the guest knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownShell {
    pub id: ShellId,
    pub program: ShellProgram,
    pub state: ShellState,
    /// Number of queued commands.
    pub waiting: u32,
    pub created: SystemTime,
}

/// The shell's state at the end of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct InShell {
    pub fate: ShellFate,
    /// The amount of discarded output of background jobs before this command.
    pub skipped: Offsets,
}

impl From<guest_proto::ShellEnd> for InShell {
    fn from(end: guest_proto::ShellEnd) -> Self {
        let fate = match end.fate {
            Fate::Kept => ShellFate::Kept,
            Fate::Replaced => ShellFate::Replaced,
            Fate::Ended => ShellFate::Ended,
        };
        Self { fate, skipped: end.skipped }
    }
}

/// The users of shells, as far as known here. The user of a new shell is known; for those of an earlier daemon the
/// guest is asked once.
#[derive(Default)]
pub(super) struct ShellUsers(Mutex<HashMap<ShellId, String>>);

impl ShellUsers {
    fn known(&self) -> MutexGuard<'_, HashMap<ShellId, String>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuestClient {
    pub(super) async fn user_of(&self, id: &ShellId) -> Option<String> {
        let known = self.shell_users.known().get(id).cloned();
        if known.is_some() {
            return known;
        }
        if let Ok(FromGuest::ShellUsers(users)) = self.ask(&Op::ShellUsers).await {
            let users = users.into_iter().filter_map(|(id, user)| Some((id.parse().ok()?, user)));
            self.shell_users.known().extend(users);
        }
        self.shell_users.known().get(id).cloned()
    }

    pub(super) async fn open(&self, request: ShellRequest) -> Result<KnownShell, GuestError> {
        let (id, user) = (request.id.clone(), request.user.clone());
        let leaf = self.acquire(&ExecLimits::default())?;
        let open = wire_open(request, &*leaf);
        let env: usize = open.env.iter().map(|(name, value)| name.len() + value.len()).sum();
        if env > FRAME_MAX / 2 {
            return Err(GuestError::Refused { reason: "the environment is too long".to_owned() });
        }
        let dispatch = Dispatch::new(self.leaves.clone(), &id, leaf);
        let answer =
            self.request(&Op::ShellOpen(open), Along::Leaf(&dispatch), limits::SHELL_OPEN).await;
        drop(dispatch);
        let shell = match answer {
            Ok((_, FromGuest::ShellOpened(listed))) => {
                self.shell_users.known().insert(id.clone(), user);
                known(listed)
            }
            Ok((_, FromGuest::ShellRefused(refusal))) => Err(refused(id.clone(), refusal)),
            Ok((_, other)) => Err(unexpected(other)),
            Err(error) => Err(error),
        };
        if let Err(
            GuestError::Refused { .. }
            | GuestError::Version { .. }
            | GuestError::TooManyShells { .. },
        ) = &shell
        {
            self.leaves.give_back(&id);
        }
        shell
    }

    /// Takes over the leaves of shells that an earlier daemon opened.
    pub(super) async fn list_shells(&self) -> Result<Vec<KnownShell>, GuestError> {
        let listed = match self.ask(&Op::Shells).await? {
            FromGuest::Shells(listed) => listed,
            other => return Err(unexpected(other)),
        };
        for shell in &listed {
            // An id in another format is not from a sandkeep, and is ignored.
            let Ok(id) = shell.shell_id.parse::<ShellId>() else { continue };
            if !self.leaves.holds(&id) {
                self.adopt(&id, &shell.leaf_name);
            }
        }
        Ok(listed.into_iter().filter_map(|shell| known(shell).ok()).collect())
    }

    pub(super) async fn run_in_shell(
        &self,
        request: ShellExecRequest,
    ) -> Result<Execution, GuestError> {
        if request.command.len() > SHELL_COMMAND_MAX {
            return Err(GuestError::Refused { reason: "the command is too long".to_owned() });
        }
        if !self.leaves.holds(&request.shell) {
            self.list_shells().await?;
        }
        let (id, shell, stdin) = (request.id.clone(), request.shell.clone(), request.stdin);
        self.leaves.share(&shell, &id);
        let op = Op::ShellExec(ShellExec {
            shell_id: request.shell.to_string(),
            exec_id: request.id.to_string(),
            command: request.command,
            stdin: wire_stdin(request.stdin),
            timeout_ms: request.timeout.map(sandkeep_core::millis),
        });
        let answer = self.request(&op, Along::Nothing, limits::GUEST_ANSWER).await;
        let execution = match answer {
            Ok((_, FromGuest::ShellRefused(refusal))) => Err(refused(shell, refusal)),
            Ok(answer) => self.execution(id.clone(), stdin, Offsets::default(), answer),
            Err(error) => Err(error),
        };
        if let Err(
            GuestError::Refused { .. }
            | GuestError::Version { .. }
            | GuestError::ShellNotFound { .. }
            | GuestError::ShellEnded { .. }
            | GuestError::ShellQueueFull { .. },
        ) = &execution
        {
            self.leaves.give_back(&id);
        }
        execution
    }

    pub(super) async fn close(&self, id: &ShellId) -> Result<(), GuestError> {
        let op = Op::ShellClose { shell_id: id.to_string() };
        match self.request(&op, Along::Nothing, limits::GUEST_ANSWER).await?.1 {
            FromGuest::Done => {
                self.leaves.give_back(id);
                self.shell_users.known().remove(id);
                Ok(())
            }
            FromGuest::ShellRefused(refusal) => Err(refused(id.clone(), refusal)),
            other => Err(unexpected(other)),
        }
    }
}

fn refused(id: ShellId, refusal: ShellRefusal) -> GuestError {
    match refusal {
        ShellRefusal::Unknown => GuestError::ShellNotFound { id },
        ShellRefusal::Ended => GuestError::ShellEnded { id },
        ShellRefusal::Full => GuestError::ShellQueueFull { id, limit: SHELL_QUEUE_MAX },
        ShellRefusal::TooMany => {
            GuestError::TooManyShells { limit: limits::SHELLS_PER_SANDBOX_MAX }
        }
    }
}

fn wire_open(request: ShellRequest, leaf: &dyn Leaf) -> ShellOpen {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ShellOpen {
        shell_id: request.id.to_string(),
        program: match request.program {
            None => guest_proto::ShellProgram::Any,
            Some(ShellProgram::Bash) => guest_proto::ShellProgram::Bash,
            Some(ShellProgram::Sh) => guest_proto::ShellProgram::Sh,
        },
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        privilege: wire_privilege(request.privilege),
        leaf: leaf.kind(),
        leaf_name: leaf.name().to_owned(),
        created_ms: sandkeep_core::millis(since_1970),
    }
}

fn known(listed: ListedShell) -> Result<KnownShell, GuestError> {
    let wrong = |what: &str| GuestError::Protocol(format!("it listed a shell with {what}"));
    Ok(KnownShell {
        id: listed.shell_id.parse().map_err(|_| wrong("an id that nobody gave"))?,
        program: match listed.program {
            guest_proto::ShellProgram::Bash => ShellProgram::Bash,
            guest_proto::ShellProgram::Sh => ShellProgram::Sh,
            guest_proto::ShellProgram::Any => return Err(wrong("no program")),
        },
        state: match listed.state {
            guest_proto::ShellState::Ready => ShellState::Ready,
            guest_proto::ShellState::Busy => ShellState::Busy,
            guest_proto::ShellState::Ended => ShellState::Ended,
        },
        waiting: listed.waiting,
        created: UNIX_EPOCH
            .checked_add(Duration::from_millis(listed.created_ms))
            .ok_or_else(|| wrong("an impossible date"))?,
    })
}
