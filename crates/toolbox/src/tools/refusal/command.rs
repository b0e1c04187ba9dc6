//! Refusals of commands: of bash, and of git.

use serde::{Deserialize, Serialize};

use super::Said;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CommandRefusal {
    /// It exceeded its timeout.
    TimedOut {
        timeout_ms: u64,
    },
    /// `call_mb` is the limit of the call alone, if it had one.
    OutOfMemory {
        call_mb: Option<u64>,
    },
    /// It was ended from outside.
    Ended {
        how: String,
    },
    NoShell,
    NoGit,
    NotRepository {
        directory: String,
    },
    NoIdentity,
    DubiousOwnership {
        directory: String,
    },
    NoNetwork {
        problem: String,
    },
    NeedsCredentials {
        problem: String,
    },
    CannotStart {
        problem: String,
    },
    NothingToCommit,
    /// It exited with a failure.
    CommandFailed {
        program: String,
        exit_code: i32,
    },
}

impl CommandRefusal {
    pub(super) fn said(&self) -> Said {
        match self {
            Self::TimedOut { timeout_ms } => Said::new(
                "timed_out",
                format!("timed out after {timeout_ms} ms; the whole process tree was killed"),
                "timeout_ms, or the tool's default timeout",
                "use a longer timeout_ms, do less at once, or start it as a background process",
            ),
            Self::OutOfMemory { call_mb: Some(mb) } => Said::new(
                "out_of_memory",
                format!("killed: out of memory (limit of this call: {mb} MiB)"),
                "resources.memory_mb of the call",
                "use a larger resources.memory_mb, or omit it for the sandbox's limit",
            ),
            Self::OutOfMemory { call_mb: None } => Said::new(
                "out_of_memory",
                "killed: the sandbox is out of memory".to_owned(),
                "resources.memory_mb of the sandbox",
                "use less memory (fewer jobs, smaller parts), end other processes, or use a sandbox with more memory",
            ),
            Self::Ended { how } => Said::new(
                "ended",
                format!("the command did not end normally: {how}"),
                "it was cancelled, or the sandbox stopped",
                "check the sandbox's state and the effects of the command before you call it again",
            ),
            Self::NoShell => Said::new(
                "no_shell",
                "the sandbox has neither bash nor sh".to_owned(),
                "the bash tool needs a shell in the sandbox",
                "use the file tools, or a sandbox of a template that has a shell",
            ),
            Self::NoGit => Said::new(
                "no_git",
                "the sandbox has no git".to_owned(),
                "git tools run the sandbox's own git",
                "install it with bash if permitted (apt-get install git), or use a template that has it",
            ),
            Self::NotRepository { directory } => Said::new(
                "not_repository",
                format!("{directory} is not in a git repository"),
                "git tools work in the repository that contains cwd",
                "set cwd, create a repository with bash (git init), or clone one with git_clone",
            ),
            Self::NoIdentity => Said::new(
                "no_identity",
                "git has no author identity".to_owned(),
                "a commit needs user.name and user.email",
                "set them with bash: git config user.name NAME; git config user.email ADDRESS",
            ),
            Self::DubiousOwnership { directory } => Said::new(
                "dubious_ownership",
                format!("the repository {directory} belongs to another user"),
                "git only works in repositories that its user owns",
                "change its owner, or trust it with bash: git config --global --add safe.directory DIRECTORY",
            ),
            Self::NoNetwork { problem } => Said::new(
                "no_network",
                format!("the remote cannot be reached: {problem}"),
                "a sandbox has no network except its own loopback",
                "use a remote inside the sandbox, or have the files uploaded",
            ),
            Self::NeedsCredentials { problem } => Said::new(
                "needs_credentials",
                format!("the remote requires credentials: {problem}"),
                "git cannot prompt for a password or key in a sandbox",
                "use a remote without credentials, or a URL that contains a token given to you for it",
            ),
            Self::CannotStart { problem } => Said::new(
                "cannot_start",
                format!("the command could not be started: {problem}"),
                "cwd must be an accessible directory, and the limits must allow another process",
                "use another cwd if that is the reason, or free memory or processes",
            ),
            Self::NothingToCommit => Said::new(
                "nothing_to_commit",
                "there is nothing to commit".to_owned(),
                "git_commit commits what git_add has staged",
                "check git_status, and stage changes with git_add",
            ),
            Self::CommandFailed { program, exit_code } => Said::new(
                "command_failed",
                format!("{program} exited with code {exit_code}"),
                "exit code 0 is success",
                "see its output above",
            ),
        }
    }
    pub(super) fn samples() -> Vec<Self> {
        let directory = || "/home/user/project".to_owned();
        let problem = |text: &str| text.to_owned();
        vec![
            Self::TimedOut { timeout_ms: 120_000 },
            Self::OutOfMemory { call_mb: Some(64) },
            Self::Ended { how: "canceled".to_owned() },
            Self::NoShell,
            Self::NoGit,
            Self::NotRepository { directory: directory() },
            Self::NoIdentity,
            Self::DubiousOwnership { directory: directory() },
            Self::NoNetwork { problem: problem("could not resolve host: example.com") },
            Self::NeedsCredentials { problem: problem("could not read Username") },
            Self::CannotStart { problem: problem("resource temporarily unavailable") },
            Self::NothingToCommit,
            Self::CommandFailed { program: "git".to_owned(), exit_code: 128 },
        ]
    }
}
