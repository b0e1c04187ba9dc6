//! The REST front door, and the only one that is Sandkeep's own.
//!
//! ```text
//! connection → server   whose socket is it? (once per connection)
//! request    → guard    Host and Origin are ours
//!            → handler  body → draft, path → id; one call of the broker
//!            → problem  every error, of the broker or of this door, becomes problem+json here
//! ```

mod body;
mod exec_stream;
mod execs;
mod guard;
mod output;
pub mod problem;
mod sandboxes;
mod server;

#[cfg(test)]
mod tests;

use axum::Json;
use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, Uri};
use axum::middleware;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::broker::Broker;
use crate::runtime::Usable;

pub use guard::is_loopback_host;
pub use problem::{Code, Problem};
pub use server::serve;

use problem::Refusal;

/// All routes, behind the guard against web pages. [`serve`] adds the check of the peer.
pub fn router(broker: Broker) -> Router {
    Router::new()
        .route("/api/v1/sandboxes", get(sandboxes::list).post(sandboxes::create))
        .route("/api/v1/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::destroy))
        .route("/api/v1/sandboxes/{id}/start", post(sandboxes::start))
        .route("/api/v1/sandboxes/{id}/stop", post(sandboxes::stop))
        .route("/api/v1/sandboxes/{id}/execs", post(execs::create))
        .route("/api/v1/runtimes", get(runtimes))
        .route("/healthz", get(healthz))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // `body` has a limit of its own, whose refusal is a problem.
        .layer(DefaultBodyLimit::disable())
        .layer(middleware::from_fn(guard::check))
        .with_state(broker)
}

async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok", "version": env!("CARGO_PKG_VERSION") }))
}

async fn runtimes(State(broker): State<Broker>) -> Json<Value> {
    let runtimes: Vec<Value> = broker.runtimes().into_iter().map(runtime).collect();
    Json(json!({ "runtimes": runtimes }))
}

fn runtime(view: crate::broker::RuntimeView) -> Value {
    let mut shown = json!({
        "name": view.name,
        "usable": view.usable == Usable::Yes,
        "default": view.default,
        "capabilities": view.capabilities,
    });
    if let Usable::No { reason } = view.usable {
        shown["reason"] = Value::String(reason);
    }
    shown
}

async fn no_route(uri: Uri) -> Refusal {
    Refusal::NoRoute { path: uri.path().to_owned() }
}

async fn no_method(method: Method, uri: Uri) -> Refusal {
    Refusal::NoMethod { method, path: uri.path().to_owned() }
}
