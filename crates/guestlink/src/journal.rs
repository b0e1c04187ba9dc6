//! The output of execs on the host's disk: one journal per exec in the sandbox's home.
//!
//! ```text
//!   guest ──▶ Writer ──▶ <home>/execs/<exec id>          cover, description, the head of the output
//!               │        <home>/execs/<exec id>.<n>      the last two segments of a long output
//!               └ reports its progress ──▶ Watch, Watch … each reads the files at its own pace
//! ```
//!
//! Invariants:
//! - One writer per journal. Data counts as written once `write(2)` has taken it: it survives the daemon, not a power
//!   loss. Only then is it acknowledged to the guest.
//! - Every byte has the offset that it had in its stream, in order of arrival. Every reader gets the same bytes from an
//!   offset; dropped bytes are a gap with its two ends.
//! - Exactly one end. Its space is allocated with the file, so that it fits even on a full disk.
//! - Watchers share only the files and a notification: none can slow the writer or another watcher.
//!
//! Sizes and numbers are limited by [`JournalLimits`], and by the quota of the sandbox's owner: a long output keeps its
//! head and its tail, a sandbox the most recently ended execs. Dropped data is counted. Space is reserved before
//! anything is written; every open journal has [`limits::JOURNAL_FLOOR_BYTES`] for its tail from its beginning, so that
//! the last output of an exec is kept however little space is left.

mod cover;
mod follow;
mod index;
mod record;
mod recover;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::{ExecEnd, Offsets};
use sandkeep_core::{ExecId, ProcessTerms, ShellId, limits};

pub use follow::{Follow, From, Watch};
pub use index::{JournalIndex, journals_in};
pub use recover::Unfinished;
pub use sandkeep_core::api::StdinSource;
pub use writer::Writer;

/// The journals' directory in a sandbox's home.
pub const JOURNALS: &str = "execs";

/// How much command output is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLimits {
    pub max_bytes_per_exec: u64,
    /// Ended execs of one sandbox; the oldest are removed first.
    pub max_execs: u64,
    /// All execs of one sandbox together. Ended ones are removed first, oldest first; running ones then keep their
    /// beginning and their end.
    pub max_bytes: u64,
}

impl Default for JournalLimits {
    fn default() -> Self {
        Self {
            max_bytes_per_exec: limits::JOURNAL_EXEC_DEFAULT_BYTES,
            max_execs: limits::JOURNAL_EXECS_DEFAULT,
            max_bytes: limits::JOURNAL_SANDBOX_DEFAULT_BYTES,
        }
    }
}

/// The description of an exec. Journals never contain the values of its environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    pub exec_id: ExecId,
    pub argv: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    pub user: String,
    pub started_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    pub stdin: StdinSource,
    #[serde(default)]
    pub terminal: bool,
    pub keep: Keep,
    /// The shell that runs it; then `argv` is the command alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_id: Option<ShellId>,
}

/// How long a journal is kept after its exec has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// As long as it is among the most recent.
    #[default]
    AmongTheLast,
    /// As long as its sandbox exists: it is a process.
    WithSandbox(ProcessTerms),
}

/// The progress of a journal.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The current segment: 0 is the head.
    segment: u32,
    /// The length of that segment.
    len: u64,
    /// Total size of the kept segments.
    disk_bytes: u64,
    pub written: Offsets,
    pub dropped: Offsets,
    pub end: Option<Arc<ExecEnd>>,
}

/// The journal of one exec, for its writer and its readers.
#[derive(Debug)]
pub struct Journal {
    dir: Arc<Path>,
    id: ExecId,
    progress: watch::Sender<Progress>,
    /// What it was given of its sandbox's account: what is on disk and, while it is written and there is enough, the
    /// floor for its tails.
    held_bytes: AtomicU64,
}

impl Journal {
    fn new(dir: Arc<Path>, id: ExecId, progress: Progress, held_bytes: u64) -> Self {
        let (progress, held_bytes) = (watch::Sender::new(progress), AtomicU64::new(held_bytes));
        Self { dir, id, progress, held_bytes }
    }

    /// Keeps no more of the account than `bytes`; returns how many are to be given back, once to one caller.
    fn let_go(&self, bytes: u64) -> u64 {
        self.held_bytes.fetch_min(bytes, Ordering::Relaxed).saturating_sub(bytes)
    }

    pub fn id(&self) -> &ExecId {
        &self.id
    }

    pub fn progress(&self) -> Progress {
        self.progress.borrow().clone()
    }

    pub fn end(&self) -> Option<Arc<ExecEnd>> {
        self.progress.borrow().end.clone()
    }

    /// Resolves when the exec has ended.
    pub async fn ended(&self) -> Arc<ExecEnd> {
        let mut progress = self.progress.subscribe();
        let ended = progress.wait_for(|progress| progress.end.is_some()).await;
        let ended = ended.expect("the journal holds the sender");
        Arc::clone(ended.end.as_ref().expect("it was waited for"))
    }

    /// The exec's description. Blocks.
    pub fn description(&self) -> io::Result<Description> {
        let file = std::fs::File::open(self.segment(0))?;
        match cover::read(&file)? {
            Some(cover) => Ok(cover.description),
            None => Err(io::Error::other("the journal's first page cannot be read")),
        }
    }

    /// Follows the exec from these offsets.
    pub fn watch(self: &Arc<Self>, from: From) -> Watch {
        Watch::new(Arc::clone(self), from)
    }

    /// Whether any output of the exec is kept.
    fn has_output(&self) -> bool {
        let progress = self.progress.borrow();
        progress.written != progress.dropped
    }

    /// Drops all output of an exec that has ended, and says so in its end. Returns how many bytes are left. Blocks.
    fn drop_output(&self) -> io::Result<u64> {
        let before = self.progress();
        let Some(end) = before.end else { return Ok(before.disk_bytes) };
        let head = std::fs::OpenOptions::new().read(true).write(true).open(self.segment(0))?;
        let Some(cover) = cover::read(&head)? else { return Ok(before.disk_bytes) };
        let mut end = ExecEnd::clone(&end);
        end.dropped = end.written;
        end.error = writer::with_fault(end.error, Some("its output was dropped to make room"));
        cover::write_end(&head, &end)?;
        let (end, dropped) = (Some(Arc::new(end)), before.written);
        let (len, disk_bytes) = (cover.len, cover.len);
        self.progress.send_replace(Progress {
            segment: 0,
            len,
            disk_bytes,
            dropped,
            end,
            ..before
        });
        for tail in before.segment.saturating_sub(1).max(1)..=before.segment {
            writer::remove_if_there(&self.segment(tail))?;
        }
        head.set_len(cover.len)?;
        Ok(disk_bytes)
    }

    fn segment(&self, number: u32) -> PathBuf {
        segment_path(&self.dir, &self.id, number)
    }
}

fn segment_path(dir: &Path, id: &ExecId, number: u32) -> PathBuf {
    match number {
        0 => dir.join(id.as_str()),
        tail => dir.join(format!("{id}.{tail}")),
    }
}
