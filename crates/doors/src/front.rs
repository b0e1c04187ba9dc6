//! All doors of the daemon together: one set of listeners, with every door behind each.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use tokio::net::TcpListener;
use utoipa::openapi::path::PathItem;
use utoipa_axum::router::OpenApiRouter;

#[cfg(feature = "agentfense")]
use crate::agentfense;
use crate::auth::Auth;
#[cfg(feature = "flex")]
use crate::flex;
use crate::kit::audit::Operations;
use crate::kit::message::Messages;
use crate::kit::tls::Tls;
use crate::kit::{Entrance, Kit, Listener, Origins, serve};
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
    /// Where the processes that Flex launches are reached.
    pub launch_address: IpAddr,
    /// Doors with a listener of their own.
    pub own: Vec<(OwnDoor, TcpListener)>,
}

/// A door that can have a listener of its own, beside that of all doors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnDoor {
    #[cfg(feature = "flex")]
    Flex,
    #[cfg(feature = "agentfense")]
    AgentFenseGrpc,
    #[cfg(feature = "agentfense")]
    AgentFenseRest,
}

impl Front {
    /// Plain HTTP on one listener, for this machine.
    pub fn new(auth: Arc<Auth>) -> Self {
        Self {
            auth,
            origins: Origins::default(),
            tls: None,
            domain: "localhost".to_owned(),
            launch_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            own: Vec::new(),
        }
    }

    /// Serves until `shutdown` resolves, and then until all requests are answered or out of time.
    pub async fn serve(
        self,
        listener: TcpListener,
        broker: Broker,
        shutdown: impl Future<Output = ()>,
    ) {
        let kit = self.kit(broker);
        let entrance = |listener, doors| {
            let listener = Listener::Tcp(listener, self.tls.clone());
            Entrance { listener, doors }
        };
        let main = entrance(listener, self.doors(&kit, None));
        let own = self.own.iter().map(|(door, _)| self.own_door(&kit, *door)).collect::<Vec<_>>();
        let own =
            self.own.into_iter().zip(own).map(|((_, listener), doors)| entrance(listener, doors));
        let entrances = std::iter::once(main).chain(own).collect();
        serve(entrances, kit, shutdown).await;
    }

    #[cfg_attr(
        not(any(feature = "flex", feature = "agentfense")),
        expect(unused_variables, reason = "no door of such a build has a listener of its own")
    )]
    fn own_door(&self, kit: &Kit, door: OwnDoor) -> Router {
        match door {
            #[cfg(feature = "flex")]
            OwnDoor::Flex => kit.around(flex::alone(kit, self.launch_address), flex::paths()),
            #[cfg(feature = "agentfense")]
            OwnDoor::AgentFenseGrpc => kit.around(agentfense::grpc(kit), agentfense::grpc_paths()),
            #[cfg(feature = "agentfense")]
            OwnDoor::AgentFenseRest => {
                kit.around(agentfense::gateway(kit), agentfense::GATEWAY_PATHS)
            }
        }
    }

    /// The Model Context Protocol for whoever started this process; `address` is where these doors are.
    #[cfg(feature = "mcp")]
    pub fn mcp(
        &self,
        broker: Broker,
        address: std::net::SocketAddr,
        default: sandkeep_core::SpecDraft,
    ) -> mcp::Mcp {
        let kit = Kit::new(broker.clone(), Arc::clone(&self.auth), self.origins.clone());
        mcp::Mcp::new(mcp::Direct::for_this_user(broker, self.ports(&kit), address, default))
    }

    /// These doors for requests that come as messages, and perhaps one that nothing else can come through.
    pub fn messages(&self, broker: Broker, more: Option<MessageDoor>) -> Messages {
        let kit = self.kit(broker);
        let doors = self.doors(&kit, more);
        Messages::new(kit, doors)
    }

    fn kit(&self, broker: Broker) -> Kit {
        let mut kit = Kit::new(broker, Arc::clone(&self.auth), self.origins.clone());
        kit.operations = Arc::new(operations());
        kit
    }

    fn ports(&self, kit: &Kit) -> Arc<PortDoor> {
        Arc::new(PortDoor {
            broker: kit.broker.clone(),
            gate: Arc::clone(&kit.gate),
            domain: self.domain.clone(),
            proto: if self.tls.is_some() { "https" } else { "http" },
        })
    }

    /// All doors behind one listener.
    fn doors(&self, kit: &Kit, more: Option<MessageDoor>) -> Router {
        let ports = &self.ports(kit);
        let doors = rest::door(kit, ports);
        #[cfg(feature = "urule")]
        let doors = doors.merge(urule::door(kit));
        #[cfg(feature = "flex")]
        let doors = doors.merge(flex::door(kit, self.launch_address));
        #[cfg(feature = "mcp")]
        let doors = doors.merge(mcp::door(kit, ports));
        let doors = match more {
            Some(more) => doors.merge((more.routes)(kit)),
            None => doors,
        };
        let (_, api) = described().split_for_parts();
        let templates = api.paths.paths.keys().map(String::as_str).chain(PARTS);
        #[cfg(feature = "mcp")]
        let templates = templates.chain([mcp::PATH]);
        #[cfg(feature = "flex")]
        let templates = templates.chain(flex::paths());
        let templates = templates.chain(more.into_iter().flat_map(|more| more.paths).copied());
        // A request for the host of a port goes there, and no further.
        kit.around(doors, templates)
            .layer(axum::middleware::from_fn_with_state(Arc::clone(ports), by_host))
    }
}

/// A door for messages alone: its routes, and their paths.
#[derive(Clone, Copy)]
pub struct MessageDoor {
    pub routes: fn(&Kit) -> Router,
    pub paths: &'static [&'static str],
}

/// What the operations of all doors are called.
fn operations() -> Operations {
    let (_, api) = described().split_for_parts();
    let paths = api.paths.paths.into_iter();
    Operations::new(paths.flat_map(|(path, item)| {
        let PathItem { get, put, post, delete, patch, .. } = item;
        let all = [
            (Method::GET, get),
            (Method::PUT, put),
            (Method::POST, post),
            (Method::DELETE, delete),
            (Method::PATCH, patch),
        ];
        all.into_iter().filter_map(move |(method, operation)| {
            Some((method, path.clone(), operation?.operation_id?))
        })
    }))
}

/// The operations of all doors that have paths of their own, as `/openapi.json` shows them.
pub fn described() -> OpenApiRouter<Broker> {
    let routes = rest::routes();
    #[cfg(feature = "urule")]
    let routes = routes.merge(urule::routes());
    routes
}
