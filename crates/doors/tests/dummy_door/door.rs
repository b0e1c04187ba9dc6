//! A complete front door: it creates sandboxes, runs commands in them, and streams their output. It has its own header
//! for keys and its own error format; everything else is the kit's.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use futures_util::stream;
use sandkeep_broker::{Broker, ExecDraft, Running};
use sandkeep_core::{Kind, SpecDraft};
use sandkeep_doors::kit::credential::Scheme;
use sandkeep_doors::kit::path::Id;
use sandkeep_doors::kit::who::Who;
use sandkeep_doors::kit::{Dialect, Kit, Refusal, body};
use sandkeep_guestlink::ExecEvent;
use serde::Deserialize;
use serde_json::{Value, json};

/// How this door differs from others.
struct Dummy;

impl Dialect for Dummy {
    fn schemes(&self) -> &'static [Scheme] {
        &[Scheme::Header("x-dummy-key")]
    }

    fn refuse(&self, refusal: &Refusal, _path: &str) -> Response {
        let (status, reason) = said(refusal.code().kind());
        let body = json!({ "ok": false, "reason": reason, "message": refusal.detail() });
        (status, Json(body)).into_response()
    }
}

/// The only map from kinds of errors to this door's. A new kind is a compile error here.
fn said(kind: Kind) -> (StatusCode, &'static str) {
    match kind {
        Kind::Invalid | Kind::TooLarge | Kind::Unsupported => (StatusCode::BAD_REQUEST, "request"),
        Kind::Unauthenticated => (StatusCode::UNAUTHORIZED, "key"),
        Kind::Forbidden => (StatusCode::FORBIDDEN, "key"),
        Kind::NotFound => (StatusCode::NOT_FOUND, "missing"),
        Kind::Conflict | Kind::Precondition => (StatusCode::CONFLICT, "state"),
        Kind::Quota | Kind::RateLimited => (StatusCode::TOO_MANY_REQUESTS, "enough"),
        Kind::NoSpace | Kind::Upstream | Kind::Unavailable | Kind::Timeout | Kind::Internal => {
            (StatusCode::INTERNAL_SERVER_ERROR, "broken")
        }
    }
}

/// All operations, behind the gate.
pub fn door(kit: &Kit) -> Router {
    let routes = Router::new()
        .route("/dummy/sandboxes", post(create))
        .route("/dummy/sandboxes/{id}/run", post(run));
    kit.door(Dummy, routes)
}

/// One question, one answer.
async fn create(State(broker): State<Broker>, Who(who): Who) -> Result<Json<Value>, Refusal> {
    let draft = SpecDraft { runtime: Some("mock".to_owned()), ..SpecDraft::default() };
    let view = broker.create(&who, draft).await?;
    Ok(Json(json!({ "ok": true, "id": view.id })))
}

#[derive(Deserialize)]
struct Run {
    command: String,
}

/// Bytes as the command says them. If its key is revoked, the kit ends the stream.
async fn run(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
    body: Body,
) -> Result<Body, Refusal> {
    let Run { command } = body::required(&headers, body).await?;
    let argv = vec!["/bin/sh".to_owned(), "-c".to_owned(), command];
    let running = broker.exec(&who, &id, ExecDraft { argv, ..ExecDraft::default() }).await?;
    Ok(Body::from_stream(stream::unfold(running, output)))
}

async fn output(mut running: Running) -> Option<(std::io::Result<Bytes>, Running)> {
    loop {
        match running.next().await? {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { data, .. } => return Some((Ok(data), running)),
            ExecEvent::Ended(_) => return None,
        }
    }
}
