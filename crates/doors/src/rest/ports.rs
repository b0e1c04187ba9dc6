//! The ports of a sandbox in the API: which there are, passes to them, raw sockets of the host that lead
//! there, and for programs the ports themselves (see `api::ports`).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::any;
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::openapi::{Guarded, Inside, OfSandbox, WithBody};
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::path::{Id, In};
use crate::kit::who::Who;
use crate::ports::{PortDoor, redirect};
use sandkeep_broker::{Broker, Pass, PortView};
use sandkeep_core::{
    Port, SandboxId,
    api::{PortInfo, Ports},
};

type Door = Extension<Arc<PortDoor>>;

/// All routes of ports. Whatever has no meaning of ours belongs to the server inside, with any method.
pub fn routes(router: OpenApiRouter<Broker>) -> OpenApiRouter<Broker> {
    let (schemas, paths, sign) = routes!(sign);
    let router = router.routes(routes!(list)).routes((schemas, paths, sign.fallback(forward)));
    let (schemas, paths, listening) = routes!(listen, unlisten);
    let mut router = router.routes((schemas, paths, listening.fallback(forward)));
    // A path of any length cannot be described, so what is described and what is routed differ.
    let (_, described, _): UtoipaMethodRouter<Broker> = routes!(forward);
    router.get_openapi_mut().paths.paths.extend(described.paths);
    router
        .route("/api/v1/sandboxes/{id}/ports/{port}", any(enter))
        .route("/api/v1/sandboxes/{id}/ports/{port}/", any(forward))
        .route("/api/v1/sandboxes/{id}/ports/{port}/{*path}", any(forward))
}

/// List the ports that are open in a sandbox, and those that the host leads to it
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/ports", operation_id = "list_ports", tag = "ports",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Ports), Guarded, OfSandbox, Inside)
)]
pub async fn list(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Json<Ports>, Refusal> {
    let shown = |PortView { port, open, address }| {
        let url = door.url(&id, port, &headers);
        PortInfo { port, open, url, address }
    };
    let items = broker.ports(&who, &id).await?.into_iter().map(shown).collect();
    Ok(Json(Ports { items, url_template: door.url_template(&id, &headers) }))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SignPortUrl)]
pub struct SignBody {
    /// How long it opens the port: an hour unless said otherwise, at most a week.
    expires_secs: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PortUrl)]
pub struct Signed {
    /// Lets anybody who has it reach the port.
    url: String,
    /// RFC 3339.
    #[schema(value_type = String)]
    expires_at: Timestamp,
}

/// Make a URL that lets anybody reach a port, until it expires or the sandbox goes
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/ports/{port}/url", operation_id = "sign_port_url", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path)),
    request_body = Option<SignBody>,
    responses((status = 200, body = Signed), Guarded, WithBody, OfSandbox)
)]
pub async fn sign(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    In(sandbox, port): In<Port>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Signed>, Refusal> {
    let SignBody { expires_secs } = body::optional(&headers, body).await?;
    let holds = expires_secs.map(Duration::from_secs);
    let pass: Pass = broker.sign_pass(&who, &sandbox, port, holds)?;
    let url = door.signed_url(&sandbox, port, &headers, &pass);
    Ok(Json(Signed { url, expires_at: pass.expires_at }))
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PortListener)]
pub struct Listening {
    #[schema(value_type = u16)]
    port: Port,
    /// `host:port` on this machine, for anything that speaks TCP.
    #[schema(value_type = String)]
    address: SocketAddr,
}

/// Open a raw `host:port` on this machine's loopback that leads to a port of the sandbox
///
/// It is for the user who runs the daemon, ends with the sandbox's run, and outlives the daemon.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/ports/{port}/listen", operation_id = "listen_port", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path)),
    responses((status = 200, body = Listening), Guarded, OfSandbox, Inside)
)]
pub async fn listen(
    State(broker): State<Broker>,
    Extension(door): Door,
    Who(who): Who,
    In(sandbox, port): In<Port>,
) -> Result<Json<Listening>, Refusal> {
    // To others it does not exist, which is for the broker to say first.
    broker.require(&who, &sandbox)?;
    door.require_local()?;
    let address = broker.listen(&who, &sandbox, port).await?;
    Ok(Json(Listening { port, address }))
}

/// Close the raw `host:port`; connections made through it go on
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
/// The answer is the server's own, without its cookies, and as a page without any power: browsers are
/// sent to the port's own host name.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/ports/{port}/{path}", operation_id = "use_port", tag = "ports",
    params(("id" = SandboxId, Path), ("port" = u16, Path), ("path" = String, Path)),
    responses(
        (status = 200, description = "whatever the server answers"),
        (status = 307, description = "to the port's own host name"),
        Guarded, OfSandbox, Inside
    )
)]
pub async fn forward(
    Extension(door): Door,
    Who(who): Who,
    In(sandbox, port): In<Port>,
    request: Request,
) -> Result<Response, Refusal> {
    let prefix = prefix(&sandbox, port);
    door.by_path(&who, &sandbox, port, prefix, request).await
}

/// Relative links of a page need the slash.
async fn enter(In(sandbox, port): In<Port>) -> Response {
    redirect(&format!("{}/", prefix(&sandbox, port)))
}

/// What all paths to a port begin with.
fn prefix(sandbox: &SandboxId, port: Port) -> String {
    format!("/api/v1/sandboxes/{sandbox}/ports/{port}")
}
