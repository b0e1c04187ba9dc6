//! Persistent shells.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::ShellId;

/// A shell as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Shell {
    pub id: ShellId,
    pub shell: ShellProgram,
    pub state: ShellState,
    /// User it runs as; absent only for a guest of an earlier version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Number of queued commands.
    pub waiting: u32,
    /// RFC 3339.
    #[schema(value_type = String)]
    pub created_at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellProgram {
    #[serde(alias = "/bin/bash", alias = "/usr/bin/bash")]
    Bash,
    #[serde(alias = "/bin/sh", alias = "/usr/bin/sh")]
    Sh,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellState {
    /// It waits for a command.
    Ready,
    /// A command runs in it.
    Busy,
    /// Its process is gone; no command will run in it again.
    Ended,
}

/// State of the shell after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellFate {
    /// What the command did to it holds for the next one.
    Kept,
    /// It could not be interrupted: a new one is in its place, as it was when it was opened.
    Replaced,
    /// Its process is gone.
    Ended,
}
