//! Counts requests, their results and their durations.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use sandkeep_broker::telemetry::{Exchange, RouteTable, Telemetry};

/// What [`observe`] needs to count a request.
pub struct Observer {
    pub telemetry: Arc<Telemetry>,
    pub routes: RouteTable,
}

/// Counts every request under its route template, never under its path.
pub async fn observe(
    State(observer): State<Arc<Observer>>,
    matched: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = observer.routes.label(matched.as_ref().map(MatchedPath::as_str));
    let response = next.run(request).await;
    let status = response.status().as_u16();
    let exchange = Exchange { method: method.as_str(), route, status, took: began.elapsed() };
    observer.telemetry.http().record(exchange);
    response
}
