//! All doors of the daemon together: one set of listeners, with every door behind each.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use utoipa_axum::router::OpenApiRouter;

use crate::auth::Auth;
#[cfg(feature = "flex")]
use crate::flex;
use crate::kit::tls::Tls;
use crate::kit::{Kit, Listener, Origins, serve};
#[cfg(feature = "mcp")]
use crate::mcp;
use crate::ports::{PortDoor, by_host};
use crate::rest;
use crate::rest::docs_page::PARTS;
#[cfg(feature = "urule")]
use crate::urule;
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
        let kit = Kit::new(broker, Arc::clone(&self.auth), self.origins.clone());
        let doors = doors(&kit, &self.ports(&kit));
        serve(vec![Listener::Tcp(listener, self.tls)], kit, doors, shutdown).await;
    }

    /// The Model Context Protocol for whoever started this process; `address` is where these doors are.
    #[cfg(feature = "mcp")]
    pub fn mcp(&self, broker: Broker, address: std::net::SocketAddr) -> mcp::Mcp {
        let kit = Kit::new(broker.clone(), Arc::clone(&self.auth), self.origins.clone());
        mcp::Mcp::new(mcp::Direct::for_this_user(broker, self.ports(&kit), address))
    }

    fn ports(&self, kit: &Kit) -> Arc<PortDoor> {
        Arc::new(PortDoor {
            broker: kit.broker.clone(),
            gate: Arc::clone(&kit.gate),
            domain: self.domain.clone(),
            proto: if self.tls.is_some() { "https" } else { "http" },
        })
    }
}

fn doors(kit: &Kit, ports: &Arc<PortDoor>) -> Router {
    let doors = rest::door(kit, ports);
    #[cfg(feature = "urule")]
    let doors = doors.merge(urule::door(kit));
    #[cfg(feature = "flex")]
    let doors = doors.merge(flex::door(kit));
    #[cfg(feature = "mcp")]
    let doors = doors.merge(mcp::door(kit, ports));
    let (_, api) = described().split_for_parts();
    let templates = api.paths.paths.keys().map(String::as_str).chain(PARTS);
    #[cfg(feature = "mcp")]
    let templates = templates.chain([mcp::PATH]);
    #[cfg(feature = "flex")]
    let templates = templates.chain(flex::paths());
    // A request for the host of a port goes there, and no further.
    kit.around(doors, templates)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(ports), by_host))
}

/// The operations of all doors that have paths of their own, as `/openapi.json` shows them.
pub fn described() -> OpenApiRouter<Broker> {
    let routes = rest::routes();
    #[cfg(feature = "urule")]
    let routes = routes.merge(urule::routes());
    routes
}
