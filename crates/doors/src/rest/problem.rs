//! Every refusal as problem+json (RFC 9457). Problems are written for a program, or a language model, that has to decide what to do
//! next: a stable `code`, a `remediation`, and whether the same request is worth `retryable`.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use sandkeep_broker::{PassProblem, error::Error};
use sandkeep_core::{
    Code, Kind, Scope,
    limits::{BODY_MAX_BYTES, BODY_READ, LIMIT_RETRY_AFTER, PORT_IDLE},
    with_causes,
};

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
            Self::Broker(error) => error.code(),
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
            Self::Broker(error) => error.remedy(),
            _ => code.remedy().to_owned(),
        };
        Problem {
            r#type: format!("urn:sandkeep:error:{}", code.as_str()),
            title: code.title().to_owned(),
            status: status_of(code).as_u16(),
            detail: with_causes(self),
            code: code.as_str().to_owned(),
            remediation,
            retryable: code.retryable(),
            instance: String::new(),
        }
    }
}

/// The one table from codes to statuses.
pub fn status_of(code: Code) -> StatusCode {
    match (code, code.kind()) {
        (Code::MethodNotAllowed, _) => StatusCode::METHOD_NOT_ALLOWED,
        (Code::BodyTooSlow, _) => StatusCode::REQUEST_TIMEOUT,
        (Code::NotJson, _) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        (Code::RangeNotSatisfiable, _) => StatusCode::RANGE_NOT_SATISFIABLE,
        (
            Code::BuildFailed
            | Code::StartUpFailed
            | Code::IdempotencyMismatch
            | Code::ToolCallMismatch,
            _,
        ) => StatusCode::UNPROCESSABLE_ENTITY,
        (Code::UpgradeRequired, _) => StatusCode::UPGRADE_REQUIRED,
        (_, Kind::Invalid | Kind::Unsupported) => StatusCode::BAD_REQUEST,
        (_, Kind::Unauthenticated) => StatusCode::UNAUTHORIZED,
        (_, Kind::Forbidden) => StatusCode::FORBIDDEN,
        (_, Kind::NotFound) => StatusCode::NOT_FOUND,
        (_, Kind::Conflict | Kind::Precondition) => StatusCode::CONFLICT,
        (_, Kind::TooLarge) => StatusCode::PAYLOAD_TOO_LARGE,
        (_, Kind::Quota | Kind::RateLimited) => StatusCode::TOO_MANY_REQUESTS,
        (_, Kind::NoSpace) => StatusCode::INSUFFICIENT_STORAGE,
        (_, Kind::Upstream) => StatusCode::BAD_GATEWAY,
        (_, Kind::Unavailable) => StatusCode::SERVICE_UNAVAILABLE,
        (_, Kind::Timeout) => StatusCode::GATEWAY_TIMEOUT,
        (_, Kind::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// When a request that a limit refused is worth trying again; `None` for all other refusals.
fn retry_after(refusal: &Refusal, code: Code) -> Option<Duration> {
    match refusal {
        Refusal::Broker(Error::RateLimited { retry_after, .. }) => Some(*retry_after),
        _ if matches!(code.kind(), Kind::Quota | Kind::RateLimited) => Some(LIMIT_RETRY_AFTER),
        _ => None,
    }
}

/// Whole seconds, as the header wants them; never so early that it is refused again.
fn in_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl IntoResponse for Refusal {
    /// The problem travels beside an empty body until [`render`] knows the request's path.
    fn into_response(self) -> Response {
        let problem = self.problem();
        let later = retry_after(&self, self.code());
        match self {
            // What is wrong with a body quotes it, and a body may hold secrets.
            Self::BodyMalformed { .. } => tracing::debug!(code = problem.code),
            _ if self.code().kind().is_fault() => {
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
            let retry = if code.retryable() { "yes" } else { "no" };
            let (name, status) = (code.as_str(), status_of(*code).as_u16());
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
}
