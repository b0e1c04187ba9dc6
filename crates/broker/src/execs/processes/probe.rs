//! Readiness: whether a process serves its port, or a command reports that it is ready. The probe is repeated with
//! growing intervals until it succeeds or the process ends.

use std::io;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::execs::{ExecDraft, admitted, request};
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Asked, ExecId, Port, ProcessTerms, limits};
use sandkeep_guestlink::{ByteStream, Outcome, journal::Journal};

/// How much of an HTTP answer is read: `HTTP/1.1 200`.
const STATUS_LEN: usize = 12;
const STATUS_AT: usize = 9;

/// Starts the probe. A process without a readiness condition is ready at once.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
    journal: Arc<Journal>,
    terms: &ProcessTerms,
) {
    let Some(asked) = terms.probe() else {
        return handle.processes.set_ready(journal.id().clone());
    };
    let (closing, handle) = (shared.closing.clone(), Arc::clone(handle));
    shared.tasks.spawn(async move {
        tokio::select! {
            () = closing.cancelled() => {}
            _ = journal.ended() => {}
            () = until_it_answers(&handle, &asked) => {
                handle.processes.set_ready(journal.id().clone());
            }
        }
    });
}

async fn until_it_answers(handle: &Handle, asked: &Asked) {
    let mut pause = limits::PROCESS_PROBE_PAUSE_MIN;
    loop {
        let answer = tokio::time::timeout(limits::PROCESS_PROBE, answers(handle, asked));
        if matches!(answer.await, Ok(true)) {
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(limits::PROCESS_PROBE_PAUSE_MAX);
    }
}

async fn answers(handle: &Handle, asked: &Asked) -> bool {
    let Ok(guest) = admitted(handle) else { return false };
    match asked {
        Asked::Tcp { port } => guest.dial(port.get()).await.is_ok(),
        Asked::Http { port, path } => {
            let Ok(mut stream) = guest.dial(port.get()).await else { return false };
            let status = status_of(&mut *stream, *port, path).await;
            status.is_ok_and(|status| (200..400).contains(&status))
        }
        Asked::Command { argv } => {
            let draft = ExecDraft {
                argv: argv.clone(),
                timeout: Some(limits::PROCESS_PROBE),
                ..ExecDraft::default()
            };
            let request = request(handle, draft, ExecId::random());
            let Ok(request) = request else { return false };
            let Ok(mut command) = guest.exec(request).await else { return false };
            command.collect(drop).await.outcome == Outcome::Exited(0)
        }
    }
}

/// The status of the answer to a GET.
async fn status_of(stream: &mut dyn ByteStream, port: Port, path: &str) -> io::Result<u16> {
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut head = [0; STATUS_LEN];
    stream.read_exact(&mut head).await?;
    let status = std::str::from_utf8(&head[STATUS_AT..]).ok().and_then(|text| text.parse().ok());
    status.ok_or_else(|| io::ErrorKind::InvalidData.into())
}
