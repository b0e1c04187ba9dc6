//! One gateway per daemon: what all sandboxes share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandkeep_core::SandboxId;
use sandkeep_core::limits::{EGRESS_ASK, EGRESS_HANDSHAKE, EGRESS_IDLE};
use sandkeep_core::network::{Admin, Decision, PendingRequest, Presets};
use sandkeep_outgoing::resolve::Resolve;
use sandkeep_sys::egress::Sockets;

use crate::attachment::Attachment;
use crate::rules::Rules;

/// What the operator of the daemon decides for all sandboxes.
#[derive(Clone)]
pub struct Settings {
    pub presets: Arc<Presets>,
    pub admin: Admin,
    /// Where the certificate authority is kept; made when it is first used, readable by us alone.
    pub ca_dir: PathBuf,
    /// Certificates that servers may have besides those that this machine trusts.
    pub roots: sandkeep_outgoing::Roots,
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
    #[error("cannot use the certificate authority in {}: {problem}", path.display())]
    Ca { path: PathBuf, problem: String },
}

/// Where decisions go. Both functions are called on the way of a connection: they must not block.
pub trait Recorder: Send + Sync {
    fn record(&self, decision: &Decision);

    /// A connection waits for the owner's decision.
    fn asked(&self, request: &PendingRequest);
}

/// The gateway of a daemon. Cheap to clone.
#[derive(Clone)]
pub struct Gateway {}

impl Gateway {
    pub fn new(settings: Settings) -> Self {
        let _ = settings;
        Self {}
    }

    /// Serves the sockets of a sandbox until the attachment is dropped. Needs a tokio runtime.
    pub fn open(
        &self,
        id: SandboxId,
        sockets: Sockets,
        rules: Rules,
        recorder: Arc<dyn Recorder>,
    ) -> Result<Attachment, GatewayError> {
        let _ = (id, sockets, rules, recorder);
        Err(GatewayError::Sockets(std::io::ErrorKind::Unsupported.into()))
    }

    /// The certificate of the authority that signs for terminated hosts, as PEM. Blocks; makes it if there is none.
    pub fn ca_pem(&self) -> Result<String, GatewayError> {
        Err(GatewayError::Ca { path: PathBuf::new(), problem: "not yet".to_owned() })
    }

    /// All certificates that a sandbox with terminated hosts trusts, as PEM: those of this machine, the additional ones
    /// of the settings, and the gateway's. Blocks.
    pub fn bundle(&self) -> Result<Vec<u8>, GatewayError> {
        self.ca_pem().map(String::into_bytes)
    }
}
