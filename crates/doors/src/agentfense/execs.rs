//! Commands, answered at their end or as they speak.

use std::time::Duration;

use axum::body::Bytes;
use futures_util::{Stream, stream};

use super::call::Scene;
use super::messages::{ExecOutput, ExecRequest, ExecResult, OutputType};
use super::sandboxes::{find, invalid};
use crate::kit::Refusal;
use crate::rest::execs::{Collected, Then, feed};
use crate::rpc::Deadline;
use sandkeep_broker::{ExecDraft, OnDisconnect, Running};
use sandkeep_core::excerpt::Cut;
use sandkeep_core::limits::{
    AGENTFENSE_EXEC_TIMEOUT, AGENTFENSE_FRAME_BYTES, AGENTFENSE_TEXT_BYTES,
};
use sandkeep_guestlink::journal::StdinSource;
use sandkeep_guestlink::{ExecEnd, ExecEvent, Outcome, OutputStream};

/// What a shell adds to the number of the signal that ended a command.
const SIGNALED: i32 = 128;
const SIGKILL: i32 = 9;

/// The time that a command has.
pub fn timeout(asked: Option<super::messages::Duration>) -> Result<Duration, Refusal> {
    match asked {
        None => Ok(AGENTFENSE_EXEC_TIMEOUT),
        // As left out: clients fill in what they do not set.
        Some(time) if time.seconds == 0 && time.nanos == 0 => Ok(AGENTFENSE_EXEC_TIMEOUT),
        Some(time) => Ok(time.positive("timeout")?),
    }
}

/// Runs it; a client that leaves ends it.
async fn begin(scene: &Scene, asked: ExecRequest) -> Result<(Running, Duration), Refusal> {
    if asked.command.is_empty() {
        return Err(invalid("command", "it is required"));
    }
    let timeout = timeout(asked.timeout)?;
    let view = find(&scene.broker, &scene.who, &asked.sandbox_id).await?;
    let stdin = Some(asked.stdin).filter(|text| !text.is_empty());
    let draft = ExecDraft {
        argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), asked.command],
        env: asked.env,
        cwd: Some(asked.workdir).filter(|dir| !dir.is_empty()),
        stdin: if stdin.is_some() { StdinSource::Given } else { StdinSource::None },
        timeout: Some(timeout),
        on_disconnect: OnDisconnect::Kill,
        ..ExecDraft::default()
    };
    let running = scene.broker.exec(&scene.who, &view.id, draft).await?;
    if let Some(text) = stdin {
        tokio::spawn(feed(running.input.clone(), Bytes::from(text), Then::Close));
    }
    Ok((running, timeout))
}

pub async fn exec(scene: Scene, asked: ExecRequest) -> Result<ExecResult, Refusal> {
    let (running, timeout) = begin(&scene, asked).await?;
    result(running, timeout).await
}

/// The result of a command; one whose time is over has none.
pub async fn result(running: Running, timeout: Duration) -> Result<ExecResult, Refusal> {
    let Collected { end, stdout, stderr, .. } = Collected::of(running).await;
    let exit_code = exit_code(&end, timeout)?;
    let mut stderr = text(stderr);
    stderr.extend(end.error.iter().map(|error| format!("{error}\n")));
    Ok(ExecResult { stdout: text(stdout), stderr, exit_code, duration: Some(end.duration.into()) })
}

fn exit_code(end: &ExecEnd, timeout: Duration) -> Result<i32, Refusal> {
    match end.outcome {
        Outcome::Exited(code) => Ok(code),
        Outcome::Signaled(signal) => Ok(SIGNALED + signal),
        Outcome::TimedOut => Err(Refusal::DeadlineExceeded { after: timeout }),
        Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => Ok(SIGNALED + SIGKILL),
    }
}

/// As much of it as clients take in one message, with both outputs: its beginning and its end.
fn text(cut: Cut) -> String {
    let text = String::from_utf8_lossy(&cut.bytes);
    let omitted = cut.omitted.map_or(0, |omitted| omitted.bytes);
    if omitted == 0 && text.len() <= AGENTFENSE_TEXT_BYTES {
        return text.into_owned();
    }
    let half = AGENTFENSE_TEXT_BYTES / 2;
    let head = text.floor_char_boundary(half);
    let tail = text.ceil_char_boundary(text.len().saturating_sub(half)).max(head);
    let omitted = omitted + (tail - head) as u64;
    format!("{}\n[{omitted} bytes are left out]\n{}", &text[..head], &text[tail..])
}

pub async fn exec_stream(
    scene: Scene,
    asked: ExecRequest,
) -> Result<impl Stream<Item = Result<ExecOutput, Refusal>> + use<>, Refusal> {
    let deadline = scene.deadline;
    let (running, timeout) = begin(&scene, asked).await?;
    Ok(output(running, timeout, deadline))
}

/// All output, at the client's own pace. The stream ends with the command; a status other than zero is no error of the call.
pub fn output(
    running: Running,
    timeout: Duration,
    deadline: Deadline,
) -> impl Stream<Item = Result<ExecOutput, Refusal>> + use<> {
    let speaking = Some((running, None::<(OutputType, Bytes)>));
    stream::unfold(speaking, move |speaking| async move {
        let (mut running, mut rest) = speaking?;
        loop {
            if let Some((kind, mut data)) = rest.take() {
                let frame = data.split_to(data.len().min(AGENTFENSE_FRAME_BYTES));
                let rest = (!data.is_empty()).then_some((kind, data));
                let frame = ExecOutput { kind: kind.into(), data: frame };
                return Some((Ok(frame), Some((running, rest))));
            }
            match deadline.within(running.next()).await {
                Err(refusal) => return Some((Err(refusal), None)),
                Ok(Some(ExecEvent::Started | ExecEvent::Gap { .. })) => {}
                Ok(Some(ExecEvent::Output { stream, data, .. })) => {
                    let kind = match stream {
                        OutputStream::Stdout => OutputType::Stdout,
                        OutputStream::Stderr => OutputType::Stderr,
                    };
                    rest = Some((kind, data)).filter(|(_, data)| !data.is_empty());
                }
                Ok(Some(ExecEvent::Ended(end))) => {
                    let refusal = exit_code(&end, timeout).err()?;
                    return Some((Err(refusal), None));
                }
                Ok(None) => return None,
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use sandkeep_core::excerpt::Omitted;

    use super::*;

    #[test]
    fn a_text_fits_into_a_message_with_another() {
        let whole = Cut { bytes: b"all\xff".to_vec(), omitted: None };
        assert_eq!(text(whole), "all\u{fffd}");
        let bytes = "é".repeat(AGENTFENSE_TEXT_BYTES).into_bytes();
        let long = text(Cut { bytes, omitted: Some(Omitted { at: 5, bytes: 7 }) });
        assert!(long.len() < AGENTFENSE_TEXT_BYTES + 100 && long.contains("bytes are left out]"));
    }
}
