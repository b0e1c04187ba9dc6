//! The one map from errors to problem+json (RFC 9457), exhaustive, so that a new error cannot be
//! forgotten. Problems are written for a program, or a language model, that has to decide what to do
//! next: a stable `code`, a `remediation`, and whether the same request is worth `retryable`.

mod code;

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use toolbox::FailureKind;

use sandkeep_broker::{PassProblem, error::Error};
use sandkeep_core::{
    Scope,
    limits::{BODY_MAX_BYTES, BODY_READ, LIMIT_RETRY_AFTER, PORT_IDLE},
};
use sandkeep_guestlink::GuestError;
use sandkeep_runtime::RuntimeError;
use sandkeep_storage::StorageError;
use sandkeep_store::StoreError;

pub use code::{Code, Retry};

pub const MEDIA_TYPE: &str = "application/problem+json";

/// Why a request was refused: by the broker, or by this door before it got there.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Broker(#[from] Error),
    #[error("there is no sandbox {text:?}")]
    NotAnId { text: String },
    #[error("there is no exec {text:?}")]
    NotAnExecId { text: String },
    #[error("there is no key {text:?}")]
    NotAKeyId { text: String },
    #[error("there is no shell {text:?}")]
    NotAShellId { text: String },
    #[error("there is no template {text:?}: {}", sandkeep_core::InvalidTemplateName)]
    NotATemplateName { text: String },
    #[error("there is no snapshot {text:?}: {}", sandkeep_core::InvalidSnapshotName)]
    NotASnapshotName { text: String },
    #[error("there is no tool {text:?}; {}", sandkeep_broker::UnknownTool)]
    NotATool { text: String },
    #[error("there is no upload {text:?}")]
    NotAnUploadId { text: String },
    #[error("{}{problem}", field.as_ref().map(|f| format!("{f}: ")).unwrap_or_default())]
    BodyMalformed { field: Option<String>, problem: String },
    #[error("the body could not be read: {problem}")]
    BodyBroken { problem: String },
    #[error("the body is larger than {BODY_MAX_BYTES} bytes")]
    BodyTooLarge,
    #[error("the body did not arrive within {} s", BODY_READ.as_secs())]
    BodyTooSlow,
    #[error("the body is {given:?}, which is not JSON")]
    NotJson { given: String },
    #[error("the file ends at {size} bytes, before the range begins")]
    RangeBeyondEnd { size: u64 },
    #[error("query: {problem}")]
    QueryMalformed { problem: String },
    #[error("this endpoint is a WebSocket: {problem}")]
    NotAWebSocket { problem: String },
    #[error("there is no endpoint {path}")]
    NoRoute { path: String },
    #[error("{path} has no method {method}")]
    NoMethod { method: Method, path: String },
    #[error("the request is addressed to {host:?}, not to this machine's loopback")]
    ForeignHost { host: String },
    #[error("the request comes from a page of {origin}")]
    ForeignOrigin { origin: String },
    #[error("the request comes from {}, not from the user who runs the daemon", match uid {
        Some(uid) => format!("uid {uid}"),
        None => "a closed socket".to_owned(),
    })]
    ForeignPeer { uid: Option<u32> },
    #[error("{problem}")]
    Unauthenticated { problem: String },
    #[error("the credential cannot be checked now: {problem}")]
    AuthUnavailable { problem: String },
    #[error("this needs the scope {}, which the credential does not have", needed.as_str())]
    Forbidden { needed: Scope },
    #[error("there is no process {text:?}")]
    NotAProcessId { text: String },
    #[error("{text:?} is not a port from 1 to 65535")]
    NotAPort { text: String },
    #[error(transparent)]
    Pass(PassProblem),
    #[error("what listens on the port does not answer as HTTP should: {problem}")]
    PortBroke { problem: String },
    #[error("the server said nothing for {} s", PORT_IDLE.as_secs())]
    PortSilent,
    #[error("a raw port of the host cannot be opened for those who come with a key")]
    LocalOnly,
    #[error("a service worker would act for the whole API")]
    ServiceWorker,
}

/// The body of every answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Problem {
    /// Names the kind of problem, for ever; `docs/errors.md` explains it.
    pub r#type: String,
    pub title: String,
    pub status: u16,
    pub detail: String,
    pub code: String,
    pub remediation: String,
    pub retryable: bool,
    /// The path of the request.
    pub instance: String,
}

impl Refusal {
    pub fn code(&self) -> Code {
        match self {
            Self::Broker(error) => code_of(error),
            Self::NotAnId { .. } => Code::NotFound,
            Self::NotAnExecId { .. } => Code::ExecNotFound,
            Self::NotAKeyId { .. } => Code::KeyNotFound,
            Self::NotAShellId { .. } => Code::ShellNotFound,
            Self::NotATemplateName { .. } => Code::TemplateNotFound,
            Self::NotASnapshotName { .. } => Code::SnapshotNotFound,
            Self::NotATool { .. } => Code::ToolNotFound,
            Self::NotAnUploadId { .. } => Code::UploadNotFound,
            Self::BodyMalformed { .. } => Code::MalformedBody,
            Self::BodyBroken { .. } => Code::BrokenBody,
            Self::BodyTooLarge => Code::BodyTooLarge,
            Self::BodyTooSlow => Code::BodyTooSlow,
            Self::NotJson { .. } => Code::NotJson,
            Self::RangeBeyondEnd { .. } => Code::RangeNotSatisfiable,
            Self::QueryMalformed { .. } => Code::InvalidQuery,
            Self::NotAWebSocket { .. } => Code::UpgradeRequired,
            Self::NoRoute { .. } => Code::NoRoute,
            Self::NoMethod { .. } => Code::MethodNotAllowed,
            Self::ForeignHost { .. } => Code::ForeignHost,
            Self::ForeignOrigin { .. } => Code::ForeignOrigin,
            Self::ForeignPeer { .. } => Code::ForeignPeer,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::AuthUnavailable { .. } => Code::AuthUnavailable,
            Self::Forbidden { .. } => Code::Forbidden,
            Self::NotAProcessId { .. } => Code::ProcessNotFound,
            Self::NotAPort { .. } => Code::PortNotFound,
            Self::Pass(PassProblem::Expired) => Code::UrlExpired,
            Self::Pass(PassProblem::Forged) => Code::UrlForged,
            Self::PortBroke { .. } => Code::PortBroke,
            Self::PortSilent => Code::PortSilent,
            Self::LocalOnly => Code::LocalOnly,
            Self::ServiceWorker => Code::ServiceWorkerRefused,
        }
    }

    pub fn problem(&self) -> Problem {
        let code = self.code();
        let remediation = match self {
            Self::Broker(error) => remedy_of(error),
            _ => code.remedy().to_owned(),
        };
        Problem {
            r#type: format!("urn:sandkeep:error:{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail_of(self),
            code: code.as_str().to_owned(),
            remediation,
            retryable: code.retry() == Retry::Useful,
            instance: String::new(),
        }
    }
}

/// What an error of the broker is called.
pub fn code_of(error: &Error) -> Code {
    match error {
        Error::InvalidSpec(_) | Error::InvalidField { .. } => Code::InvalidField,
        Error::UnknownRuntime { .. } => Code::UnknownRuntime,
        Error::RuntimeUnusable { .. } => Code::RuntimeUnusable,
        Error::UnknownTemplate { .. } => Code::UnknownTemplate,
        Error::TemplateNotFound { .. } | Error::BaseNotFound { .. } => Code::TemplateNotFound,
        Error::TemplateInUse { .. } => Code::TemplateInUse,
        Error::TemplateShared { .. } => Code::TemplateShared,
        Error::SourceInvalid { .. } => Code::SourceInvalid,
        Error::StartUpFailed { .. } => Code::StartUpFailed,
        Error::BuildFileInvalid { .. } => Code::BuildFileInvalid,
        Error::BuildFailed { .. } => Code::BuildFailed,
        Error::SourceForbidden { .. } => Code::SourceForbidden,
        Error::SourceUnavailable { .. } => Code::SourceUnavailable,
        Error::RepositoryNotFound { .. } => Code::RepositoryNotFound,
        Error::RepositoryPrivate { .. } => Code::RepositoryPrivate,
        Error::ReferenceNotFound { .. } => Code::ReferenceNotFound,
        Error::UploadNotFound { .. } => Code::UploadNotFound,
        Error::NoSpace { .. } => Code::NoSpace,
        Error::UploadTooLarge { .. } => Code::UploadTooLarge,
        Error::UnknownProfile { .. } => Code::UnknownProfile,
        Error::SlotTaken { .. } => Code::SlotTaken,
        Error::IdempotencyMismatch { .. } => Code::IdempotencyMismatch,
        Error::IdempotencyGone { .. } => Code::IdempotencyGone,
        Error::ToolArgument { .. } => Code::InvalidArgument,
        Error::ToolCallMismatch { .. } => Code::ToolCallMismatch,
        Error::QuotaExceeded { .. } => Code::QuotaExceeded,
        Error::RateLimited { .. } => Code::RateLimited,
        Error::StorageLacks { .. } => Code::UnsupportedByStorage,
        Error::NotFound { .. } => Code::NotFound,
        Error::ExecNotFound { .. } => Code::ExecNotFound,
        Error::ExecEnded { .. } => Code::ExecEnded,
        Error::StdinClosed { .. } => Code::StdinClosed,
        Error::NoTerminal { .. } => Code::NoTerminal,
        Error::Journal { .. } => Code::JournalFailed,
        Error::KeyNotFound { .. } => Code::KeyNotFound,
        Error::File { kind, .. } => code_of_file(*kind),
        Error::ToolboxBroke { .. } => Code::ToolboxBroke,
        Error::ToolboxOutOfMemory => Code::OutOfMemory,
        Error::WrongState { .. } => Code::WrongState,
        Error::Busy { .. } => Code::Busy,
        Error::ExecsInFlight { .. } => Code::ExecsInFlight,
        Error::SnapshotNotFound { .. } => Code::SnapshotNotFound,
        Error::SnapshotExists { .. } => Code::SnapshotExists,
        Error::SnapshotsFull { .. } => Code::SnapshotsFull,
        Error::LimitReached { .. } => Code::LimitReached,
        Error::ProcessNotFound { .. } => Code::ProcessNotFound,
        Error::ProcessEnded { .. } => Code::ProcessEnded,
        Error::NoListener { .. } => Code::ListenerNotFound,
        Error::CannotListen { .. } => Code::CannotListen,
        Error::SandboxFailed { .. } => Code::SandboxFailed,
        Error::DataDirInUse { .. } => Code::DataDirInUse,
        Error::DataDir { .. } => Code::DataDirUnusable,
        Error::HostUnreadable { .. } => Code::RuntimeFailed,
        Error::ShuttingDown => Code::ShuttingDown,
        Error::Fenced { .. } | Error::Elsewhere { .. } => Code::Conflict,
        Error::PoolFull { .. } => Code::PoolFull,
        Error::Store(error) => code_of_store(error),
        Error::Storage(error) => code_of_storage(error),
        Error::Runtime(error) => code_of_runtime(error),
        Error::Guest(error) => code_of_guest(error),
    }
}

fn code_of_file(kind: FailureKind) -> Code {
    match kind {
        FailureKind::NotFound => Code::FileNotFound,
        FailureKind::NotADirectory => Code::NotADirectory,
        FailureKind::IsADirectory => Code::IsADirectory,
        FailureKind::Exists => Code::FileExists,
        FailureKind::NotEmpty => Code::DirectoryNotEmpty,
        FailureKind::NotPermitted => Code::FileNotPermitted,
        FailureKind::ReadOnly => Code::FileReadOnly,
        FailureKind::NoSpace => Code::NoSpace,
        FailureKind::TooLarge => Code::FileTooLarge,
        FailureKind::NotRegular => Code::NotARegularFile,
        FailureKind::Changed => Code::FileChanged,
        FailureKind::Invalid => Code::FileRequestInvalid,
        FailureKind::Unsupported => Code::FileUnsupported,
        FailureKind::BrokenOff => Code::BrokenBody,
        FailureKind::NoMatch => Code::NoMatch,
        FailureKind::TimedOut => Code::FileTimedOut,
        FailureKind::Other => Code::FileFailed,
    }
}

fn code_of_store(error: &StoreError) -> Code {
    match error {
        StoreError::Exists { .. } | StoreError::Conflict { .. } => Code::Conflict,
        StoreError::TooLarge { .. } => Code::ValueTooLarge,
        StoreError::Compacted { .. } => Code::StoreFailed,
        StoreError::Unavailable(_) => Code::StoreUnavailable,
    }
}

fn code_of_storage(error: &StorageError) -> Code {
    match error {
        StorageError::Unsupported { .. } | StorageError::TooManyLayers { .. } => {
            Code::UnsupportedByStorage
        }
        StorageError::NotFound { .. }
        | StorageError::Exists { .. }
        | StorageError::SnapshotNotFound { .. }
        | StorageError::SnapshotExists { .. }
        | StorageError::LayerMissing { .. }
        | StorageError::LayerInUse { .. } => Code::StorageInconsistent,
        StorageError::Unusable { .. } => Code::StorageUnusable,
        StorageError::Full { .. } => Code::StorageFull,
        StorageError::Io { .. } => Code::StorageFailed,
    }
}

fn code_of_runtime(error: &RuntimeError) -> Code {
    match error {
        RuntimeError::Unsupported { .. } => Code::UnsupportedByRuntime,
        RuntimeError::NotFound { .. } => Code::RuntimeInconsistent,
        RuntimeError::NotRunning { .. } => Code::NotRunning,
        RuntimeError::Io { .. } => Code::RuntimeFailed,
    }
}

fn code_of_guest(error: &GuestError) -> Code {
    match error {
        GuestError::Unreachable(_) => Code::GuestUnreachable,
        GuestError::TimedOut { .. } => Code::GuestTimedOut,
        GuestError::Version { .. } => Code::GuestVersion,
        GuestError::Protocol(_) => Code::GuestBroke,
        GuestError::Refused { .. } => Code::GuestRefused,
        GuestError::Unsupported { .. } => Code::UnsupportedByRuntime,
        GuestError::Leaf(_) | GuestError::Program(_) => Code::RuntimeFailed,
        GuestError::PortClosed { .. } => Code::PortClosed,
        GuestError::ShellNotFound { .. } => Code::ShellNotFound,
        GuestError::ShellEnded { .. } => Code::ShellEnded,
        GuestError::ShellQueueFull { .. } => Code::ShellQueueFull,
        GuestError::TooManyShells { .. } => Code::LimitReached,
    }
}

/// What to do about an error: its own advice if it has one, else that of its code.
pub fn remedy_of(error: &Error) -> String {
    match error {
        Error::WrongState { id, helps: Some(verb), .. } => {
            format!("{verb} it first: sandkeep {verb} {id}, or the same verb of the API")
        }
        Error::SlotTaken { holder, .. } => format!(
            "use {holder}, destroy it first, or ask POST /api/v1/sandboxes/ensure for whichever there is"
        ),
        other => code_of(other).remedy().to_owned(),
    }
}

/// When a request that a limit refused is worth trying again; `None` for all other refusals.
fn retry_after(refusal: &Refusal, code: Code) -> Option<Duration> {
    match refusal {
        Refusal::Broker(Error::RateLimited { retry_after, .. }) => Some(*retry_after),
        _ if code.status() == StatusCode::TOO_MANY_REQUESTS => Some(LIMIT_RETRY_AFTER),
        _ => None,
    }
}

/// Whole seconds, as the header wants them; never so early that it is refused again.
fn in_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The error and its causes in one line, each said once.
pub fn detail_of(error: &dyn std::error::Error) -> String {
    let mut detail = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !detail.contains(&text) {
            detail = format!("{detail}: {text}");
        }
        cause = error.source();
    }
    detail
}

impl IntoResponse for Refusal {
    /// The problem travels beside an empty body until [`render`] knows the request's path.
    fn into_response(self) -> Response {
        let problem = self.problem();
        let later = retry_after(&self, self.code());
        match self {
            // What is wrong with a body quotes it, and a body may hold secrets.
            Self::BodyMalformed { .. } => tracing::debug!(code = problem.code),
            _ if problem.status >= 500 => {
                tracing::error!(code = problem.code, "{}", problem.detail)
            }
            _ => tracing::debug!(code = problem.code, "{}", problem.detail),
        }
        let status = StatusCode::from_u16(problem.status).expect("every code has a valid status");
        let mut response = status.into_response();
        if let Some(time) = later {
            response.headers_mut().insert(header::RETRY_AFTER, in_seconds(time).into());
        }
        response.extensions_mut().insert(problem);
        response
    }
}

/// Writes the problem of an answer that is one, as the last step before it is sent.
pub fn render(mut response: Response, path: &str) -> Response {
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let problem = Problem { instance: path.to_owned(), ..problem };
    let body = serde_json::to_vec(&problem).expect("a struct of strings always encodes");
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(body);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fmt::Write;

    use super::*;

    fn table() -> String {
        let mut text = String::from(
            "# Errors\n\n\
             Every error of the API is a problem+json (RFC 9457) with `type`, `title`, `status`, `detail`, `code`,\n\
             `remediation`, `retryable` and `instance`. `code` is stable; `detail` is for people. The CLI prints the same.\n\n\
             <!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run errors_md -->\n\n\
             | code | status | what it means | what to do | retryable |\n|---|---|---|---|---|\n",
        );
        for code in Code::ALL {
            let retry = match code.retry() {
                Retry::Useful => "yes",
                Retry::Useless => "no",
            };
            let (name, status) = (code.as_str(), code.status());
            writeln!(
                text,
                "| `{name}` | {status} | {} | {} | {retry} |",
                code.title(),
                code.remedy()
            )
            .expect("a String can be written to");
        }
        text
    }

    #[test]
    fn errors_md_lists_every_code() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors.md");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, table()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/errors.md exists");
        assert!(written == table(), "docs/errors.md is stale: run with SANDKEEP_REGENERATE=1");
    }

    #[test]
    fn no_two_errors_share_a_code_and_every_status_is_an_error() {
        let names: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        assert!(Code::ALL.iter().all(|code| (400..600).contains(&code.status())));
    }

    #[test]
    fn causes_are_told_once_each() {
        let cause = std::io::Error::other("disk on fire");
        let silent = Error::Store(StoreError::Unavailable(Box::new(cause)));
        assert_eq!(detail_of(&silent), "the state store failed: disk on fire");
        let source = std::io::Error::other("disk on fire");
        let telling = Error::DataDir { path: "/d".to_owned(), source };
        assert_eq!(detail_of(&telling), "cannot use the data directory /d: disk on fire");
    }
}
