//! What is said about persistent shells. A command of a shell is an exec like any other, with its own
//! id, output, acknowledgements and end; only its last message says more.

use serde::{Deserialize, Serialize};

use crate::{End, LeafKind, Offsets, Privilege, StdinMode};

/// A shell to open. It lives until `ShellClose`, or until a command of it ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOpen {
    /// Chosen by the host, unique in this sandbox.
    pub shell_id: String,
    pub program: ShellProgram,
    /// As in `Exec`, as the fields below.
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub user: String,
    pub privilege: Privilege,
    pub leaf: LeafKind,
    pub leaf_name: String,
    /// When, in milliseconds of the host's clock; the guest only gives it back.
    pub created_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellProgram {
    /// bash where there is one, else sh. Never in an answer.
    Any,
    Bash,
    Sh,
}

/// A command for a shell. It waits for those before it; its time counts from its own start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellExec {
    pub shell_id: String,
    /// Chosen by the host, unique in this sandbox.
    pub exec_id: String,
    /// Without NUL, at most `SHELL_COMMAND_MAX` bytes.
    pub command: String,
    pub stdin: StdinMode,
    pub timeout_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedShell {
    pub shell_id: String,
    pub leaf_name: String,
    pub program: ShellProgram,
    pub state: ShellState,
    pub pid: u32,
    /// How many commands wait for their turn.
    pub waiting: u32,
    pub created_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellState {
    /// It waits for a command.
    Ready,
    Busy,
    /// Its process is gone: no command will run in it again.
    Ended,
}

/// The end of a command of a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellEnd {
    pub end: End,
    pub fate: Fate,
    /// How much of what background jobs wrote between two commands was thrown away before this one.
    pub skipped: Offsets,
}

/// Why a shell takes no command, or is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellRefusal {
    Unknown,
    Ended,
    /// As many commands wait as may, or as much of them.
    Full,
    /// As many shells are there as may be.
    TooMany,
}

/// What became of the shell by a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// All that the command did to it holds for the next one.
    Kept,
    /// It could not be interrupted: a new shell is in its place, as it was when it was opened.
    Replaced,
    Ended,
}
