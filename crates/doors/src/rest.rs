//! The REST front door, and the only one that is Sandkeep's own.
//!
//! ```text
//! connection → server   TLS if it is asked for; whose socket is it? (once per connection)
//! request    → ports    a request for the host of a port goes there, and no further
//!            → correlation, observe   it gets its id, and is counted when it is answered
//!            → guard, authenticate   who is it, and may they? (peer, Host, Origin, key, token, scope)
//!            → rate     may its principal make one more request now?
//!            → handler  body → draft, path → id; one call of the broker
//!            → problem  every error, of the broker or of this door, becomes problem+json here
//! ```

mod authenticate;
pub(super) mod body;
mod builds;
mod correlation;
mod diff;
mod docs_page;
mod exec_stream;
pub(super) mod execs;
mod files;
mod guard;
mod health;
mod import_events;
mod keys;
mod known_execs;
mod leash;
mod listing;
pub(super) mod openapi;
mod origins;
pub(super) mod output;
pub(super) mod path;
mod ports;
pub mod problem;
mod processes;
mod query;
mod rate;
pub(super) mod sandboxes;
mod server;
mod shells;
mod snapshots;
mod templates;
mod terminal;
pub mod tls;
pub mod tools;
mod uploads;
pub(super) mod who;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{Method, Uri};
use axum::middleware;
use axum::{Extension, Json};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::urule;
use crate::ports::{PortDoor, by_host};
use sandkeep_broker::{Abilities, Broker, RuntimeView, telemetry::RouteTable};
use sandkeep_home::Battery;
use sandkeep_runtime::Usable;

pub use origins::{Origins, is_loopback_host};
pub use problem::Problem;
pub use server::{Front, serve};

pub(super) use authenticate::{Caller, Connection, Credential, Door, Known, challenge};

use openapi::Guarded;
use problem::Refusal;

/// All routes, behind the door. [`serve`] tells it about each connection.
fn router(
    broker: Broker,
    door: Arc<Door>,
    ports: Arc<PortDoor>,
    stop: &CancellationToken,
) -> Router {
    let behind = guarded(Router::new(), broker.clone(), Arc::clone(&door), Arc::clone(&ports));
    guarded(super::mcp::route(behind, stop), broker, door, ports)
}

/// The routes of this door and `more` of them, behind the door.
fn guarded(more: Router<Broker>, broker: Broker, door: Arc<Door>, ports: Arc<PortDoor>) -> Router {
    let (described, api) = described();
    let described = described.merge(more);
    let templates = api.paths.paths.keys().map(String::as_str);
    let observer = health::Observer {
        telemetry: Arc::clone(broker.telemetry()),
        routes: RouteTable::new(templates.chain(docs_page::PARTS)),
    };
    described
        .merge(docs_page::parts())
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        // `body` has a limit of its own, whose refusal is a problem.
        .layer(DefaultBodyLimit::disable())
        .layer(Extension(Arc::clone(&ports)))
        .layer(middleware::from_fn_with_state(broker.clone(), rate::admit))
        .layer(Extension(Arc::clone(&door.auth)))
        .layer(middleware::from_fn_with_state(door, guard::check))
        .layer(middleware::from_fn_with_state(Arc::new(observer), health::observe))
        .layer(middleware::from_fn(correlation::correlate))
        .layer(middleware::from_fn_with_state(ports, by_host))
        .with_state(broker)
}

/// The routes, and what they are described as.
pub(super) fn described() -> (Router<Broker>, utoipa::openapi::OpenApi) {
    routes().split_for_parts()
}

/// Every operation, with its description.
fn routes() -> OpenApiRouter<Broker> {
    let router = OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(sandboxes::list, sandboxes::create))
        .routes(routes!(sandboxes::ensure))
        .routes(routes!(sandboxes::get, sandboxes::amend, sandboxes::destroy))
        .routes(routes!(sandboxes::keepalive))
        .routes(routes!(sandboxes::stats))
        .routes(routes!(sandboxes::start))
        .routes(routes!(sandboxes::stop))
        .routes(routes!(sandboxes::pause))
        .routes(routes!(sandboxes::resume))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::get, snapshots::remove))
        .routes(routes!(snapshots::seal_turn))
        .routes(routes!(snapshots::rollback))
        .routes(routes!(snapshots::fork))
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
        .routes(routes!(templates::list, templates::create))
        .routes(routes!(templates::get, templates::remove))
        .routes(routes!(templates::upload))
        .routes(routes!(uploads::create))
        .routes(routes!(uploads::remove))
        .routes(routes!(builds::build))
        .routes(routes!(runtimes))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(openapi::serve))
        .routes(routes!(docs_page::page))
        .merge(urule::routes());
    ports::routes(router)
}

#[derive(Serialize, ToSchema)]
struct Runtimes {
    runtimes: Vec<Runtime>,
}

#[derive(Serialize, ToSchema)]
struct Runtime {
    name: &'static str,
    usable: bool,
    default: bool,
    capabilities: BothCapabilities,
    /// Why it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// What `sandkeep doctor` last found of its isolation; absent if it never looked.
    #[serde(skip_serializing_if = "Option::is_none")]
    battery: Option<Battery>,
}

/// What it can do here, in our words and in Urule's: one answer for both.
#[derive(Serialize, ToSchema)]
#[schema(as = RuntimeCapabilities)]
struct BothCapabilities {
    #[serde(flatten)]
    ours: Abilities,
    #[serde(flatten)]
    urules: urule::Capabilities,
}

impl From<RuntimeView> for Runtime {
    fn from(view: RuntimeView) -> Self {
        let urules = urule::Capabilities::of(&view);
        let RuntimeView { name, usable, abilities, default, battery } = view;
        let (usable, reason) = match usable {
            Usable::Yes => (true, None),
            Usable::No { reason } => (false, Some(reason)),
        };
        let capabilities = BothCapabilities { ours: abilities, urules };
        let battery = battery.map(Arc::unwrap_or_clone);
        Self { name, usable, default, capabilities, reason, battery }
    }
}

/// The runtimes and what they can do here
#[utoipa::path(
    get, path = "/api/v1/runtimes", operation_id = "list_runtimes", tag = "service",
    responses((status = 200, body = Runtimes), Guarded)
)]
async fn runtimes(State(broker): State<Broker>) -> Json<Runtimes> {
    Json(Runtimes { runtimes: broker.runtimes().into_iter().map(Runtime::from).collect() })
}

async fn no_route(uri: Uri) -> Refusal {
    Refusal::NoRoute { path: uri.path().to_owned() }
}

async fn no_method(method: Method, uri: Uri) -> Refusal {
    Refusal::NoMethod { method, path: uri.path().to_owned() }
}
