//! Directories of the host that are mounted in a sandbox. No request can name one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::codebase;
use super::spec::InvalidSpec;

/// A directory of the host that a sandbox sees as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostMount {
    pub dir: PathBuf,
    /// Where it is inside, absolute.
    pub path: String,
    pub access: HostAccess,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAccess {
    Read,
    ReadWrite,
}

impl HostMount {
    /// Checks where it is to be, as for a codebase.
    pub fn new(dir: PathBuf, path: &str, access: HostAccess) -> Result<Self, InvalidSpec> {
        Ok(Self { dir, path: codebase::mount_path(path)?, access })
    }
}
