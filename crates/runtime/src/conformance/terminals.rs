//! Commands in a terminal.

use super::lab::{Failure, Lab, command, ensure, hear, hear_one_of, listen, run, same, script};
use sandkeep_guestlink::{ExecRequest, GuestError, Outcome, Stdin, TerminalSize};

const SIZE: TerminalSize = TerminalSize { rows: 30, cols: 90 };
const LARGER: TerminalSize = TerminalSize { rows: 60, cols: 180 };

fn in_terminal(text: &str) -> ExecRequest {
    ExecRequest { stdin: Stdin::Piped, terminal: Some(SIZE), ..script(text) }
}

/// `None` if the runtime does not support terminals, and has refused without side effects.
async fn guest_with_terminals(
    lab: &Lab<'_>,
) -> Result<Option<std::sync::Arc<dyn sandkeep_guestlink::Guest>>, Failure> {
    let guest = lab.guest().await?;
    if lab.runtime().capabilities().terminals {
        return Ok(Some(guest));
    }
    let refused = guest.exec(in_terminal("true")).await.err();
    let unsupported = matches!(refused, Some(GuestError::Unsupported { .. }));
    ensure!(unsupported, "a runtime without terminals answers {refused:?}");
    same("what it has begun", guest.execs().await?, Vec::new())?;
    Ok(None)
}

pub(super) async fn a_terminal_is_the_users_own_and_has_its_size(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let Some(guest) = guest_with_terminals(lab).await? else { return Ok(()) };
    let text = "test -t 0 && test -t 1 && test -t 2 && stty size; test -O $(tty) && id -un; \
                echo by name > $(tty); echo err >&2; exit 3";
    let said = run(&*guest, in_terminal(text)).await?;
    same("stdout", said.stdout.as_str(), "30 90\r\nuser\r\nby name\r\nerr\r\n")?;
    same("stderr", said.stderr.as_str(), "")?;
    same("the outcome", said.outcome(), Outcome::Exited(3))
}

pub(super) async fn a_terminal_passes_on_keys_and_sizes(lab: &Lab<'_>) -> Result<(), Failure> {
    let Some(guest) = guest_with_terminals(lab).await? else { return Ok(()) };
    let text = "trap 'stty size' WINCH; trap 'echo bye; exit 4' INT; echo ready; \
                while :; do sleep 0.01; done";
    let mut execution = guest.exec(in_terminal(text)).await?;
    hear(&mut execution, "ready\r\n").await?;
    execution.input().resize(LARGER).await?;
    hear(&mut execution, "60 180\r\n").await?;
    execution.input().write(b"\x03").await?;
    // The kernel sends the signal before it echoes the key.
    hear_one_of(&mut execution, &["^Cbye\r\n", "bye\r\n^C"]).await?;
    // `listen` expects the start event, which has passed.
    loop {
        match execution.next().await {
            Some(sandkeep_guestlink::ExecEvent::Ended(end)) => {
                return same("the outcome", end.outcome, Outcome::Exited(4));
            }
            Some(_) => {}
            None => return Err(Failure("the events end without an end".to_owned())),
        }
    }
}

pub(super) async fn a_terminal_loses_nothing_at_its_end(lab: &Lab<'_>) -> Result<(), Failure> {
    let Some(guest) = guest_with_terminals(lab).await? else { return Ok(()) };
    let request = ExecRequest { terminal: Some(SIZE), ..command(&["seq", "1", "50000"]) };
    let said = listen(guest.exec(request).await?).await?;
    let expected: String = (1..=50_000).map(|n| format!("{n}\r\n")).collect();
    ensure!(said.stdout == expected, "{} of {} bytes", said.stdout.len(), expected.len());
    same("the outcome", said.outcome(), Outcome::Exited(0))
}
