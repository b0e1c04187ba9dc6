//! The view of a process.

use std::sync::Arc;

use crate::lifecycle::handle::Handle;
use sandkeep_core::{ProcessId, ProcessTerms, limits};
use sandkeep_guestlink::{
    ExecEvent, Offsets, Outcome,
    journal::{Follow, From, Journal, Keep},
};

pub use sandkeep_core::api::{ProcessStatus, ProcessView};

/// Reads the journal. Blocks. `None` if it was removed with its sandbox.
pub(super) fn view(handle: &Handle, journal: &Journal) -> Option<ProcessView> {
    let description = journal.description().ok()?;
    let progress = journal.progress();
    let end = progress.end.as_deref();
    let port = match &description.keep {
        Keep::WithSandbox(terms) => terms.port,
        Keep::AmongTheLast => None,
    };
    let status = match (end, handle.processes.is_ready(journal.id())) {
        (Some(_), _) => ProcessStatus::Exited,
        (None, true) => ProcessStatus::Running,
        (None, false) => ProcessStatus::Starting,
    };
    let (exit_code, signal) = end.map_or((None, None), |end| match end.outcome {
        Outcome::Exited(code) => (Some(code), None),
        Outcome::Signaled(signal) => (None, Some(signal)),
        Outcome::TimedOut | Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => (None, None),
    });
    Some(ProcessView {
        id: ProcessId::of(&description.exec_id),
        status,
        pid: handle.execs.pids().get(&description.exec_id).copied(),
        argv: description.argv,
        cwd: description.cwd,
        user: description.user,
        port,
        started_at: description.started_at,
        exited_at: end.map(|end| end.ended_at),
        outcome: end.map(|end| end.outcome.status()),
        exit_code,
        signal,
        error: end.and_then(|end| end.error.clone()),
        exec_id: description.exec_id,
        stdout_bytes: progress.written.stdout,
        stderr_bytes: progress.written.stderr,
    })
}

/// The terms that were recorded when it was started. Blocks.
pub(super) fn terms(journal: &Journal) -> Option<ProcessTerms> {
    match journal.description().ok()?.keep {
        Keep::WithSandbox(terms) => Some(terms),
        Keep::AmongTheLast => None,
    }
}

/// The end of both output streams, as text.
pub(super) async fn last_output(journal: &Arc<Journal>) -> String {
    let written = journal.progress().written;
    let tail = |bytes: u64| bytes.saturating_sub(limits::PROCESS_LAST_OUTPUT_BYTES);
    let from = Offsets { stdout: tail(written.stdout), stderr: tail(written.stderr) };
    let mut watch = journal.watch(From::both(from));
    let mut said = Vec::new();
    while let Ok(Some(seen)) = watch.next(Follow::WhatIsThere).await {
        match seen {
            ExecEvent::Output { data, .. } => said.extend_from_slice(&data),
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Ended(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}
