//! Before every handler: the door decides whether a request may come in, and whatever was refused, by
//! the door or behind it, leaves as a problem.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::authenticate::{Admitted, Door};
use super::problem::render;

pub async fn check(State(door): State<Arc<Door>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let response = match door.admit(&mut request).await {
        Ok(Admitted::Served(visit)) => visit.finish(next.run(request).await),
        Ok(Admitted::Answered(response)) => response,
        Err(refused) => refused.into_response(),
    };
    render(response, &path)
}
