//! Copies an exec's event stream to our own stdout and stderr.

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::{Client, Error, ExecEvent, ExecEvents, Response};
use sandkeep_core::{
    ExecId,
    api::{Ending, ExecStatus, OutputStream, ShellFate},
};
use sandkeep_guestlink::Outcome;

/// How an event stream ended.
pub enum Last {
    /// With the end of the exec.
    Ended(Exit),
    /// The exec is still running; following was not requested.
    Running,
}

/// Prints output until the last event.
pub async fn follow(client: &Client, response: Response) -> Result<Last, Failure> {
    follow_begun(client, response, |_| {}).await
}

/// The same, for a caller that needs the id of a new exec.
pub async fn follow_begun(
    client: &Client,
    response: Response,
    mut begun: impl FnMut(ExecId),
) -> Result<Last, Failure> {
    let mut events = ExecEvents::of(client, response);
    loop {
        match events.next().await? {
            ExecEvent::Started { exec_id } => begun(exec_id),
            ExecEvent::Output { stream: OutputStream::Stdout, data, .. } => print::stdout(&data)?,
            ExecEvent::Output { stream: OutputStream::Stderr, data, .. } => print::stderr(&data)?,
            ExecEvent::Gap { stream, from, to } => {
                let stream = stream.as_str();
                let missing = to.saturating_sub(from);
                print::note(&format!(
                    "{missing} bytes of {stream} are missing because they were not kept"
                ));
            }
            ExecEvent::Running { .. } => return Ok(Last::Running),
            ExecEvent::Detached { reason, .. } => {
                return Err(Error::Detached { reason: reason.into_owned() }.into());
            }
            ExecEvent::Ended { status, ending, .. } => {
                return Ok(Last::Ended(ended(status, &ending)));
            }
        }
    }
}

/// Prints what the exit code alone would not show.
pub fn ended(status: ExecStatus, ending: &Ending) -> Exit {
    let outcome = match (status, ending.exit_code, ending.signal) {
        (ExecStatus::Exited, Some(code), _) => Outcome::Exited(code),
        (ExecStatus::Signaled, _, Some(signal)) => Outcome::Signaled(signal),
        (ExecStatus::TimedOut, ..) => Outcome::TimedOut,
        (ExecStatus::OomKilled, ..) => Outcome::OomKilled,
        (ExecStatus::Canceled, ..) => Outcome::Canceled,
        _ => Outcome::Lost,
    };
    print::ending(&outcome, ending.error.as_deref());
    match ending.shell {
        Some(ShellFate::Replaced) => {
            print::note("the shell had to be replaced and has lost its state");
        }
        Some(ShellFate::Ended) => print::note("the shell has ended"),
        Some(ShellFate::Kept) | None => {}
    }
    Exit::of_outcome(&outcome)
}
