//! All doors of the daemon together: one set of listeners, with every door behind each.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use utoipa_axum::router::OpenApiRouter;

use crate::auth::Auth;
use crate::kit::tls::Tls;
use crate::kit::{Kit, Listener, Origins, serve};
use crate::ports::{PortDoor, by_host};
use crate::rest::docs_page::PARTS;
use crate::{mcp, rest, urule};
use sandkeep_broker::Broker;

/// How the doors to a broker are furnished.
pub struct Front {
    pub auth: Arc<Auth>,
    /// Whose web pages may call.
    pub origins: Origins,
    /// `None` is plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// What the host names of ports end with.
    pub domain: String,
}

impl Front {
    /// Serves until `shutdown` resolves, and then until all requests are answered or out of time.
    pub async fn serve(
        self,
        listener: TcpListener,
        broker: Broker,
        shutdown: impl Future<Output = ()>,
    ) {
        let Self { auth, origins, tls, domain } = self;
        let kit = Kit::new(broker.clone(), auth, origins);
        let proto = if tls.is_some() { "https" } else { "http" };
        let ports = Arc::new(PortDoor { broker, gate: Arc::clone(&kit.gate), domain, proto });
        let doors = doors(&kit, &ports);
        serve(vec![Listener::Tcp(listener, tls)], kit, doors, shutdown).await;
    }
}

fn doors(kit: &Kit, ports: &Arc<PortDoor>) -> Router {
    // MCP makes requests of the REST door, from within.
    let behind = around(kit, rest::door(kit, ports), ports);
    let doors = rest::door(kit, ports).merge(urule::door(kit)).merge(mcp::door(kit, behind));
    around(kit, doors, ports)
}

/// The operations of all doors that have paths of their own, as `/openapi.json` shows them.
pub fn described() -> OpenApiRouter<Broker> {
    rest::routes().merge(urule::routes())
}

/// A request for the host of a port goes there, and no further.
fn around(kit: &Kit, doors: Router, ports: &Arc<PortDoor>) -> Router {
    let (_, api) = described().split_for_parts();
    let templates = api.paths.paths.keys().map(String::as_str).chain(PARTS);
    kit.around(doors, templates)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(ports), by_host))
}
