//! A command of a shell. It is admitted, journaled and watched like every exec; only the guest starts it differently.

use std::sync::Arc;

use jiff::Timestamp;

use super::pump::PendingExec;
use super::{Running, admitted, check_timeout, invalid, sending};
use crate::ShellExecDraft;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{ExecId, ShellId, failpoint, limits};
use sandkeep_guestlink::{
    ShellExecRequest, Stdin,
    journal::{Description, Keep, StdinSource},
};
use sandkeep_traces::{step, within};

/// A command, and the shell to run it in.
pub(crate) struct ShellCommand {
    pub id: ExecId,
    pub shell: ShellId,
    pub draft: ShellExecDraft,
}

/// Admits a command, creates its journal, and passes it to its shell.
pub(crate) async fn exec_in_shell(
    shared: &Arc<Shared>,
    handle: &Handle,
    command: ShellCommand,
) -> Result<Running, Error> {
    if shared.closing.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    let guest = admitted(handle)?;
    let ShellCommand { id, shell, draft } = command;
    check(&draft)?;
    // The user may be unknown here: if the shell does not exist, the command itself reports that.
    let user = guest.shell_user(&shell).await.unwrap_or_default();
    let description = description(&id, &shell, user, &draft);
    let pending = PendingExec::begin(shared, handle, &description)?;
    failpoint!("exec.after_journal");
    let request = ShellExecRequest {
        id: id.clone(),
        shell,
        command: draft.command,
        stdin: match draft.stdin {
            StdinSource::None => Stdin::Null,
            StdinSource::Given | StdinSource::Open => Stdin::Piped,
        },
        timeout: draft.timeout,
    };
    let answer = within(step!("guest.start"), guest.exec_in_shell(request));
    let pump = sending::watch_over(&guest, &id, answer, pending).await?;
    if draft.stdin == StdinSource::Open {
        handle.execs.stdins.open(id, pump.input());
    }
    Ok(Running::new(guest, pump, draft.on_disconnect))
}

fn check(draft: &ShellExecDraft) -> Result<(), Error> {
    let (size, max) = (draft.command.len(), limits::SHELL_COMMAND_MAX_BYTES);
    if size > max {
        let problem = format!("it has {size} bytes, more than {max}; use a file or stdin");
        return Err(invalid("command", problem));
    }
    if draft.command.contains('\0') {
        return Err(invalid("command", "it holds NUL".to_owned()));
    }
    check_timeout(draft.timeout)
}

fn description(id: &ExecId, shell: &ShellId, user: String, draft: &ShellExecDraft) -> Description {
    Description {
        exec_id: id.clone(),
        argv: vec![draft.command.clone()],
        cwd: None,
        user,
        started_at: Timestamp::now(),
        timeout_ms: draft.timeout.map(sandkeep_core::millis),
        stdin: draft.stdin,
        terminal: false,
        keep: Keep::AmongTheLast,
        shell_id: Some(shell.clone()),
    }
}
