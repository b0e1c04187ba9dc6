//! A process as others see it.

use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

use crate::lifecycle::handle::Handle;
use sandkeep_core::{ExecId, Port, ProcessId, ProcessTerms, limits};
use sandkeep_guestlink::{
    Offsets, Outcome,
    journal::{Follow, From, Journal, Keep, Seen},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessStatus {
    /// Its port does not answer yet.
    Starting,
    Running,
    /// It is over, however it ended: see `outcome`.
    Exited,
}

/// A process as the API shows it, but for where its port is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct ProcessView {
    pub id: ProcessId,
    pub status: ProcessStatus,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    pub port: Option<Port>,
    /// RFC 3339.
    #[schema(value_type = String)]
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub exited_at: Option<Timestamp>,
    /// `exited`, `signaled`, `canceled`, `oom_killed` or `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why it could not be started, or why nobody knows how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The same as an exec: its output is there too.
    pub exec_id: ExecId,
    /// How much it said, whether or not all of it is kept.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Reads what is needed from the journal. Blocks. `None`: it went away with its sandbox.
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
        argv: description.argv,
        cwd: description.cwd,
        user: description.user,
        port,
        started_at: description.started_at,
        exited_at: end.map(|end| end.ended_at),
        outcome: end.map(|end| end.outcome.name()),
        exit_code,
        signal,
        error: end.and_then(|end| end.error.clone()),
        exec_id: description.exec_id,
        stdout_bytes: progress.written.stdout,
        stderr_bytes: progress.written.stderr,
    })
}

/// What was said about it when it was started. Blocks.
pub(super) fn terms(journal: &Journal) -> Option<ProcessTerms> {
    match journal.description().ok()?.keep {
        Keep::WithSandbox(terms) => Some(terms),
        Keep::AmongTheLast => None,
    }
}

/// The end of both streams, as text.
pub(super) async fn last_output(journal: &Arc<Journal>) -> String {
    let written = journal.progress().written;
    let tail = |bytes: u64| bytes.saturating_sub(limits::PROCESS_LAST_OUTPUT_BYTES);
    let from = Offsets { stdout: tail(written.stdout), stderr: tail(written.stderr) };
    let mut watch = journal.watch(From::both(from));
    let mut said = Vec::new();
    while let Ok(Some(seen)) = watch.next(Follow::WhatIsThere).await {
        match seen {
            Seen::Output { data, .. } => said.extend_from_slice(&data),
            Seen::Gap { .. } => {}
            Seen::Ended(_) => break,
        }
    }
    String::from_utf8_lossy(&said).into_owned()
}
