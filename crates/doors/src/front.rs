//! All doors of the daemon together: one set of listeners, with every door behind each.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use tokio::net::TcpListener;
use utoipa_axum::router::OpenApiRouter;

use crate::auth::Auth;
use crate::kit::tls::Tls;
use crate::kit::{Kit, Listener, Origins, SignedBy, serve};
use crate::mcp::{Caller, Direct, Mcp};
use crate::ports::{PortDoor, by_host};
use crate::rest::docs_page::PARTS;
use crate::{mcp, rest, urule};
use sandkeep_broker::Broker;
use sandkeep_core::Principal;

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
    pub fn mcp(&self, broker: Broker, address: SocketAddr) -> Mcp {
        let kit = Kit::new(broker.clone(), Arc::clone(&self.auth), self.origins.clone());
        let host = HeaderValue::try_from(address.to_string()).expect("an address is a host");
        let headers = HeaderMap::from_iter([(header::HOST, host)]);
        let usual = Some(Caller { who: Principal::local(), headers, key: SignedBy::default() });
        Mcp::new(Direct { broker, ports: self.ports(&kit), usual })
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
    let doors = rest::door(kit, ports).merge(urule::door(kit)).merge(mcp::door(kit, ports));
    let (_, api) = described().split_for_parts();
    let templates = api.paths.paths.keys().map(String::as_str).chain(PARTS).chain([mcp::PATH]);
    // A request for the host of a port goes there, and no further.
    kit.around(doors, templates)
        .layer(axum::middleware::from_fn_with_state(Arc::clone(ports), by_host))
}

/// The operations of all doors that have paths of their own, as `/openapi.json` shows them.
pub fn described() -> OpenApiRouter<Broker> {
    rest::routes().merge(urule::routes())
}
