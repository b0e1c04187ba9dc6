//! Shells that keep their state from one command to the next.

use std::time::Duration;

use super::lab::{Failure, Lab, Said, command, ensure, listen, same};
use sandkeep_core::{ExecId, ShellId};
use sandkeep_guestlink::{
    Guest, GuestError, Outcome, ShellExecRequest, ShellFate, ShellProgram, ShellRequest,
    ShellState, Stdin,
};

const BOTH: [ShellProgram; 2] = [ShellProgram::Bash, ShellProgram::Sh];

fn request(program: ShellProgram) -> ShellRequest {
    let command = command(&["unused"]);
    ShellRequest {
        id: ShellId::random(),
        program: Some(program),
        env: command.env,
        cwd: command.cwd,
        user: command.user,
        privilege: command.privilege,
    }
}

/// Whether the runtime supports shells; if not, it must say so.
async fn has_shells(lab: &Lab<'_>, guest: &dyn Guest) -> Result<bool, Failure> {
    if lab.runtime().capabilities().shells {
        return Ok(true);
    }
    let refused = guest.open_shell(request(ShellProgram::Sh)).await.err();
    let unsupported = matches!(refused, Some(GuestError::Unsupported { .. }));
    ensure!(unsupported, "a runtime without shells answers {refused:?}");
    Ok(false)
}

async fn run(
    guest: &dyn Guest,
    shell: &ShellId,
    command: &str,
    timeout: Option<Duration>,
) -> Result<Said, Failure> {
    let request = ShellExecRequest {
        id: ExecId::random(),
        shell: shell.clone(),
        command: command.to_owned(),
        stdin: Stdin::Null,
        timeout,
    };
    listen(guest.exec_in_shell(request).await?).await
}

fn fate(said: &Said) -> (Outcome, Option<ShellFate>) {
    (said.outcome(), said.end.shell.map(|shell| shell.fate))
}

pub(super) async fn a_shell_keeps_its_state_between_commands(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    if !has_shells(lab, &*guest).await? {
        return Ok(());
    }
    for program in BOTH {
        let shell = guest.open_shell(request(program)).await?;
        same("its program", (shell.program, shell.state), (program, ShellState::Ready))?;
        run(&*guest, &shell.id, "cd /tmp; x=5; f() { echo \"$x $1\"; }", None).await?;
        let said = run(&*guest, &shell.id, "pwd; f 6; echo err >&2; (exit 7)", None).await?;
        same("stdout", said.stdout.as_str(), "/tmp\n5 6\n")?;
        same("stderr", said.stderr.as_str(), "err\n")?;
        same("its end", fate(&said), (Outcome::Exited(7), Some(ShellFate::Kept)))?;
        let said = run(&*guest, &shell.id, "echo $?; exit 3", None).await?;
        same("the status before", said.stdout.as_str(), "7\n")?;
        same("its end", fate(&said), (Outcome::Exited(3), Some(ShellFate::Ended)))?;
        guest.close_shell(&shell.id).await?;
    }
    same("what is left", guest.shells().await?, Vec::new())
}

pub(super) async fn a_shell_outlives_the_timeout_of_its_command(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    if !has_shells(lab, &*guest).await? {
        return Ok(());
    }
    for program in BOTH {
        let shell = guest.open_shell(request(program)).await?;
        run(&*guest, &shell.id, "x=kept", None).await?;
        for stuck in ["sleep 1000; echo NOT", "while :; do :; done; echo NOT"] {
            let soon = Some(Duration::from_millis(200));
            let said = run(&*guest, &shell.id, stuck, soon).await?;
            same("its end", fate(&said), (Outcome::TimedOut, Some(ShellFate::Kept)))?;
            same("what came after the timeout", said.stdout.as_str(), "")?;
        }
        same("$x", run(&*guest, &shell.id, "echo $x", None).await?.stdout.as_str(), "kept\n")?;
        guest.close_shell(&shell.id).await?;
    }
    Ok(())
}
