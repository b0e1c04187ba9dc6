//! The way out of a sandbox that is being created, for as long as its repository is cloned: to the host of the
//! repository, and nowhere else, whatever its policy will be. Nothing of the user runs meanwhile.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use super::Networks;
use super::room::SandboxRecorder;
use crate::error::Error;
use crate::lifecycle::supervisor::Supervisor;
use sandkeep_core::limits;
use sandkeep_core::network::{
    Decision, Entry, IpRange, Network, NetworkLimits, NetworkVerdict, PendingRequest, Policy,
    Target, host_name,
};
use sandkeep_egress::{Attachment, Recorder, Rules};

/// What the gateway found wrong with a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CloneTrouble {
    /// It wanted to connect to something that it may not.
    Refused {
        place: String,
        reason: String,
    },
    Unreachable {
        problem: String,
    },
    TooMuch,
}

/// The network of a sandbox until its clone has ended.
pub(crate) struct CloneNetwork {
    attachment: Attachment,
    recorder: Arc<CloneRecorder>,
}

/// Writes the log of the sandbox, and remembers the first problem.
struct CloneRecorder {
    sandbox: SandboxRecorder,
    trouble: Mutex<Option<CloneTrouble>>,
}

impl Networks {
    /// What a sandbox may reach while a repository is cloned from this host, with a policy beside it that counts later.
    /// What that one denies is denied now.
    pub(crate) fn rules_of_clone(
        &self,
        host: &str,
        port: u16,
        beside: &Network,
    ) -> Result<Rules, Error> {
        let wrong = |problem: String| Error::SourceInvalid { problem };
        let port = Some(port);
        let target = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) if address.to_canonical().is_loopback() => {
                let problem =
                    format!("{host} is the sandbox itself; name the host, not its address");
                return Err(wrong(problem));
            }
            Ok(address) => Target::Range { range: IpRange::of(address), port },
            Err(_) => {
                let host =
                    host_name(host).map_err(|problem| wrong(format!("{host}: {problem}")))?;
                Target::Name { host, port }
            }
        };
        let deny = beside.policy().map(|policy| policy.deny.clone()).unwrap_or_default();
        let mut policy = Policy { allow: vec![Entry::of(target)], deny, ..Policy::default() };
        self.check_bounds(&Network::Policy(policy.clone()))?;
        let bytes_total = Some(limits::SOURCE_MAX_BYTES);
        policy.limits = NetworkLimits { bytes_total, ..NetworkLimits::default() };
        Ok(Rules { policy, ..Rules::default() })
    }
}

impl Supervisor {
    /// Opens the network of a sandbox that was launched for a clone. Its own policy is opened when this is closed.
    pub(crate) async fn open_network_of_clone(&self, rules: Rules) -> Result<CloneNetwork, Error> {
        let sockets = self.runtime.network(self.id()).await?;
        let home = self.home.path().to_owned();
        // No events: nobody knows the sandbox yet.
        let sandbox = SandboxRecorder::of(&self.shared, &self.network, home, None);
        let recorder = Arc::new(CloneRecorder { sandbox, trouble: Mutex::default() });
        let gateway = &self.shared.network.gateway;
        let told = Arc::clone(&recorder) as Arc<dyn Recorder>;
        let organization = &self.meta.owner.organization;
        let attachment = gateway.open(self.id().clone(), organization, sockets, rules, told);
        let attachment = attachment.map_err(|error| self.no_gateway(error))?;
        Ok(CloneNetwork { attachment, recorder })
    }
}

impl CloneNetwork {
    /// Ends all connections. Returns the first problem that there was.
    pub fn close(self) -> Option<CloneTrouble> {
        let Self { attachment, recorder } = self;
        let used = attachment.counted_bytes().unwrap_or_default();
        drop(attachment);
        if used >= limits::SOURCE_MAX_BYTES {
            return Some(CloneTrouble::TooMuch);
        }
        recorder.trouble.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl CloneTrouble {
    fn of(decision: &Decision) -> Option<Self> {
        let address = decision.address.map(|address| address.to_string());
        let host = decision.name.clone().or(address).unwrap_or_default();
        let reason = decision.reason.clone().unwrap_or_default();
        match decision.verdict {
            NetworkVerdict::Denied => {
                let place = decision.port.map_or(host.clone(), |port| format!("{host}:{port}"));
                Some(Self::Refused { place, reason })
            }
            NetworkVerdict::Failed => Some(Self::Unreachable { problem: reason }),
            NetworkVerdict::Allowed | NetworkVerdict::Audited => None,
        }
    }
}

impl Recorder for CloneRecorder {
    fn record(&self, decision: &Decision) {
        if let Some(trouble) = CloneTrouble::of(decision) {
            let mut first = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(trouble);
        }
        self.sandbox.record(decision);
    }

    fn asked(&self, request: &PendingRequest) {
        self.sandbox.asked(request);
    }
}
