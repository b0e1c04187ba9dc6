//! Messages about persistent shells. A command of a shell is an exec like any other, with its own id, output,
//! acknowledgements and end; only its last message has more fields.

use serde::{Deserialize, Serialize};

use crate::{End, LeafKind, Offsets, Privilege, StdinMode};

/// A shell to open. It lives until `ShellClose`, or until one of its commands ends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellOpen {
    /// Chosen by the host, unique in this sandbox.
    pub shell_id: String,
    pub program: ShellProgram,
    /// As in `Exec`, like the fields below.
    pub env: Vec<(String, String)>,
    pub cwd: Option<String>,
    pub user: String,
    pub privilege: Privilege,
    pub leaf: LeafKind,
    pub leaf_name: String,
    /// The creation time, in milliseconds of the host's clock; the guest only returns it.
    pub created_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellProgram {
    /// bash if it exists, otherwise sh. Never in an answer.
    Any,
    Bash,
    Sh,
}

/// A command for a shell. It is queued after earlier ones; its timeout counts from its own start.
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
    /// Number of queued commands.
    pub waiting: u32,
    pub created_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellState {
    /// It is waiting for a command.
    Ready,
    Busy,
    /// Its process is gone: it runs no more commands.
    Ended,
}

/// The end of a command of a shell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShellEnd {
    pub end: End,
    pub fate: Fate,
    /// The amount of background output between two commands that was discarded before this one.
    pub skipped: Offsets,
}

/// Why a shell does not accept a command, or cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShellRefusal {
    Unknown,
    Ended,
    /// The maximum number or total size of queued commands is reached.
    Full,
    /// The maximum number of shells is reached.
    TooMany,
}

/// The state of the shell after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fate {
    /// The shell survived, with the changes that the command made to its state.
    Kept,
    /// The command could not be interrupted: a new shell took its place, in the state in which it was opened.
    Replaced,
    Ended,
}
