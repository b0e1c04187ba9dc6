//! One gateway per daemon: what all sandboxes share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use rustls::ClientConfig;
use tokio::sync::Semaphore;

use sandkeep_core::SandboxId;
use sandkeep_core::limits::{
    EGRESS_ASK, EGRESS_CONNECTIONS_ALL_MAX, EGRESS_HANDSHAKE, EGRESS_IDLE, EGRESS_LOOKUPS_ALL_MAX,
};
use sandkeep_core::network::{Admin, Decision, PendingRequest, Presets};
use sandkeep_outgoing::Roots;
use sandkeep_outgoing::resolve::Resolve;
use sandkeep_sys::egress::Sockets;

use crate::attachment::Attachment;
use crate::ca::{Authority, CaError};
use crate::java;
use crate::policy::Compiled;
use crate::rules::Rules;
use crate::sandbox::Sandbox;
use crate::tenant::{Tenant, Tenants};

/// What the operator of the daemon decides for all sandboxes.
#[derive(Clone)]
pub struct Settings {
    pub presets: Arc<Presets>,
    pub admin: Admin,
    /// Where the certificate authority is kept; made when it is first used, readable by us alone.
    pub ca_dir: PathBuf,
    /// Certificates that servers may have besides those that this machine trusts.
    pub roots: Roots,
    pub resolver: Arc<dyn Resolve>,
    pub times: Times,
}

/// How long the gateway waits.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// For the first bytes, the ClientHello and the headers of a request.
    pub handshake: Duration,
    /// For anything on a connection.
    pub idle: Duration,
    /// For the owner's decision.
    pub ask: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self { handshake: EGRESS_HANDSHAKE, idle: EGRESS_IDLE, ask: EGRESS_ASK }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("cannot use the sockets of the sandbox's network")]
    Sockets(#[source] std::io::Error),
    #[error(transparent)]
    Ca(#[from] CaError),
}

/// Where decisions go. Both functions are called on the way of a connection: they must not block.
pub trait Recorder: Send + Sync {
    fn record(&self, decision: &Decision);

    /// A connection waits for the owner's decision.
    fn asked(&self, request: &PendingRequest);
}

/// The gateway of a daemon. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

/// Numbers of all sandboxes together, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections that are open now.
    pub open: u64,
    /// Connections that were accepted, and connections and requests that were refused, since the daemon started.
    pub accepted: u64,
    pub refused: u64,
}

pub(crate) struct Shared {
    presets: Arc<Presets>,
    admin: Admin,
    roots: Roots,
    pub(crate) resolver: Arc<dyn Resolve>,
    pub(crate) times: Times,
    pub(crate) lookups: Arc<Semaphore>,
    pub(crate) tenants: Tenants,
    pub(crate) authority: Authority,
    client: OnceLock<Arc<ClientConfig>>,
    /// All connections that there may be.
    connections_max: u64,
    open: AtomicU64,
    numbers: AtomicU64,
    refused: AtomicU64,
}

impl Gateway {
    pub fn new(settings: Settings) -> Self {
        let Settings { presets, admin, ca_dir, roots, resolver, times } = settings;
        let [open, numbers, refused] = [const { AtomicU64::new(0) }; 3];
        let shared = Shared {
            presets,
            admin,
            roots,
            resolver,
            times,
            lookups: Arc::new(Semaphore::new(EGRESS_LOOKUPS_ALL_MAX)),
            tenants: Tenants::default(),
            authority: Authority::new(ca_dir),
            client: OnceLock::new(),
            connections_max: connections_max(),
            open,
            numbers,
            refused,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Serves the sockets of a sandbox until the attachment is dropped. The sandboxes of one organization share what
    /// there is for all. Needs a tokio runtime.
    pub fn open(
        &self,
        id: SandboxId,
        organization: &str,
        sockets: Sockets,
        rules: Rules,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Attachment, GatewayError> {
        let tenant = self.shared.tenants.of(organization);
        let sandbox = Sandbox::new((id, tenant), Arc::clone(&self.shared), rules, recorder);
        Attachment::open(Arc::new(sandbox), sockets).map_err(GatewayError::Sockets)
    }

    /// The certificate of the authority that signs for terminated hosts, as PEM. Blocks; makes it if there is none.
    pub fn ca_pem(&self) -> Result<String, GatewayError> {
        Ok(self.shared.authority.certificate_pem()?)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The certificates by which servers are verified, as PEM: those of this machine, and the additional ones of the
    /// settings. Blocks.
    pub fn roots_pem(&self) -> Vec<u8> {
        self.shared.roots.all_as_pem()
    }

    /// All certificates that a sandbox with terminated hosts trusts, as PEM: those of this machine, the additional ones
    /// of the settings, and the gateway's. Blocks.
    pub fn bundle(&self) -> Result<Vec<u8>, GatewayError> {
        let mut bundle = self.roots_pem();
        bundle.extend_from_slice(self.ca_pem()?.as_bytes());
        Ok(bundle)
    }

    /// The same certificates as a key store of Java. Its format is JKS. Blocks.
    pub fn java_trust_store(&self) -> Result<Vec<u8>, GatewayError> {
        Ok(java::trust_store(&self.bundle()?))
    }

    pub fn totals(&self) -> Totals {
        let Shared { open, numbers, refused, .. } = self.shared.as_ref();
        Totals {
            open: open.load(Relaxed),
            accepted: numbers.load(Relaxed),
            refused: refused.load(Relaxed),
        }
    }
}

/// Each connection has two descriptors. A quarter of all is for them; the API has its own share.
fn connections_max() -> u64 {
    const SHARE: u64 = 4 * 2;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    EGRESS_CONNECTIONS_ALL_MAX.min(descriptors / SHARE)
}

impl Shared {
    pub(crate) fn compile(&self, rules: &Rules) -> Compiled {
        Compiled::new(rules, &self.presets, &self.admin)
    }

    /// How servers are verified. Blocks when it is first used, to read this machine's certificates.
    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(self.client.get_or_init(|| Arc::new(self.roots.client_config())))
    }

    /// Takes one of all connections. An organization may have as many as are left, in whichever of its sandboxes, so
    /// that one alone cannot take all.
    pub(crate) fn take_connection(&self, tenant: &Tenant) -> bool {
        let own = tenant.open.fetch_add(1, Relaxed);
        let taken = self.open.fetch_update(Relaxed, Relaxed, |open| {
            let left = self.connections_max.saturating_sub(open);
            (own < left).then_some(open + 1)
        });
        if taken.is_err() {
            tenant.open.fetch_sub(1, Relaxed);
        }
        taken.is_ok()
    }

    pub(crate) fn give_connection(&self, tenant: &Tenant) {
        tenant.open.fetch_sub(1, Relaxed);
        self.open.fetch_sub(1, Relaxed);
    }

    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed) + 1
    }

    pub(crate) fn count_refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }
}
