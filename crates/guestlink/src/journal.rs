//! What execs said, on the host's disk: for each exec one journal in the sandbox's home.
//!
//! ```text
//!   guest ──▶ Writer ──▶ <home>/execs/<exec id>          cover, description, the head of the output
//!               │        <home>/execs/<exec id>.<n>      the two last pieces of a long output
//!               └ tells how far it is ──▶ Watch, Watch … each reads the files at its own pace
//! ```
//!
//! What always holds:
//! - One writer per journal. What it says is written was taken by `write(2)`: it survives the daemon,
//!   not the loss of power. Only then is it acknowledged to the guest.
//! - Every byte has the offset it had in its stream, in order of arrival. Whoever reads from an offset
//!   gets the same bytes every time; where bytes were dropped there is a gap with its two ends.
//! - Exactly one end. It has a place of its own, allocated with the file, so that a full disk leaves
//!   room for it.
//! - Watchers share nothing but the files and a notice: none can slow the writer or another.
//!
//! Sizes and numbers are bounded by [`JournalLimits`], and by what the sandbox's owner may still have: a long output
//! keeps its head and its tail, a sandbox the execs that ended last. What was dropped is counted. Room is taken
//! before anything is written; each journal that is written has [`limits::JOURNAL_FLOOR_BYTES`] for its tail from its
//! beginning, so that the last words of an exec are kept however little is left.

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

/// Where the journals are, in a sandbox's home.
pub const JOURNALS: &str = "execs";

/// How much of what commands printed is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalLimits {
    pub max_bytes_per_exec: u64,
    /// Ended execs of one sandbox; the oldest go first.
    pub max_execs: u64,
    /// All execs of one sandbox together. Those that have ended go first, the oldest before others; what runs then
    /// keeps its beginning and its end.
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

/// What an exec is. The values of its environment are in no journal.
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
    /// The shell whose command it is; then `argv` is the command alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_id: Option<ShellId>,
}

/// How long a journal stays after its exec ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// As long as it is among the last.
    #[default]
    AmongTheLast,
    /// As long as its sandbox is there: it is a process.
    WithSandbox(ProcessTerms),
}

/// How far a journal has come.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The segment that is written now: 0 is the head.
    segment: u32,
    /// How long that segment is.
    len: u64,
    /// All segments that are kept, together.
    disk_bytes: u64,
    pub written: Offsets,
    pub dropped: Offsets,
    pub end: Option<Arc<ExecEnd>>,
}

/// The journal of one exec, for its writer and all who look at it.
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

    /// What the exec is. Blocks.
    pub fn description(&self) -> io::Result<Description> {
        let file = std::fs::File::open(self.segment(0))?;
        match cover::read(&file)? {
            Some(cover) => Ok(cover.description),
            None => Err(io::Error::other("the journal's first page cannot be read")),
        }
    }

    /// Follows the exec from there on.
    pub fn watch(self: &Arc<Self>, from: From) -> Watch {
        Watch::new(Arc::clone(self), from)
    }

    /// Whether anything that the exec said is kept.
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
