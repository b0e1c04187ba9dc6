//! Workspaces: files that are written to a new volume, on top of its template's, before anything runs on it.
//!
//! Everything is read below a descriptor of the host, and written below one of the volume; no link is followed on
//! either side and no mount crossed. Everything belongs to `user`. The target is empty before, so the template's
//! content does not matter; after a failure the volume is discarded.

mod copy;
mod place;

#[cfg(test)]
mod tests;

use std::io;

use super::layer::LayerError;

pub use super::layer::FileOwner;
pub use copy::{Copied, copy};
pub use place::WorkspaceDir;

#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    #[error("the template has something in {path} already; choose another path")]
    Occupied { path: String },
    #[error("{path} of the template is no directory; choose another path")]
    InTheWay { path: String },
    #[error("the directory holds more than {max} {what}")]
    TooLarge { what: &'static str, max: u64 },
    #[error("{path:?} lies in more than {max} directories")]
    TooDeep { path: String, max: usize },
    #[error("cannot read {path:?}")]
    Read {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path:?}")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Archive(#[from] LayerError),
    /// The caller has canceled.
    #[error("it was given up")]
    GivenUp,
}

impl WorkspaceError {
    /// Whether there was no space for it.
    pub fn is_out_of_space(&self) -> bool {
        let source = match self {
            Self::Write { source, .. } | Self::Archive(LayerError::Write { source, .. }) => source,
            Self::Occupied { .. }
            | Self::InTheWay { .. }
            | Self::TooLarge { .. }
            | Self::TooDeep { .. }
            | Self::Read { .. }
            | Self::Archive(_)
            | Self::GivenUp => return false,
        };
        matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
    }
}
