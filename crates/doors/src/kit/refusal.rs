//! Why a request was refused, before a door formats the refusal.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::auth::AuthError;
use sandkeep_broker::{PortTokenProblem, error::Error};
use sandkeep_core::{
    Code, Kind, Principal, Scope,
    limits::{
        AUDIT_FOLLOWERS_MAX, BODY_MAX_BYTES, BODY_READ, CONNECT_MESSAGE_MAX_BYTES,
        LIMIT_RETRY_AFTER, PORT_IDLE,
    },
    with_causes,
};

/// Why a request was refused, by the broker or by a door before it.
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
    #[error("there is no webhook {text:?}")]
    NotAWebhookId { text: String },
    #[error("{text:?} is not the number of a request")]
    NotARequestNumber { text: String },
    #[error("there is no upload {text:?}")]
    NotAnUploadId { text: String },
    #[error("{}{problem}", field.as_ref().map(|f| format!("{f}: ")).unwrap_or_default())]
    BodyMalformed { field: Option<String>, problem: String },
    #[error("the body could not be read: {problem}")]
    BodyBroken { problem: String },
    #[error("the message is larger than {CONNECT_MESSAGE_MAX_BYTES} bytes")]
    MessageTooLarge,
    #[error("the client's deadline of {} ms has passed", after.as_millis())]
    DeadlineExceeded { after: Duration },
    #[error("the body is larger than {BODY_MAX_BYTES} bytes")]
    BodyTooLarge,
    #[error("the body did not arrive within {} s", BODY_READ.as_secs())]
    BodyTooSlow,
    #[error("the body is {given:?}, which is not JSON")]
    NotJson { given: String },
    #[error("the body is {given:?}, in which the file is only a part")]
    NotRaw { given: String },
    #[error("the file ends at {size} bytes, before the range begins")]
    RangeBeyondEnd { size: u64 },
    #[error("query: {problem}")]
    QueryMalformed { problem: String },
    #[error("this endpoint is a WebSocket: {problem}")]
    NotAWebSocket { problem: String },
    #[error("there is no endpoint {path}")]
    NoRoute { path: String },
    #[error("there is no command {verb:?}")]
    NoCommand { verb: String },
    #[error("the message {problem}")]
    MessageMalformed { problem: String },
    #[error("the answer is over the {limit_bytes} bytes that a message can have")]
    AnswerTooLarge { limit_bytes: usize },
    #[error("nothing was answered within {} s", limit.as_secs())]
    AnsweredTooLate { limit: Duration },
    #[error("{path} does not support {method}")]
    NoMethod { method: Method, path: String },
    #[error("the Host header is {host:?}, not this machine's loopback")]
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
    #[error("the credentials lack the scope {}", needed.as_str())]
    Forbidden { needed: Scope, who: Principal },
    #[error("there is no process {text:?}")]
    NotAProcessId { text: String },
    #[error("{text:?} is not a port from 1 to 65535")]
    NotAPort { text: String },
    #[error(transparent)]
    PortToken(PortTokenProblem),
    #[error("the server on the port does not speak valid HTTP: {problem}")]
    PortBroke { problem: String },
    #[error("the server sent nothing for {} s", PORT_IDLE.as_secs())]
    PortSilent,
    #[error("raw ports cannot be opened with an API key")]
    LocalOnly,
    #[error("the audit log cannot be written: {problem}")]
    AuditFull { problem: String },
    #[error("all {AUDIT_FOLLOWERS_MAX} places for readers of the audit log are taken")]
    AuditFollowed,
    #[error("a service worker would control the whole API origin")]
    ServiceWorker,
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
            Self::NotAWebhookId { .. } => Code::WebhookNotFound,
            Self::NotARequestNumber { .. } => Code::NetworkRequestNotFound,
            Self::NotAnUploadId { .. } => Code::UploadNotFound,
            Self::BodyMalformed { .. } => Code::MalformedBody,
            Self::BodyBroken { .. } => Code::BrokenBody,
            Self::BodyTooLarge => Code::BodyTooLarge,
            Self::MessageTooLarge => Code::BodyTooLarge,
            Self::DeadlineExceeded { .. } => Code::DeadlineExceeded,
            Self::BodyTooSlow => Code::BodyTooSlow,
            Self::NotJson { .. } => Code::NotJson,
            Self::NotRaw { .. } => Code::NotRaw,
            Self::RangeBeyondEnd { .. } => Code::RangeNotSatisfiable,
            Self::QueryMalformed { .. } => Code::InvalidQuery,
            Self::NotAWebSocket { .. } => Code::UpgradeRequired,
            Self::NoRoute { .. } | Self::NoCommand { .. } => Code::NoRoute,
            Self::MessageMalformed { .. } => Code::MalformedBody,
            Self::AnswerTooLarge { .. } => Code::AnswerTooLarge,
            Self::AnsweredTooLate { .. } => Code::TookTooLong,
            Self::NoMethod { .. } => Code::MethodNotAllowed,
            Self::ForeignHost { .. } => Code::ForeignHost,
            Self::ForeignOrigin { .. } => Code::ForeignOrigin,
            Self::ForeignPeer { .. } => Code::ForeignPeer,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::AuthUnavailable { .. } => Code::AuthUnavailable,
            Self::Forbidden { .. } => Code::Forbidden,
            Self::NotAProcessId { .. } => Code::ProcessNotFound,
            Self::NotAPort { .. } => Code::PortNotFound,
            Self::PortToken(PortTokenProblem::Expired | PortTokenProblem::Revoked) => {
                Code::UrlExpired
            }
            Self::PortToken(PortTokenProblem::Forged) => Code::UrlForged,
            Self::PortBroke { .. } => Code::PortBroke,
            Self::PortSilent => Code::PortSilent,
            Self::LocalOnly => Code::LocalOnly,
            Self::AuditFull { .. } => Code::AuditFull,
            Self::AuditFollowed => Code::LimitReached,
            Self::ServiceWorker => Code::ServiceWorkerRefused,
        }
    }

    /// What happened, in words: the error and its causes.
    pub fn detail(&self) -> String {
        with_causes(self)
    }

    /// What the caller can do about it.
    pub fn remedy(&self) -> String {
        match self {
            Self::Broker(error) => error.remedy(),
            _ => self.code().remedy().to_owned(),
        }
    }

    /// When to retry a request that was rate-limited; `None` for all other refusals.
    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Broker(Error::RateLimited { retry_after, .. }) => Some(*retry_after),
            _ => match self.code().kind() {
                Kind::Quota | Kind::RateLimited => Some(LIMIT_RETRY_AFTER),
                _ => None,
            },
        }
    }

    pub fn log(&self) {
        let code = self.code();
        match self {
            // The error quotes the body, and a body may hold secrets.
            Self::BodyMalformed { .. } => tracing::debug!(code = code.as_str()),
            _ if code.kind().is_fault() => {
                tracing::error!(code = code.as_str(), "{}", self.detail())
            }
            _ => tracing::debug!(code = code.as_str(), "{}", self.detail()),
        }
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        match error {
            AuthError::Refused { problem } => Self::Unauthenticated { problem },
            AuthError::Unavailable { problem } => Self::AuthUnavailable { problem },
        }
    }
}

impl From<PortTokenProblem> for Refusal {
    fn from(problem: PortTokenProblem) -> Self {
        Self::PortToken(problem)
    }
}

/// In whole seconds, as the header requires; rounded up, so that the retry is not refused again.
fn in_seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

impl IntoResponse for Refusal {
    /// Attached to an empty answer until [`super::in_words`] formats it.
    fn into_response(self) -> Response {
        self.log();
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        if let Some(time) = self.retry_after() {
            response.headers_mut().insert(header::RETRY_AFTER, in_seconds(time).into());
        }
        response.extensions_mut().insert(Arc::new(self));
        response
    }
}
