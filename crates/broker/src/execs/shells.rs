//! Verbs for persistent shells. The guest holds them, with their state and queues, so nothing is recorded here: a shell
//! exists as long as its sandbox runs, independent of the daemon. A command of a shell is an exec with a journal like
//! any other.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::error::Error;
use crate::execs::{ExecContext, ShellCommand, Wanted, admitted, as_asked, exec_in_shell};
use crate::lifecycle::handle::Handle;
use crate::{Broker, OnDisconnect, Running};
use sandkeep_core::{ExecId, NamesOnly, Principal, SandboxId, ShellId, Verb};
use sandkeep_guestlink::{
    Guest, GuestError, KnownShell, ShellProgram, ShellRequest, journal::StdinSource,
};

pub use sandkeep_core::api::Shell as ShellView;

/// A shell as requested, before validation.
#[derive(Clone, Default)]
pub struct ShellDraft {
    pub program: Option<ShellProgram>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
}

impl fmt::Debug for ShellDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShellDraft")
            .field("program", &self.program)
            .field("env", &NamesOnly(&self.env))
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .finish()
    }
}

/// A command for a shell as requested.
#[derive(Clone, Debug)]
pub struct ShellExecDraft {
    pub command: String,
    pub stdin: StdinSource,
    pub timeout: Option<Duration>,
    pub on_disconnect: OnDisconnect,
}

async fn view(guest: &dyn Guest, shell: KnownShell) -> ShellView {
    let KnownShell { id, program, state, waiting, created } = shell;
    let user = guest.shell_user(&id).await.map(|user| as_asked(&user).to_owned());
    let created_at = Timestamp::try_from(created).unwrap_or(Timestamp::UNIX_EPOCH);
    ShellView { id, shell: program, state, user, waiting, created_at }
}

impl Broker {
    /// Opens a persistent shell in a running sandbox.
    pub async fn open_shell(
        &self,
        who: &Principal,
        id: &SandboxId,
        draft: ShellDraft,
    ) -> Result<ShellView, Error> {
        let handle = self.shared.find(who, id)?;
        let guest = admitted(&handle)?;
        let request = shell_request(&handle, draft)?;
        let shell = request.id.clone();
        match guest.open_shell(request).await {
            Ok(shell) => Ok(view(&*guest, shell).await),
            Err(error) => {
                if let GuestError::TimedOut { .. } | GuestError::Unreachable(_) = error {
                    // Nobody will ever learn its id, so it is closed.
                    self.shared.tasks.spawn(async move { guest.close_shell(&shell).await });
                }
                Err(error.into())
            }
        }
    }

    /// The shells of a sandbox, oldest first.
    pub async fn shells(&self, who: &Principal, id: &SandboxId) -> Result<Vec<ShellView>, Error> {
        let handle = self.shared.find(who, id)?;
        let guest = admitted(&handle)?;
        let mut views = Vec::new();
        for shell in guest.shells().await? {
            views.push(view(&*guest, shell).await);
        }
        views.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(views)
    }

    pub async fn shell(
        &self,
        who: &Principal,
        id: &SandboxId,
        shell: &ShellId,
    ) -> Result<ShellView, Error> {
        let views = self.shells(who, id).await?;
        let found = views.into_iter().find(|view| view.id == *shell);
        Ok(found.ok_or_else(|| GuestError::ShellNotFound { id: shell.clone() })?)
    }

    /// Closes a shell and kills everything that runs in it.
    pub async fn close_shell(
        &self,
        who: &Principal,
        id: &SandboxId,
        shell: &ShellId,
    ) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        Ok(admitted(&handle)?.close_shell(shell).await?)
    }

    /// Queues a command in a shell; it runs after the commands before it.
    pub async fn exec_in_shell(
        &self,
        who: &Principal,
        id: &SandboxId,
        shell: &ShellId,
        draft: ShellExecDraft,
    ) -> Result<Running, Error> {
        let handle = self.shared.find(who, id)?;
        let command = ShellCommand { id: ExecId::random(), shell: shell.clone(), draft };
        let runtime = self.shared.runtime_label(Some(handle.meta().spec.runtime()));
        let begun = exec_in_shell(&self.shared, &handle, command);
        self.shared.telemetry.verbs().measure(Verb::Exec, runtime, begun).await
    }
}

fn shell_request(handle: &Arc<Handle>, draft: ShellDraft) -> Result<ShellRequest, Error> {
    let wanted = Wanted { env: draft.env, cwd: draft.cwd, user: draft.user };
    let ExecContext { env, cwd, user } = ExecContext::of(&handle.meta(), wanted)?;
    Ok(ShellRequest {
        id: ShellId::random(),
        program: draft.program,
        env,
        cwd,
        user,
        privilege: handle.meta().spec.privilege(),
    })
}
