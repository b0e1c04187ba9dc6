//! The door for clients of Urule's runtime broker: sessions and tasks on top of the same broker.
//!
//! ```text
//!   session         a sandbox with the label `urule.workspace_id`, however it was created
//!   provider        runtime          left out: the default one; unknown: 400
//!   workspaceId     project of the owner, and that label
//!   runtimeProfile  the label `urule.runtime_profile`
//!   task            exec of `sh -c`
//! ```
//!
//! A sandbox without the label has no workspace, so it is not a session and is not found here. As in Urule, unknown
//! fields are ignored. Errors are problems as everywhere, with Urule's own `error` and, for invalid requests, `details`
//! added.

mod sessions;
mod tasks;

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::kit::{Dialect, Kit, Refusal};
use crate::rest::no_method;
use crate::rest::problem::{self, Problem};
use sandkeep_broker::{Broker, RuntimeView};

/// All operations of this door.
pub fn routes() -> OpenApiRouter<Broker> {
    OpenApiRouter::new()
        .routes(routes!(sessions::list, sessions::create))
        .routes(routes!(sessions::status))
        .routes(routes!(sessions::terminate))
        .routes(routes!(tasks::run))
}

/// Capabilities of a runtime, under Urule's names; beside our own in `GET /api/v1/runtimes`.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = UruleCapabilities)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    has_gpu: bool,
    has_browser: bool,
    has_network: bool,
    /// Maximum number of concurrent execs, or tasks, in one sandbox.
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

/// A problem with the members that Urule's clients expect.
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

/// Problems that also contain the members of Urule's errors.
struct Urule;

impl Dialect for Urule {
    fn name(&self) -> &'static str {
        "urule"
    }

    fn refuse(&self, refusal: &Refusal, path: &str) -> Response {
        let problem = problem::problem_of(refusal, path);
        let (status, error) = (problem.status, problem.detail.clone());
        let details = if status == StatusCode::BAD_REQUEST {
            vec![Issue { message: error.clone() }]
        } else {
            Vec::new()
        };
        problem::answer(status, &Explained { problem, error, details })
    }
}

/// This door, behind the gate.
pub fn door(kit: &Kit) -> Router {
    let (routes, _) = routes().split_for_parts();
    kit.door(Urule, routes.method_not_allowed_fallback(no_method))
}
