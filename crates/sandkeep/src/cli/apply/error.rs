//! Why changes could not be brought home.

use std::io;

use super::staging::PLACE;
use crate::cli::tool_config::ToolConfig;
use sandkeep_tree::{apply::PlanProblem, archive::ArchiveError, tree_path::PathProblem};

#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("the daemon sent an invalid path: {0}")]
    Path(#[from] PathProblem),
    #[error("the daemon sent an invalid diff: {0}")]
    Manifest(&'static str),
    #[error("the daemon sent an invalid plan: {0}")]
    Plan(#[from] PlanProblem),
    #[error(
        "the daemon's plan changes {path}, which the sandbox did not change; nothing was changed"
    )]
    Unasked { path: String },
    #[error(
        "the daemon has more changes than can be brought home at once; choose less with --path"
    )]
    Truncated,
    #[error(
        "/{path} is not a directory in the sandbox; give the directory that it is in, and --include for the file"
    )]
    NoDirectory { path: String },
    #[error("the daemon sent an invalid archive: {0}")]
    Archive(#[from] ArchiveError),
    #[error("{path} arrived damaged; try again")]
    Mismatch { path: String },
    #[error("another apply to this directory is in progress")]
    UnderWay,
    #[error(
        "an earlier apply was cut off, and its notes in {PLACE}/journal cannot be read: put back what is in {PLACE} by hand, then remove it"
    )]
    Journal,
    #[error(transparent)]
    ToolConfig(#[from] ToolConfig),
    #[error("{path} cannot be changed, so nothing was changed")]
    Step {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{path} cannot be put back; the next apply tries again, and what is missing is in {PLACE}"
    )]
    Undo {
        path: String,
        #[source]
        source: io::Error,
    },
}

impl From<rustix::io::Errno> for ApplyError {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}
