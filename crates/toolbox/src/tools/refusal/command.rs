//! Refusals of commands: of bash, and of git.

use serde::{Deserialize, Serialize};

use super::Said;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CommandRefusal {
    /// It ran for longer than it may.
    TimedOut {
        timeout_ms: u64,
    },
    /// `call_mb` is what the call alone was limited to, if it was.
    OutOfMemory {
        call_mb: Option<u64>,
    },
    /// Somebody or something else ended it.
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
    /// It ran to its end and says that it failed.
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
                format!("it ran for {timeout_ms} ms and was killed with all it had started"),
                "timeout_ms, or what the tool has without it",
                "give a longer timeout_ms, do less at once, or start it in the background as a process",
            ),
            Self::OutOfMemory { call_mb: Some(mb) } => Said::new(
                "out_of_memory",
                format!("it was killed because it used more memory than the {mb} MiB of this call"),
                "resources.memory_mb of the call",
                "give the call a larger resources.memory_mb, or leave it out for all that the sandbox has",
            ),
            Self::OutOfMemory { call_mb: None } => Said::new(
                "out_of_memory",
                "it was killed because the sandbox had no more memory".to_owned(),
                "resources.memory_mb of the sandbox",
                "let it use less (fewer jobs, smaller parts), end what else runs, or use a sandbox with more memory",
            ),
            Self::Ended { how } => Said::new(
                "ended",
                format!("it did not end by itself: {how}"),
                "somebody canceled it, or the sandbox stopped",
                "look whether the sandbox runs, and at what was done, before you call it again",
            ),
            Self::NoShell => Said::new(
                "no_shell",
                "the sandbox has neither bash nor sh".to_owned(),
                "bash needs a shell in the sandbox's own files",
                "use the file tools, or a sandbox of a template that has a shell",
            ),
            Self::NoGit => Said::new(
                "no_git",
                "the sandbox has no git".to_owned(),
                "git verbs run the sandbox's own git",
                "install it with bash if you may (apt-get install git), or use a template that has it",
            ),
            Self::NotRepository { directory } => Said::new(
                "not_repository",
                format!("{directory} is not in a git repository"),
                "git verbs work in the repository that cwd is in",
                "give cwd, make one with bash (git init), or bring one with git_clone",
            ),
            Self::NoIdentity => Said::new(
                "no_identity",
                "git does not know who makes the commit".to_owned(),
                "a commit needs user.name and user.email",
                "set them with bash: git config user.name NAME; git config user.email ADDRESS",
            ),
            Self::DubiousOwnership { directory } => Said::new(
                "dubious_ownership",
                format!("the repository {directory} belongs to another user"),
                "git works only in repositories of its own user",
                "own it, or trust it with bash: git config --global --add safe.directory DIRECTORY",
            ),
            Self::NoNetwork { problem } => Said::new(
                "no_network",
                format!("the remote cannot be reached: {problem}"),
                "a sandbox has no network but its own loopback, unless it was made with one",
                "use a remote inside the sandbox, or have the files uploaded into it",
            ),
            Self::NeedsCredentials { problem } => Said::new(
                "needs_credentials",
                format!("the remote asks for credentials: {problem}"),
                "nobody can be asked for a password or key inside a sandbox",
                "use a remote that needs none, or a URL that holds a token which you were given for it",
            ),
            Self::CannotStart { problem } => Said::new(
                "cannot_start",
                format!("the command could not be started: {problem}"),
                "cwd must be a directory that the sandbox's user may enter, and its limits must leave room for a process",
                "give another cwd if that is the reason (ls shows what there is), or free memory or processes",
            ),
            Self::NothingToCommit => Said::new(
                "nothing_to_commit",
                "there is nothing to commit".to_owned(),
                "git_commit commits what git_add has staged",
                "look with git_status, and stage what you mean with git_add",
            ),
            Self::CommandFailed { program, exit_code } => Said::new(
                "command_failed",
                format!("{program} ended with exit code {exit_code}"),
                "0 is success, by the program's own words",
                "read what it said above",
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
