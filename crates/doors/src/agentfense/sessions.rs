//! Sessions: shells. The id of one is the sandbox's and the shell's, so no table has to be kept.

use futures_util::Stream;

use super::call::Scene;
use super::execs;
use super::messages::{
    CreateSessionRequest, Empty, ExecOutput, ExecResult, ListSessionsResponse, SandboxRequest,
    Session, SessionExecRequest, SessionRequest, SessionStatus,
};
use super::sandboxes::{find, invalid};
use crate::kit::Refusal;
use sandkeep_broker::{OnDisconnect, Running, ShellDraft, ShellExecDraft, ShellView};
use sandkeep_core::api::ShellState;
use sandkeep_core::{SandboxId, ShellId, State};
use sandkeep_guestlink::{ShellProgram, journal::StdinSource};

fn shown(sandbox: &SandboxId, shell: ShellView) -> Session {
    let program = match shell.shell {
        ShellProgram::Bash => "/bin/bash",
        ShellProgram::Sh => "/bin/sh",
    };
    // `exit` ended it; it is there until it is destroyed.
    let status = match shell.state {
        ShellState::Ended => SessionStatus::Closed,
        ShellState::Ready | ShellState::Busy => SessionStatus::Active,
    };
    Session {
        id: format!("{sandbox}.{}", shell.id),
        sandbox_id: sandbox.to_string(),
        status: status.into(),
        shell: program.to_owned(),
        created_at: Some(shell.created_at.into()),
        closed_at: None,
    }
}

/// The sandbox and the shell that an id names.
async fn session(scene: &Scene, id: &str) -> Result<(SandboxId, ShellId), Refusal> {
    if id.is_empty() {
        return Err(invalid("session_id", "it is required"));
    }
    let unknown = || Refusal::NotAShellId { text: id.to_owned() };
    let (sandbox, shell) = id.split_once('.').ok_or_else(unknown)?;
    let shell = shell.parse().map_err(|_| unknown())?;
    Ok((find(&scene.broker, &scene.who, sandbox).await?.id, shell))
}

fn program(shell: &str) -> Result<Option<ShellProgram>, Refusal> {
    match shell {
        "" | "/bin/sh" | "/usr/bin/sh" | "sh" => Ok(Some(ShellProgram::Sh)),
        "/bin/bash" | "/usr/bin/bash" | "bash" => Ok(Some(ShellProgram::Bash)),
        other => Err(invalid("shell", format!("{other}: expected /bin/sh or /bin/bash"))),
    }
}

pub async fn create(scene: Scene, asked: CreateSessionRequest) -> Result<Session, Refusal> {
    let program = program(&asked.shell)?;
    let sandbox = find(&scene.broker, &scene.who, &asked.sandbox_id).await?.id;
    let draft = ShellDraft { program, env: asked.env, ..ShellDraft::default() };
    let shell = scene.broker.open_shell(&scene.who, &sandbox, draft).await?;
    Ok(shown(&sandbox, shell))
}

pub async fn get(scene: Scene, asked: SessionRequest) -> Result<Session, Refusal> {
    let (sandbox, shell) = session(&scene, &asked.session_id).await?;
    let shell = scene.broker.shell(&scene.who, &sandbox, &shell).await?;
    Ok(shown(&sandbox, shell))
}

/// A sandbox that does not run has none.
pub async fn list(scene: Scene, asked: SandboxRequest) -> Result<ListSessionsResponse, Refusal> {
    let view = find(&scene.broker, &scene.who, &asked.sandbox_id).await?;
    let shells = match view.state {
        State::Running => scene.broker.shells(&scene.who, &view.id).await?,
        _ => Vec::new(),
    };
    let sessions = shells.into_iter().map(|shell| shown(&view.id, shell)).collect();
    Ok(ListSessionsResponse { sessions })
}

pub async fn destroy(scene: Scene, asked: SessionRequest) -> Result<Empty, Refusal> {
    let (sandbox, shell) = session(&scene, &asked.session_id).await?;
    scene.broker.close_shell(&scene.who, &sandbox, &shell).await?;
    Ok(Empty {})
}

async fn begin(
    scene: &Scene,
    asked: SessionExecRequest,
) -> Result<(Running, std::time::Duration), Refusal> {
    if asked.command.is_empty() {
        return Err(invalid("command", "it is required"));
    }
    let timeout = execs::timeout(asked.timeout)?;
    let (sandbox, shell) = session(scene, &asked.session_id).await?;
    let draft = ShellExecDraft {
        command: asked.command,
        stdin: StdinSource::None,
        timeout: Some(timeout),
        on_disconnect: OnDisconnect::Kill,
    };
    let running = scene.broker.exec_in_shell(&scene.who, &sandbox, &shell, draft).await?;
    Ok((running, timeout))
}

pub async fn exec(scene: Scene, asked: SessionExecRequest) -> Result<ExecResult, Refusal> {
    let (running, timeout) = begin(&scene, asked).await?;
    execs::result(running, timeout).await
}

pub async fn exec_stream(
    scene: Scene,
    asked: SessionExecRequest,
) -> Result<impl Stream<Item = Result<ExecOutput, Refusal>> + use<>, Refusal> {
    let deadline = scene.deadline;
    let (running, timeout) = begin(&scene, asked).await?;
    Ok(execs::output(running, timeout, deadline))
}
