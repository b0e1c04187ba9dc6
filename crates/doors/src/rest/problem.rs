//! Every refusal as problem+json (RFC 9457). A problem is written for a program, or a language model, that has to
//! decide what to do next: a stable `code`, a `remediation`, and `retryable`, which says whether the same request may
//! succeed later.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::kit::Refusal;
use sandkeep_core::{Code, Kind};

pub use sandkeep_core::api::Problem;

pub const MEDIA_TYPE: &str = "application/problem+json";

impl From<&Refusal> for Problem {
    fn from(refusal: &Refusal) -> Self {
        let code = refusal.code();
        Self {
            r#type: format!("urn:sandkeep:error:{}", code.as_str()),
            title: code.title().to_owned(),
            status: status_of(code).as_u16(),
            detail: refusal.detail(),
            code: code.as_str().to_owned(),
            remediation: refusal.remedy(),
            retryable: code.retryable(),
            instance: String::new(),
        }
    }
}

/// The problem for a request to this path.
pub fn problem_of(refusal: &Refusal, path: &str) -> Problem {
    Problem { instance: path.to_owned(), ..Problem::from(refusal) }
}

/// An answer with this problem, which other dialects may extend.
pub fn answer(status: u16, problem: &impl Serialize) -> Response {
    let status = StatusCode::from_u16(status).expect("every code has a valid status");
    let body = serde_json::to_vec(problem).expect("a struct of strings always encodes");
    (status, [(header::CONTENT_TYPE, MEDIA_TYPE)], body).into_response()
}

/// The only map from codes to HTTP statuses.
pub fn status_of(code: Code) -> StatusCode {
    match (code, code.kind()) {
        (Code::MethodNotAllowed, _) => StatusCode::METHOD_NOT_ALLOWED,
        (Code::BodyTooSlow, _) => StatusCode::REQUEST_TIMEOUT,
        (Code::NotJson | Code::NotRaw, _) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
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
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/errors.md");
        if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
            std::fs::write(path, table()).expect("docs can be written");
        }
        let written = std::fs::read_to_string(path).expect("docs/reference/errors.md exists");
        assert!(
            written == table(),
            "docs/reference/errors.md is stale: run with SANDKEEP_REGENERATE=1"
        );
    }
}
