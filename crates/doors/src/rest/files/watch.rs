//! File changes as they happen: Server-Sent Events, or NDJSON if requested.

use std::convert::Infallible;

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use toolbox::{Change, ChangeKind};

use super::super::problem::Problem;
use super::shown::written;
use crate::kit::Refusal;
use crate::kit::frames::Form;
use sandkeep_broker::{FileWatch, Noticed};
use sandkeep_core::limits::WATCH_SILENCE_MAX;

#[derive(Serialize)]
struct WatchEvent {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

enum WatchState {
    Opening(FileWatch),
    Watching(FileWatch),
    Over,
}

pub fn answer(watch: FileWatch, headers: &HeaderMap) -> Response {
    let form = match Form::accepted(headers) {
        Some(Form::Ndjson) => Form::Ndjson,
        Some(Form::Sse | Form::Raw) | None => Form::Sse,
    };
    let events = stream::unfold(WatchState::Opening(watch), move |state| async move {
        let (event, state) = next(form, state).await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    form.response(events)
}

async fn next(form: Form, state: WatchState) -> Option<(Bytes, WatchState)> {
    let mut watch = match state {
        WatchState::Opening(watch) => {
            return Some((said(form, event("watching")), WatchState::Watching(watch)));
        }
        WatchState::Watching(watch) => watch,
        WatchState::Over => return None,
    };
    let told = match tokio::time::timeout(WATCH_SILENCE_MAX, watch.next()).await {
        // Something is written now and then, so that a client that is gone is noticed and proxies do not time out.
        Err(_) if form == Form::Sse => {
            return Some((Bytes::from_static(b": still here\n\n"), WatchState::Watching(watch)));
        }
        Err(_) => return Some((Bytes::from_static(b"\n"), WatchState::Watching(watch))),
        Ok(told) => told,
    };
    match told {
        Ok(Noticed::Change(change)) => {
            Some((said(form, changed(&change)), WatchState::Watching(watch)))
        }
        Ok(Noticed::NothingLeft) => None,
        Ok(Noticed::Detached) => Some((said(form, event("detached")), WatchState::Over)),
        Err(error) => {
            let problem = Problem::from(&Refusal::from(error));
            let failed = WatchEvent { problem: Some(problem), ..event("failed") };
            Some((said(form, failed), WatchState::Over))
        }
    }
}

fn said(form: Form, event: WatchEvent) -> Bytes {
    form.frame(event.r#type, None, &event)
}

fn event(r#type: &'static str) -> WatchEvent {
    WatchEvent { r#type, path: None, path_b64: None, problem: None }
}

fn changed(change: &Change) -> WatchEvent {
    let (path, path_b64) = match change.path.as_ref().map(written) {
        Some((path, path_b64)) => (Some(path), path_b64),
        None => (None, None),
    };
    let r#type = match change.kind {
        ChangeKind::Created => "created",
        ChangeKind::Modified => "modified",
        ChangeKind::Attributes => "attributes",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Gone => "gone",
        ChangeKind::Overflow => "overflow",
    };
    WatchEvent { path, path_b64, ..event(r#type) }
}
