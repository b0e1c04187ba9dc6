//! Walks a tree in the order of names, for a bounded time. `.git` is left out unless the walk starts in it, and
//! symbolic links are not followed.

use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

use ignore::overrides::Override;
use ignore::{DirEntry, Walk, WalkBuilder};
use serde::{Deserialize, Serialize};

use super::call::Gitignore;

/// Time limit of a search: the results so far are the answer.
const SEARCH_MAX: Duration = Duration::from_secs(20);
/// How often a search reports its progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// The progress of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub files_seen: u64,
    pub found: u64,
}

/// The regular files below a path.
pub struct Files<'a> {
    walk: Walk,
    began: Instant,
    told: Instant,
    tell: &'a mut dyn FnMut(Progress),
    pub progress: Progress,
    /// Number of unreadable places.
    pub unreadable: u64,
    pub cut_short: CutShort,
}

/// Whether the time limit was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutShort {
    No,
    OutOfTime,
}

impl<'a> Files<'a> {
    pub fn beneath(
        root: &Path,
        gitignore: Gitignore,
        only: Option<Override>,
        tell: &'a mut dyn FnMut(Progress),
    ) -> Self {
        let mut builder = WalkBuilder::new(root);
        let respected = gitignore == Gitignore::Respected;
        builder
            .standard_filters(false)
            .git_ignore(respected)
            .git_exclude(respected)
            .parents(respected)
            // Also in a tree that is not in a repository (yet).
            .require_git(false)
            .sort_by_file_name(OsStr::cmp)
            .filter_entry(|entry| entry.depth() == 0 || entry.file_name() != ".git");
        if let Some(only) = only {
            builder.overrides(only);
        }
        let now = Instant::now();
        Self {
            walk: builder.build(),
            began: now,
            told: now,
            tell,
            progress: Progress::default(),
            unreadable: 0,
            cut_short: CutShort::No,
        }
    }

    /// The next file; `None` at the end, or at the time limit.
    pub fn next_file(&mut self) -> Option<DirEntry> {
        loop {
            let now = Instant::now();
            if now.duration_since(self.began) > SEARCH_MAX {
                self.cut_short = CutShort::OutOfTime;
                return None;
            }
            if now.duration_since(self.told) > PROGRESS_EVERY {
                self.told = now;
                (self.tell)(self.progress);
            }
            match self.walk.next()? {
                Ok(entry) if entry.file_type().is_some_and(|kind| kind.is_file()) => {
                    self.progress.files_seen += 1;
                    return Some(entry);
                }
                Ok(_) => {}
                Err(_) => self.unreadable += 1,
            }
        }
    }

    /// Remarks about the search itself for the answer.
    pub fn remarks(&self) -> String {
        let mut remarks = String::new();
        if self.cut_short == CutShort::OutOfTime {
            remarks.push_str(&format!(
                "[stopped after {} s and {} files: name a path or a glob to search less]\n",
                SEARCH_MAX.as_secs(),
                self.progress.files_seen
            ));
        }
        if self.unreadable > 0 {
            remarks.push_str(&format!("[{} places could not be read]\n", self.unreadable));
        }
        remarks
    }
}

/// A path for display: relative to the working directory if it was requested so.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(".").unwrap_or(path).display().to_string()
}
