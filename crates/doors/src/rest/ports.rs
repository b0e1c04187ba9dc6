//! The ports of a sandbox in the API: the list, signed URLs, raw sockets on the host, and for programs the ports
//! themselves (see `api::ports`).

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Json};
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::openapi::{Guarded, Inside, OfSandbox, WithBody};
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::who::Who;
use crate::kit::{Refusal, SignedBy};
use crate::ports::{PortDoor, redirect};
use sandkeep_broker::Broker;
use sandkeep_core::{
    Port, SandboxId,
    api::{PortListener, PortUrl, Ports, SignPortUrl},
};

type PortRequest = Extension<Arc<PortDoor>>;

/// Of `/api/v1/sandboxes/{id}/ports/{port}`, with the empty one before the first slash.
const PREFIX_SEGMENTS: usize = 7;
/// What the routes of all ports begin with.
pub const PREFIX: &str = "/api/v1/sandboxes/{id}/ports/{port}";

/// All routes of ports. Paths without a meaning of ours belong to the server inside, with any method.
pub fn routes(router: OpenApiRouter<Broker>) -> OpenApiRouter<Broker> {
    let (schemas, paths, sign) = routes!(sign);
    let router = router.routes(routes!(list)).routes((schemas, paths, sign.fallback(forward)));
    let (schemas, paths, listening) = routes!(listen, unlisten);
    let mut router = router.routes((schemas, paths, listening.fallback(forward)));
    // OpenAPI cannot describe a path of arbitrary length, so the described and the routed path differ.
    let (_, described, _): UtoipaMethodRouter<Broker> = routes!(forward);
    router.get_openapi_mut().paths.paths.extend(described.paths);
    router
        .route("/api/v1/sandboxes/{id}/ports/{port}", any(enter))
        .route("/api/v1/sandboxes/{id}/ports/{port}/", any(forward))
        .route("/api/v1/sandboxes/{id}/ports/{port}/{*path}", any(forward))
}

/// List the open ports of a sandbox, and the host ports that forward to it
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/ports", operation_id = "list_ports", tag = "ports",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Ports), Guarded, OfSandbox, Inside)
)]
pub async fn list(
    Extension(door): PortRequest,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Json<Ports>, Refusal> {
    Ok(Json(door.list(&who, &id, &headers).await?))
}

/// Create a signed URL for a port, valid until it expires or the sandbox is destroyed
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/ports/{port}/url", operation_id = "sign_port_url", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path)),
    request_body = Option<SignPortUrl>,
    responses((status = 200, body = PortUrl), Guarded, WithBody, OfSandbox)
)]
pub async fn sign(
    Extension(door): PortRequest,
    Who(who): Who,
    In(sandbox, port): In<Port>,
    Extension(key): Extension<SignedBy>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<PortUrl>, Refusal> {
    let asked = body::optional(&headers, body).await?;
    Ok(Json(door.sign(&who, &sandbox, port, asked, &headers, &key)?))
}

/// Open a raw `host:port` on the daemon's loopback that forwards to a port of the sandbox
///
/// Only the user who runs the daemon can connect. It closes when the sandbox stops, and survives a daemon restart.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/ports/{port}/listen", operation_id = "listen_port", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path)),
    responses((status = 200, body = PortListener), Guarded, OfSandbox, Inside)
)]
pub async fn listen(
    Extension(door): PortRequest,
    Who(who): Who,
    In(sandbox, port): In<Port>,
) -> Result<Json<PortListener>, Refusal> {
    Ok(Json(door.listen(&who, &sandbox, port).await?))
}

/// Close the raw `host:port`; open connections continue
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}/ports/{port}/listen", operation_id = "unlisten_port",
    tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path)),
    responses((status = 204), Guarded, OfSandbox)
)]
pub async fn unlisten(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, port): In<Port>,
) -> Result<StatusCode, Refusal> {
    broker.unlisten(&who, &sandbox, port).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a request to a server in the sandbox, with any method and any path
///
/// The answer is the server's own without its cookies, and is sandboxed as a page: browsers are redirected to the
/// port's own host name.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/ports/{port}/{path}", operation_id = "use_port", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path), ("path" = String, Path)),
    responses(
        (status = 200, description = "the server's own answer"),
        (status = 307, description = "to the port's own host name"),
        Guarded, OfSandbox, Inside
    )
)]
pub async fn forward(
    Extension(door): PortRequest,
    Who(who): Who,
    In(sandbox, port): In<Port>,
    request: Request,
) -> Result<Response, Refusal> {
    let prefix = prefix(request.uri().path());
    door.by_path(&who, &sandbox, port, prefix, request).await
}

/// Relative links of a page need the slash.
async fn enter(In(..): In<Port>, request: Request) -> Response {
    redirect(&format!("{}/", prefix(request.uri().path())))
}

/// The beginning of a path to a port, up to the port, as the caller wrote it: the sandbox may be named by id or name.
fn prefix(path: &str) -> String {
    path.split('/').take(PREFIX_SEGMENTS).collect::<Vec<_>>().join("/")
}
