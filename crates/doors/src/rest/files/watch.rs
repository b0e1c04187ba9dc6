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
struct Event {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

enum State {
    Opening(FileWatch),
    Watching(FileWatch),
    Over,
}

pub fn answer(watch: FileWatch, headers: &HeaderMap) -> Response {
    let form = match Form::accepted(headers) {
        Some(Form::Ndjson) => Form::Ndjson,
        Some(Form::Sse | Form::Raw) | None => Form::Sse,
    };
    let events = stream::unfold(State::Opening(watch), move |state| async move {
        let (event, state) = next(form, state).await?;
        Some((Ok::<_, Infallible>(event), state))
    });
    form.response(events)
}

async fn next(form: Form, state: State) -> Option<(Bytes, State)> {
    let mut watch = match state {
        State::Opening(watch) => {
            return Some((said(form, event("watching")), State::Watching(watch)));
        }
        State::Watching(watch) => watch,
        State::Over => return None,
    };
    let told = match tokio::time::timeout(WATCH_SILENCE_MAX, watch.next()).await {
        // Something is written now and then, so that a client that is gone is noticed and proxies do not time out.
        Err(_) if form == Form::Sse => {
            return Some((Bytes::from_static(b": still here\n\n"), State::Watching(watch)));
        }
        Err(_) => return Some((Bytes::from_static(b"\n"), State::Watching(watch))),
        Ok(told) => told,
    };
    match told {
        Ok(Noticed::Change(change)) => Some((said(form, changed(&change)), State::Watching(watch))),
        Ok(Noticed::NothingLeft) => None,
        Ok(Noticed::Detached) => Some((said(form, event("detached")), State::Over)),
        Err(error) => {
            let problem = Problem::from(&Refusal::from(error));
            let failed = Event { problem: Some(problem), ..event("failed") };
            Some((said(form, failed), State::Over))
        }
    }
}

fn said(form: Form, event: Event) -> Bytes {
    form.frame(event.r#type, None, &event)
}

fn event(r#type: &'static str) -> Event {
    Event { r#type, path: None, path_b64: None, problem: None }
}

fn changed(change: &Change) -> Event {
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
    Event { path, path_b64, ..event(r#type) }
}
