//! How one door differs from all others.

use std::sync::Arc;

use axum::extract::Request;
use axum::http::{Method, header};
use axum::response::Response;

use super::credential::{OURS, Scheme};
use super::refusal::Refusal;
use sandkeep_audit::Effect;
use sandkeep_core::Scope;

pub trait Dialect: Send + Sync + 'static {
    /// Its name in the audit log.
    fn name(&self) -> &'static str {
        "door"
    }

    /// Whether a request may change something.
    fn effect(&self, request: &Request) -> Effect {
        effect_by_method(request)
    }

    /// Where its requests carry who makes them.
    fn schemes(&self) -> &'static [Scheme] {
        OURS
    }

    /// The scope that a request needs; `None` if every caller is answered, with credentials or without.
    fn needs(&self, request: &Request) -> Option<Scope> {
        Some(needed_by_method(request))
    }

    /// Whether a request counts against the caller's rate limit.
    fn is_counted(&self, _request: &Request) -> bool {
        true
    }

    /// A refusal of a request for `path`, in the door's format: status, headers and body.
    fn refuse(&self, refusal: &Refusal, path: &str) -> Response;
}

/// The scope by HTTP method: reading needs less than changing. A protocol upgrade, such as a terminal, is opened with
/// GET but counts as a change.
pub fn needed_by_method(request: &Request) -> Scope {
    let looks = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if looks && !request.headers().contains_key(header::UPGRADE) {
        Scope::Read
    } else {
        Scope::Write
    }
}

/// Whether a request may change something, by its method.
pub fn effect_by_method(request: &Request) -> Effect {
    match needed_by_method(request) {
        Scope::Read => Effect::Reads,
        Scope::Write | Scope::Organization | Scope::Admin => Effect::Changes,
    }
}

/// Puts an answer that is a refusal into words, as the last step before it is sent. Headers that were set on the way
/// here (`Allow`, `Retry-After`) stay.
pub fn in_words(dialect: &dyn Dialect, mut answer: Response, path: &str) -> Response {
    let Some(refusal) = answer.extensions_mut().remove::<Arc<Refusal>>() else { return answer };
    let (mut head, _) = answer.into_parts();
    let (said, body) = dialect.refuse(&refusal, path).into_parts();
    head.status = said.status;
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.extend(said.headers);
    Response::from_parts(head, body)
}
