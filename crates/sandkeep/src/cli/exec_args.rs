//! What `exec` and `run` can ask of a command.

use std::time::Duration;

use crate::cli::argument::duration;

#[derive(Debug, clap::Args)]
pub struct ExecArgs {
    /// The working directory [default: the image's, else the user's home]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Who runs it: a name or uid, and maybe :group or :gid [default: the image's, else user]
    #[arg(long, short = 'u', value_name = "USER")]
    pub user: Option<String>,
    /// Kill it and all it started after this long, such as 500ms, 30s or 5m
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    timeout: Option<Duration>,
    /// The same in milliseconds
    #[arg(long, value_name = "MS", conflicts_with = "timeout")]
    timeout_ms: Option<u64>,
    /// The command and its arguments; after `--` they may look like options [default: the image's]
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<String>,
}

impl ExecArgs {
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout.or(self.timeout_ms.map(Duration::from_millis))
    }

    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout().map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX))
    }
}
