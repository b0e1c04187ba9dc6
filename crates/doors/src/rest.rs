//! The REST front door, the only one that is Sandkeep's own. A handler decodes a request (body → draft, path → id),
//! calls the broker once and encodes the answer; the kit does everything before and after.

mod audit;
mod builds;
mod codebases;
mod described;
pub(super) mod diff;
pub(super) mod docs_page;
mod events;
pub(super) mod exec_stream;
pub(super) mod execs;
pub(super) mod files;
mod health;
mod import_events;
mod keys;
pub(super) mod known_execs;
pub(super) mod listing;
mod network;
pub(super) mod openapi;
pub(super) mod output;
mod ports;
pub mod problem;
pub(super) mod processes;
pub(super) mod races;
pub(super) mod sandboxes;
mod shells;
pub(super) mod snapshots;
mod templates;
mod terminal;
pub mod tools;
mod uploads;
mod webhooks;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, Uri};
use axum::response::Response;
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::kit::{Dialect, Kit, Refusal, effect_by_method, needed_by_method};
use crate::ports::PortDoor;
#[cfg(feature = "urule")]
use crate::urule;
use sandkeep_audit::Effect;
use sandkeep_broker::{Abilities, Broker, RuntimeView};
use sandkeep_core::Scope;
use sandkeep_home::Battery;
use sandkeep_runtime::Usable;

pub use execs::Collected;
pub use problem::Problem;

use described::Described;
use openapi::Guarded;

/// Public endpoints. `/readyz` returns more to authenticated callers.
const PUBLIC: &[&str] =
    &["/healthz", "/readyz", "/docs", docs_page::STYLE, docs_page::SCRIPT, "/openapi.json"];

/// Refusals as problems, and the credential schemes of our own clients.
pub struct Rest;

impl Dialect for Rest {
    fn name(&self) -> &'static str {
        "rest"
    }

    /// A request to a server inside concerns that server alone, whatever its method.
    fn effect(&self, request: &Request) -> Effect {
        let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
        if described::is_proxied(route) { Effect::Reads } else { effect_by_method(request) }
    }

    fn needs(&self, request: &Request) -> Option<Scope> {
        let scope = needed_by_method(request);
        let public = scope == Scope::Read && PUBLIC.contains(&request.uri().path());
        (!public).then_some(scope)
    }

    /// Monitoring matters most under load, so health and metrics are not rate-limited.
    fn is_counted(&self, request: &Request) -> bool {
        request.uri().path().starts_with("/api/")
    }

    fn refuse(&self, refusal: &Refusal, path: &str) -> Response {
        let problem = problem::problem_of(refusal, path);
        problem::answer(problem.status, &problem)
    }
}

/// All routes of this door, and the fallback.
pub fn door(kit: &Kit, ports: &Arc<PortDoor>) -> Router {
    let (routes, api) = routes().split_for_parts();
    let described = Arc::new(Described::by(&api));
    let routes = routes
        .merge(docs_page::parts())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(Extension(Arc::clone(ports)))
        .layer(Extension(kit.stop.clone()))
        .layer(Extension(Arc::clone(&kit.gate.auth)))
        .layer(axum::middleware::from_fn_with_state(described, described::refuse_unknown));
    kit.door(Rest, routes)
}

/// Every operation, with its description.
pub fn routes() -> OpenApiRouter<Broker> {
    let router = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::ensure))
        .routes(routes!(sandboxes::get, sandboxes::amend, sandboxes::destroy))
        .routes(routes!(sandboxes::keepalive))
        .routes(routes!(sandboxes::stats))
        .routes(routes!(sandboxes::usage))
        .routes(routes!(sandboxes::start))
        .routes(routes!(sandboxes::stop))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::get, snapshots::remove))
        .routes(routes!(snapshots::seal_turn))
        .routes(routes!(snapshots::rollback))
        .routes(routes!(snapshots::fork))
        .routes(routes!(races::race))
        .routes(routes!(snapshots::log))
        .routes(routes!(execs::create, known_execs::list))
        .routes(routes!(known_execs::get, known_execs::cancel))
        .routes(routes!(known_execs::output))
        .routes(routes!(known_execs::stdin))
        .routes(routes!(known_execs::signal))
        .routes(routes!(terminal::attach))
        .routes(routes!(terminal::open))
        .routes(routes!(shells::list, shells::open))
        .routes(routes!(shells::get, shells::close))
        .routes(routes!(shells::exec))
        .routes(routes!(processes::list, processes::create))
        .routes(routes!(processes::get, processes::end))
        .routes(routes!(processes::logs))
        .routes(routes!(processes::signal))
        .routes(routes!(tools::list))
        .routes(routes!(tools::call))
        .routes(routes!(files::read, files::write, files::delete))
        .routes(routes!(files::stat))
        .routes(routes!(files::list))
        .routes(routes!(files::mkdir))
        .routes(routes!(files::r#move))
        .routes(routes!(files::chmod))
        .routes(routes!(files::watch))
        .routes(routes!(files::download, files::unpack))
        .routes(routes!(diff::diff))
        .routes(routes!(diff::revert))
        .routes(routes!(diff::apply_plan))
        .routes(routes!(templates::list, templates::create))
        .routes(routes!(templates::get, templates::remove))
        .routes(routes!(templates::upload))
        .routes(routes!(uploads::create))
        .routes(routes!(uploads::remove))
        .routes(routes!(codebases::list, codebases::create))
        .routes(routes!(codebases::get, codebases::delete))
        .routes(routes!(codebases::size))
        .routes(routes!(codebases::check))
        .routes(routes!(codebases::diff))
        .routes(routes!(codebases::read, codebases::write, codebases::remove))
        .routes(routes!(codebases::stat))
        .routes(routes!(codebases::list_files))
        .routes(routes!(codebases::mkdir))
        .routes(routes!(codebases::r#move))
        .routes(routes!(codebases::download, codebases::unpack))
        .routes(routes!(codebases::rules, codebases::replace_rules))
        .routes(routes!(codebases::check_rules))
        .routes(routes!(builds::build))
        .routes(routes!(network::get, network::amend))
        .routes(routes!(network::log))
        .routes(routes!(network::requests, network::ask))
        .routes(routes!(network::decide))
        .routes(routes!(network::suggest))
        .routes(routes!(network::presets))
        .routes(routes!(runtimes))
        .routes(routes!(events::list))
        .routes(routes!(webhooks::list, webhooks::create))
        .routes(routes!(webhooks::get, webhooks::delete))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::enable))
        .routes(routes!(webhooks::replay))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(audit::read))
        .routes(routes!(audit::head))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::serve))
        .routes(routes!(docs_page::page));
    ports::routes(router)
}

#[derive(Serialize, ToSchema)]
struct Runtimes {
    items: Vec<Runtime>,
    /// The same as `items`, under their former name.
    #[schema(deprecated)]
    runtimes: Vec<Runtime>,
}

#[derive(Clone, Serialize, ToSchema)]
struct Runtime {
    name: &'static str,
    usable: bool,
    default: bool,
    capabilities: BothCapabilities,
    /// Why it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Last result of `sandkeep doctor`; absent if it never ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    battery: Option<Battery>,
}

/// Capabilities on this machine, under our names and Urule's.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = RuntimeCapabilities)]
struct BothCapabilities {
    #[serde(flatten)]
    ours: Abilities,
    #[cfg(feature = "urule")]
    #[serde(flatten)]
    urules: urule::Capabilities,
}

impl From<RuntimeView> for Runtime {
    fn from(view: RuntimeView) -> Self {
        #[cfg(feature = "urule")]
        let urules = urule::Capabilities::of(&view);
        let RuntimeView { name, usable, abilities, default, battery } = view;
        let (usable, reason) = match usable {
            Usable::Yes => (true, None),
            Usable::No { reason } => (false, Some(reason)),
        };
        let capabilities = BothCapabilities {
            ours: abilities,
            #[cfg(feature = "urule")]
            urules,
        };
        let battery = battery.map(Arc::unwrap_or_clone);
        Self { name, usable, default, capabilities, reason, battery }
    }
}

/// List the runtimes and their capabilities on this machine
#[utoipa::path(
    get, path = "/api/v1/runtimes", operation_id = "list_runtimes", tag = "service",
    responses((status = 200, body = Runtimes), Guarded)
)]
async fn runtimes(State(broker): State<Broker>) -> Json<Runtimes> {
    let items: Vec<Runtime> = broker.runtimes().into_iter().map(Runtime::from).collect();
    Json(Runtimes { runtimes: items.clone(), items })
}

async fn no_route(uri: Uri) -> Refusal {
    Refusal::NoRoute { path: uri.path().to_owned() }
}

pub async fn no_method(method: Method, uri: Uri) -> Refusal {
    Refusal::NoMethod { method, path: uri.path().to_owned() }
}
