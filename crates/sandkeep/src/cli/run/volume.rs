//! `sandkeep run -v DIR:PATH[:ro]`: a directory of this machine, as it is, in the sandbox of this process.

use std::fs;

use crate::cli::failure::Failure;
use sandkeep_core::{HostAccess, HostMount};

/// Live mounts of local directories.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct VolumeArgs {
    /// Let the command see a local directory at PATH, live, and change it unless `:ro` follows; without a daemon alone.
    /// Files have the same owners inside as outside
    #[arg(short = 'v', long = "volume", value_name = "DIR:PATH[:ro]")]
    volumes: Vec<String>,
}

impl VolumeArgs {
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    pub fn mounts(&self) -> Result<Vec<HostMount>, Failure> {
        self.volumes.iter().map(|text| mount(text)).collect()
    }
}

fn mount(text: &str) -> Result<HostMount, Failure> {
    let wrong = |problem: String| Failure::Usage { problem: format!("-v {text}: {problem}") };
    let (rest, access) = match text.strip_suffix(":ro") {
        Some(rest) => (rest, HostAccess::Read),
        None => (text.strip_suffix(":rw").unwrap_or(text), HostAccess::ReadWrite),
    };
    let (dir, path) = rest
        .rsplit_once(':')
        .ok_or_else(|| wrong("expected DIR:PATH or DIR:PATH:ro".to_owned()))?;
    let real = fs::canonicalize(dir).map_err(|error| wrong(format!("{dir}: {error}")))?;
    if !real.is_dir() {
        return Err(wrong(format!("{dir} is not a directory")));
    }
    HostMount::new(real, path, access)
        .map_err(|invalid| wrong(format!("{path}: {}", invalid.problem)))
}
