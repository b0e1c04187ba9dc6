//! The door for clients of Urule's runtime broker: sessions and tasks in its words, over the same broker.
//!
//! ```text
//!   session         a sandbox with the label `urule.workspace_id`, however it got it
//!   provider        runtime          left out: the default one; unknown: 400
//!   workspaceId     project of the owner, and that label
//!   runtimeProfile  the label `urule.runtime_profile`
//!   task            exec of `sh -c`
//! ```
//!
//! A sandbox without the label has no workspace, so it is no session and not found here. As in Urule,
//! fields that it does not know are ignored. Errors are problems as everywhere, which also carry Urule's own
//! `error` and, where the request was wrong, `details`.

mod sessions;
mod tasks;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::rest::problem::{MEDIA_TYPE, Problem};
use sandkeep_broker::{Broker, RuntimeView};

/// All operations of this door.
pub fn routes() -> OpenApiRouter<Broker> {
    OpenApiRouter::new()
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::status))
        .routes(routes!(sessions::terminate))
        .routes(routes!(tasks::run))
        .layer(middleware::from_fn(explain))
}

/// What a runtime can do, in Urule's words; beside our own in `GET /api/v1/runtimes`.
#[derive(Serialize, ToSchema)]
#[schema(as = UruleCapabilities)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    has_gpu: bool,
    has_browser: bool,
    has_network: bool,
    /// How many execs, or tasks, may run at once in one sandbox.
    max_concurrent_tasks: usize,
}

impl Capabilities {
    pub fn of(runtime: &RuntimeView) -> Self {
        let has = &runtime.abilities;
        Self {
            has_gpu: has.has_gpu,
            has_browser: has.has_browser,
            has_network: has.has_network,
            max_concurrent_tasks: has.max_concurrent_tasks,
        }
    }
}

/// A problem that a client of Urule can read as well.
#[derive(Serialize)]
struct Explained {
    #[serde(flatten)]
    problem: Problem,
    error: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<Issue>,
}

/// What is wrong with a request.
#[derive(Serialize)]
struct Issue {
    message: String,
}

/// Adds Urule's members to every problem of this door.
async fn explain(request: Request, next: Next) -> Response {
    let instance = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else { return response };
    let problem = Problem { instance, ..problem };
    let details = match response.status() {
        StatusCode::BAD_REQUEST => vec![Issue { message: problem.detail.clone() }],
        _ => Vec::new(),
    };
    let explained = Explained { error: problem.detail.clone(), problem, details };
    let body = serde_json::to_vec(&explained).expect("a struct of strings always encodes");
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
    response.headers_mut().remove(header::CONTENT_LENGTH);
    *response.body_mut() = Body::from(body);
    response
}
