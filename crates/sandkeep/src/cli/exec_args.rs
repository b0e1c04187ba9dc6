//! Options of a command, for `exec` and `run`.

use std::time::Duration;

use crate::cli::argument::duration;

#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// Working directory [default: the workspace, else from the image, else the user's home]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// User name or uid, optionally with :group or :gid [default: from the image, else `user`]
    #[arg(long, short = 'u', value_name = "USER")]
    pub user: Option<String>,
    /// Kill the whole process tree after this time, such as 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// The timeout in milliseconds
    #[arg(long, value_name = "MS", conflicts_with = "timeout")]
    timeout_ms: Option<u64>,
}

impl ExecArgs {
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.or(self.timeout_ms.map(Duration::from_millis))
    }

    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout().map(sandkeep_core::millis)
    }
}
