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
    #[schema(value_type = String, format = DateTime)]
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
    /// It is waiting for a command.
    Ready,
    /// A command is running in it.
    Busy,
    /// Its process is gone; it runs no more commands.
    Ended,
}

/// State of the shell after the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ShellFate {
    /// The shell survived, with the changes that the command made to its state.
    Kept,
    /// The command could not be interrupted: a new shell took its place, in the state in which it was opened.
    Replaced,
    /// Its process is gone.
    Ended,
}
