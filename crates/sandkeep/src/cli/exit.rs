//! Exit codes. The numbers are part of the interface: `docs/reference/exit-codes.md` lists them, and a test compares
//! the two.

use crate::cli::failure::Failure;
use sandkeep_broker::error::Error;
use sandkeep_client::Error as Api;
use sandkeep_guestlink::Outcome;

/// How a command of the CLI ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok,
    RequestFailed,
    Usage,
    CannotListen,
    DataDirUnusable,
    DataDirInUse,
    StorageUnusable,
    RuntimeUnusable,
    Conflicts,
    TimedOut,
    SandkeepFailed,
    OomKilled,
    OutputClosed,
    /// `exec` and `run`: the command exited with this code.
    Command(u8),
}

impl Exit {
    /// All exits with a fixed number.
    pub const FIXED: &[Self] = &[
        Self::Ok,
        Self::RequestFailed,
        Self::Usage,
        Self::CannotListen,
        Self::DataDirUnusable,
        Self::DataDirInUse,
        Self::StorageUnusable,
        Self::RuntimeUnusable,
        Self::Conflicts,
        Self::TimedOut,
        Self::SandkeepFailed,
        Self::OomKilled,
        Self::OutputClosed,
    ];

    pub fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::RequestFailed => 1,
            Self::Usage => 2,
            Self::CannotListen => 3,
            Self::DataDirUnusable => 4,
            Self::DataDirInUse => 5,
            Self::StorageUnusable => 6,
            Self::RuntimeUnusable => 7,
            Self::Conflicts => 8,
            Self::TimedOut => 124,
            Self::SandkeepFailed => 125,
            Self::OomKilled => 137,
            // As if SIGPIPE had killed us, like other programs.
            Self::OutputClosed => 141,
            Self::Command(code) => code,
        }
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "success",
            Self::RequestFailed => {
                "the request failed, `doctor` found a problem, `race` no winner, or `audit verify` a broken record"
            }
            Self::Usage => "invalid command line or configuration",
            Self::CannotListen => "`serve`: cannot listen on the address; the port may be in use",
            Self::DataDirUnusable => "`serve`: the data directory cannot be used",
            Self::DataDirInUse => "`serve`: another daemon uses the data directory",
            Self::StorageUnusable => "`serve`: the storage cannot be used on this machine",
            Self::RuntimeUnusable => "`serve`: no runtime is usable; a kernel feature is missing",
            Self::Conflicts => "`apply`: files that changed on both sides were left as they are",
            Self::TimedOut => "`exec`, `run`: the command timed out and was killed",
            Self::SandkeepFailed => {
                "`exec`, `run`: Sandkeep itself failed, or the outcome is unknown"
            }
            Self::OomKilled => "`exec`, `run`: killed: out of memory",
            Self::OutputClosed => "the reader of the output closed it",
            Self::Command(_) => "`exec`, `run`: the command's own code",
        }
    }

    /// For the end of `--help`.
    pub fn help() -> String {
        let lines =
            Self::FIXED.iter().map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()));
        format!("Exit codes:\n{}", lines.collect::<Vec<_>>().join("\n"))
    }

    /// For all commands but `exec` and `run`, whose own failures are always
    /// [`Exit::SandkeepFailed`].
    pub fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::Broker(error) => Self::of_error(error),
            Failure::Listen { .. } | Failure::NotLoopback { .. } => Self::CannotListen,
            Failure::Usage { .. } | Failure::Config(_) => Self::Usage,
            Failure::Api(error) => Self::of_api(error),
            Failure::File(_)
            | Failure::ToolConfig(_)
            | Failure::TooMuchStdin { .. }
            | Failure::Declined
            | Failure::Interrupted
            | Failure::Some { .. }
            | Failure::Tool(_)
            | Failure::System { .. } => Self::RequestFailed,
        }
    }

    fn of_api(error: &Api) -> Self {
        match error {
            Api::InvalidUrl { .. }
            | Api::InvalidKey { .. }
            | Api::Certificates { .. }
            | Api::NotAnId { .. }
            | Api::NoMatchInside { .. }
            | Api::AmbiguousInside { .. } => Self::Usage,
            Api::Refused(_)
            | Api::Unreachable { .. }
            | Api::WentAway { .. }
            | Api::BrokeOff { .. }
            | Api::Detached { .. }
            | Api::NotSandkeep { .. }
            | Api::NoMatch { .. }
            | Api::Ambiguous { .. } => Self::RequestFailed,
        }
    }

    fn of_error(error: &Error) -> Self {
        match error {
            Error::DataDirInUse { .. } => Self::DataDirInUse,
            // The registry is a file in the data directory.
            Error::DataDir { .. } | Error::Store(_) => Self::DataDirUnusable,
            Error::Storage(_) | Error::StorageLacks { .. } => Self::StorageUnusable,
            Error::HostUnreadable { .. }
            | Error::Runtime(_)
            | Error::NoVolume { .. }
            | Error::UnfitVolume { .. }
            | Error::RuntimeUnusable { .. }
            | Error::UnknownRuntime { .. } => Self::RuntimeUnusable,
            Error::InvalidSpec(_)
            | Error::InvalidField { .. }
            | Error::UnknownTemplate { .. }
            | Error::TemplateNotFound { .. }
            | Error::BaseNotFound { .. }
            | Error::TemplateInUse { .. }
            | Error::TemplateShared { .. }
            | Error::SourceInvalid { .. }
            | Error::StartUpFailed { .. }
            | Error::BuildFileInvalid { .. }
            | Error::BuildFailed { .. }
            | Error::SourceForbidden { .. }
            | Error::SourceUnavailable { .. }
            | Error::UploadTooLarge { .. }
            | Error::RepositoryNotFound { .. }
            | Error::RepositoryPrivate { .. }
            | Error::ReferenceNotFound { .. }
            | Error::UploadNotFound { .. }
            | Error::WebhookNotFound { .. }
            | Error::CodebaseNotFound { .. }
            | Error::CodebaseExists { .. }
            | Error::CodebaseInUse { .. }
            | Error::CodebaseBusy { .. }
            | Error::RulesNotServed { .. }
            | Error::CodebaseExclusive { .. }
            | Error::RulesServer { .. }
            | Error::NoSpace { .. }
            | Error::HostFull { .. }
            | Error::TookTooLong { .. }
            | Error::UnknownProfile { .. }
            | Error::SlotTaken { .. }
            | Error::NameTaken { .. }
            | Error::NameNotFound { .. }
            | Error::NameAmbiguous { .. }
            | Error::IdempotencyMismatch { .. }
            | Error::ToolArgument { .. }
            | Error::ToolCallMismatch { .. }
            | Error::IdempotencyGone { .. }
            | Error::Fenced { .. }
            | Error::Elsewhere { .. }
            | Error::QuotaExceeded { .. }
            | Error::RateLimited { .. }
            | Error::NotFound { .. }
            | Error::ExecNotFound { .. }
            | Error::ExecEnded { .. }
            | Error::StdinClosed { .. }
            | Error::NoTerminal { .. }
            | Error::Journal { .. }
            | Error::File { .. }
            | Error::ToolboxBroke { .. }
            | Error::ToolboxOutOfMemory
            | Error::KeyNotFound { .. }
            | Error::WrongState { .. }
            | Error::Busy { .. }
            | Error::ExecsInFlight { .. }
            | Error::SnapshotNotFound { .. }
            | Error::SnapshotExists { .. }
            | Error::SnapshotsFull { .. }
            | Error::LimitReached { .. }
            | Error::FilesTooLarge { .. }
            | Error::RevertAbandoned { .. }
            | Error::PoolFull { .. }
            | Error::NoListener { .. }
            | Error::ProcessNotFound { .. }
            | Error::ProcessEnded { .. }
            | Error::CannotListen { .. }
            | Error::OverCeiling(_)
            | Error::Gateway { .. }
            | Error::Secrets { .. }
            | Error::NetworkAsk(_)
            | Error::SandboxFailed { .. }
            | Error::ShuttingDown
            | Error::Guest(_) => Self::RequestFailed,
        }
    }

    /// For `exec` and `run`: as the command would have ended in a shell.
    pub fn of_outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Exited(code) => Self::Command(low_byte(*code)),
            Outcome::Signaled(signal) => Self::Command(low_byte(128 + signal)),
            Outcome::TimedOut => Self::TimedOut,
            Outcome::OomKilled => Self::OomKilled,
            Outcome::Canceled | Outcome::Lost => Self::SandkeepFailed,
        }
    }
}

/// A parent sees only the low byte of an exit code.
fn low_byte(code: i32) -> u8 {
    (code & 0xff) as u8
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    fn table() -> String {
        let mut text = String::from(
            "# Exit codes\n\n\
             `sandkeep` prints one line to stderr when it fails, and exits with one of these codes. `exec` and `run` exit with\n\
             the command's own code, or with 128 + n if signal n killed it.\n\n\
             <!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run exit_codes_md -->\n\n\
             | code | meaning |\n|---|---|\n",
        );
        for exit in Exit::FIXED {
            writeln!(text, "| {} | {} |", exit.code(), exit.meaning())
                .expect("a String can be written to");
        }
        text
    }

    #[test]
    fn exit_codes_md_lists_every_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/exit-codes.md");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, table()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/exit-codes.md exists");
        assert!(
            written == table(),
            "docs/reference/exit-codes.md is stale: run with SANDKEEP_REGENERATE=1"
        );
    }

    #[test]
    fn a_command_ends_sandkeep_as_it_would_end_in_a_shell() {
        let code = |outcome| Exit::of_outcome(&outcome).code();
        assert_eq!(code(Outcome::Exited(3)), 3);
        assert_eq!(code(Outcome::Signaled(9)), 137);
        assert_eq!(code(Outcome::TimedOut), 124);
        assert_eq!(code(Outcome::OomKilled), 137);
        assert_eq!(code(Outcome::Lost), 125);
    }
}
