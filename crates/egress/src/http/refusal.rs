//! Refusals as answers that a person and a model can read.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use sandkeep_core::limits::{EGRESS_DRAIN, EGRESS_DRAIN_MAX_BYTES};
use sandkeep_core::network::OnDeny;

use super::{Body, TunnelSlot, serve_http1};
use crate::ask::entry_for;
use crate::connection::{Flow, Refusal};
use crate::policy::Host;
use crate::stream::Stream;

/// By this header a program sees that the answer is not the server's.
const BY_US: HeaderName = HeaderName::from_static("x-sandkeep-network");

/// Answers each request on a connection that is refused as a whole.
pub(crate) async fn serve(flow: &Flow, inside: Stream, host: &Host, port: u16, refusal: &Refusal) {
    let (of, to, refusal) = (flow.clone(), host.clone(), refusal.clone());
    serve_http1(flow, inside, TunnelSlot::default(), move |request| {
        let (parts, body) = request.into_parts();
        let shown = (parts.method.to_string(), parts.uri.path().to_owned());
        let mut response = response(&of, (&to, port), &refusal, Some(shown));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        async move {
            drain(&parts.headers, body).await;
            response
        }
    })
    .await;
}

/// Reads the body of a refused request: unread it would reset the connection before the program has the answer. A
/// program that waits with its body (`Expect`) gets the answer at once.
pub(super) async fn drain(headers: &HeaderMap, mut body: Incoming) {
    if headers.contains_key(EXPECT) {
        return;
    }
    let drained = tokio::time::timeout(EGRESS_DRAIN, async {
        let mut left = EGRESS_DRAIN_MAX_BYTES;
        while let Some(Ok(frame)) = body.frame().await {
            let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) else {
                return;
            };
            left = rest;
        }
    });
    // The rest is lost, and the connection with it.
    let _ = drained.await;
}

/// 403 with the rule, and how to ask for more.
pub(crate) fn response(
    flow: &Flow,
    (host, port): (&Host, u16),
    refusal: &Refusal,
    request: Option<(String, String)>,
) -> Response<Body> {
    let what = match request {
        Some((method, path)) => format!("{method} {path} at {host}, port {port}"),
        None => format!("a connection to {host}, port {port}"),
    };
    let rule = refusal.rule.as_ref().map(|rule| format!("Rule: {rule}\n")).unwrap_or_default();
    let asks = match flow.sandbox.rules().on_deny {
        OnDeny::Ask => {
            "It may be asked for, with a reason: the tool `network_request`, if you have it, or the user.\n"
        }
        OnDeny::Refuse | OnDeny::Audit => "",
    };
    let text = format!(
        "The network policy of this sandbox refuses {what}.\nReason: {}.\n{rule}\
         Trying again, or another way, is refused as well. If you need it, ask the user: \
         the owner of the sandbox can allow it with\n  sandkeep network allow {} {}\n{asks}",
        refusal.reason,
        flow.sandbox.id,
        entry_for(host, port),
    );
    respond(text, StatusCode::FORBIDDEN, "refused")
}

/// An allowed request that did not work.
pub(crate) fn failure(problem: &str, status: StatusCode) -> Response<Body> {
    respond(format!("The gateway of this sandbox has no answer: {problem}.\n"), status, "failed")
}

/// What the proxy does not do.
pub(crate) fn unsupported(problem: &str) -> Response<Body> {
    respond(format!("{problem}.\n"), StatusCode::BAD_REQUEST, "failed")
}

fn respond(text: String, status: StatusCode, what: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::Right(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, plain);
    response.headers_mut().insert(BY_US, HeaderValue::from_static(what));
    response
}
