//! The way out of sandboxes: their policies, their secrets, and the gateway that applies both.
//!
//! ```text
//!   draft ─▶ admit      presets exist, the ceiling covers it, the runtime can do it       nothing was done yet
//!         ─▶ row, meta  the policy; hosts and placeholders of secrets
//!         ─▶ seal       values, encrypted, in the home
//!         ─▶ launch     the certificate is on the volume ─▶ runtime ─▶ open             nothing of the user runs yet
//!         ─▶ open       runtime's sockets ─▶ gateway ─▶ decisions ─▶ log of the sandbox, events
//! ```
//!
//! Invariant: a sandbox never has more of a network than its policy says, and a verb that cannot give it as much fails.
//! The gateway is closed whenever the sandbox does not run. A daemon that finds a running sandbox opens it again.

mod change;
mod clone;
mod kms;
mod log;
mod open;
mod requests;
mod room;
mod seal;
mod view;

use std::sync::Arc;

use crate::clock::Clock;
use crate::error::Error;
use crate::records::events::EventLog;
use sandkeep_core::network::{Admin, Network, NetworkTerms, Policy, Presets, ceiling};
use sandkeep_egress::{FixedHosts, Gateway, Resolve, Settings, SystemResolver, Times};
use sandkeep_home::DataDir;
use sandkeep_outgoing::Roots;
use sandkeep_runtime::{Files, Runtime};

pub(crate) use clone::CloneTrouble;
pub use kms::KmsCommand;
pub(crate) use open::secrets_of;
pub use requests::{NetworkLogFeed, NetworkLogNext, NetworkLogPart};
pub(crate) use room::NetworkRoom;
pub(crate) use seal::{KeptValues, Values};

use log::LogWriter;
use seal::Seal;

/// Where the gateway keeps its certificate authority, in the data directory.
const CA_DIR: &str = "egress";

/// What the operator decides about the networks of all sandboxes.
#[derive(Clone, Default)]
pub struct Egress {
    pub presets: Arc<Presets>,
    pub admin: Admin,
    /// Certificates of servers that are trusted besides those of this machine.
    pub roots: Roots,
    /// Addresses of hosts that are asked of nobody.
    pub hosts: Option<FixedHosts>,
    /// What keeps the key that encrypts secrets; without it a file does.
    pub kms: Option<KmsCommand>,
}

impl Egress {
    /// With the presets of the program, and no ceiling.
    pub fn built_in() -> Self {
        Self { presets: Arc::new(Presets::built_in()), ..Self::default() }
    }
}

/// Everything about networks that the sandboxes of a daemon share.
pub(crate) struct Networks {
    pub presets: Arc<Presets>,
    admin: Admin,
    pub gateway: Gateway,
    seal: Seal,
    log: LogWriter,
}

impl Networks {
    pub fn new(
        egress: Egress,
        data: &DataDir,
        events: &Arc<EventLog>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let Egress { presets, admin, roots, hosts, kms } = egress;
        let resolver: Arc<dyn Resolve> = match hosts {
            Some(hosts) => Arc::new(hosts),
            None => Arc::new(SystemResolver),
        };
        let gateway = Gateway::new(Settings {
            presets: Arc::clone(&presets),
            admin: admin.clone(),
            ca_dir: data.path().join(CA_DIR),
            roots,
            resolver,
            times: Times::default(),
        });
        let log = LogWriter::begin(Arc::clone(events), Arc::clone(clock));
        Self { presets, admin, gateway, seal: Seal::new(data.path(), kms), log }
    }

    /// Whether a sandbox of this runtime may have such a network.
    pub fn check(&self, asked: &NetworkTerms, runtime: &dyn Runtime) -> Result<(), Error> {
        self.check_policy(asked, runtime)?;
        asked.check(&self.presets)?;
        Ok(())
    }

    /// Whether a template may have such a default: presets exist, and the ceiling covers it.
    pub fn check_default(&self, asked: Option<&Network>) -> Result<(), Error> {
        asked.map_or(Ok(()), |asked| self.check_bounds(asked))
    }

    /// The same for a fork, whose secrets may name hosts that were taken from its source's policy.
    pub fn check_fork(&self, asked: &NetworkTerms, runtime: &dyn Runtime) -> Result<(), Error> {
        self.check_policy(asked, runtime)
    }

    /// Returns when everything that was decided is in the logs of the sandboxes.
    pub async fn flush(&self) {
        self.log.flush().await;
    }

    /// Whether a sandbox with this policy has a limit of bytes in all, of its own or by the ceiling.
    fn counts_bytes(&self, policy: &Policy) -> bool {
        let most = self.admin.ceiling.as_ref().and_then(Network::policy);
        policy.limits.bytes_total.is_some()
            || most.is_some_and(|most| most.limits.bytes_total.is_some())
    }

    fn lines(&self) -> tokio::sync::mpsc::Sender<log::Line> {
        self.log.queue()
    }

    /// The same without a look at its secrets: hosts can be taken from a policy although a secret names them.
    fn check_policy(&self, asked: &NetworkTerms, runtime: &dyn Runtime) -> Result<(), Error> {
        self.check_bounds(&asked.policy)?;
        let needs = asked.needs();
        if needs.network {
            runtime.check_network()?;
        }
        if needs.certificate && runtime.files() == Files::Remote {
            let problem = format!(
                "rules for requests and secrets need a file inside, and runtime {} keeps the files of its sandboxes itself",
                runtime.name()
            );
            return Err(Error::InvalidField { field: "network", problem });
        }
        Ok(())
    }

    fn check_bounds(&self, asked: &Network) -> Result<(), Error> {
        asked.check(&self.presets)?;
        if let Some(most) = &self.admin.ceiling {
            ceiling::check(asked, most, &self.presets).map_err(Error::OverCeiling)?;
        }
        Ok(())
    }
}
