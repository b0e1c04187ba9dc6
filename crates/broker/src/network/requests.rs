//! What the owner of a sandbox reads of its network and decides about it.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::broadcast::{self, error::RecvError};
use tokio_util::sync::CancellationToken;

use crate::Broker;
use crate::error::Error;
use sandkeep_core::api::{AskForNetwork, NetworkPresets, SandboxNetwork};
use sandkeep_core::event::EventKind;
use sandkeep_core::network::{
    Choice, Decision, NetworkPatch, NetworkVerdict, PendingRequest, Policy,
};
use sandkeep_core::{Principal, SandboxId};
use sandkeep_egress::{AskError, Attachment};
use sandkeep_home::network_log;
use sandkeep_runtime::RuntimeError;

/// Which decisions to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkLogPart {
    All,
    Refused,
}

impl NetworkLogPart {
    fn has(self, decision: &Decision) -> bool {
        self == Self::All || decision.verdict == NetworkVerdict::Denied
    }
}

/// The decisions about a sandbox as they are made.
pub struct NetworkLogFeed {
    part: NetworkLogPart,
    live: broadcast::Receiver<Arc<Decision>>,
    closing: CancellationToken,
}

/// What a feed has next.
pub enum NetworkLogNext {
    Decision(Arc<Decision>),
    /// So many were missed, because the reader is too slow.
    Missed(u64),
}

impl NetworkLogFeed {
    /// `None` when the sandbox is gone, or the daemon shuts down.
    pub async fn next(&mut self) -> Option<NetworkLogNext> {
        loop {
            let next = tokio::select! {
                () = self.closing.cancelled() => return None,
                next = self.live.recv() => next,
            };
            match next {
                Ok(decision) if self.part.has(&decision) => {
                    return Some(NetworkLogNext::Decision(decision));
                }
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => return Some(NetworkLogNext::Missed(missed)),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Broker {
    /// The policy of a sandbox, what it means, and what was used.
    pub fn network(&self, who: &Principal, id: &SandboxId) -> Result<SandboxNetwork, Error> {
        Ok(self.shared.network_of(self.shared.find(who, id)?.as_ref()))
    }

    /// The presets that policies can name.
    pub fn network_presets(&self) -> NetworkPresets {
        self.shared.network.shown_presets()
    }

    /// The newest decisions about a sandbox, oldest first.
    pub async fn network_log(
        &self,
        who: &Principal,
        id: &SandboxId,
        part: NetworkLogPart,
        limit: usize,
    ) -> Result<Vec<Decision>, Error> {
        self.shared.find(who, id)?;
        let _turn = self.shared.log_reads.wait(&who.organization).await;
        self.shared.network.flush().await;
        let home = self.shared.data.home(id).path().to_owned();
        let read = move |_: &sandkeep_home::DataDir| {
            let mut newest = VecDeque::new();
            for line in network_log::read(&home)?.split(|&byte| byte == b'\n') {
                // A crash may have cut a line off.
                let Ok(decision) = serde_json::from_slice::<Decision>(line) else { continue };
                if part.has(&decision) {
                    newest.push_back(decision);
                }
                if newest.len() > limit {
                    newest.pop_front();
                }
            }
            Ok(Vec::from(newest))
        };
        self.shared.blocking(read).await
    }

    /// The decisions about a sandbox from now on.
    pub fn follow_network_log(
        &self,
        who: &Principal,
        id: &SandboxId,
        part: NetworkLogPart,
    ) -> Result<NetworkLogFeed, Error> {
        let live = self.shared.find(who, id)?.network.follow();
        Ok(NetworkLogFeed { part, live, closing: self.shared.detaching.clone() })
    }

    /// What waits for the owner's decision, oldest first.
    pub fn network_requests(
        &self,
        who: &Principal,
        id: &SandboxId,
    ) -> Result<Vec<PendingRequest>, Error> {
        let attachment = self.shared.find(who, id)?.network.attachment();
        Ok(attachment.map(|open| open.requests()).unwrap_or_default())
    }

    /// The owner's decision. `Always` also adds the destination to the policy.
    pub async fn decide_network_request(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: u64,
        choice: Choice,
    ) -> Result<(), Error> {
        let handle = self.shared.find(who, id)?;
        let unknown = || Error::NetworkAsk(AskError::Unknown(request));
        let attachment = handle.network.attachment().ok_or_else(unknown)?;
        let mut pending = attachment.requests().into_iter();
        let asked = pending.find(|pending| pending.id == request).ok_or_else(unknown)?;
        let entry = attachment.decide(request, choice).map_err(Error::NetworkAsk)?;
        let PendingRequest { host, port, .. } = asked;
        if let Some(subject) = &handle.execs.subject {
            self.shared.emit(subject, &EventKind::NetworkDecided { request, host, port, choice });
        }
        match entry {
            None => Ok(()),
            Some(entry) => {
                let patch = NetworkPatch { add_allow: vec![entry], ..NetworkPatch::default() };
                self.amend_network(who, id, patch).await.map(drop)
            }
        }
    }

    /// Asks the owner of a sandbox for a destination, on behalf of an agent that works in it.
    pub fn ask_for_network(
        &self,
        who: &Principal,
        id: &SandboxId,
        asked: &AskForNetwork,
    ) -> Result<PendingRequest, Error> {
        let open = self.open_network(who, id)?;
        let port = asked.port.unwrap_or(443);
        open.request(&asked.host, port, &asked.reason).map_err(Error::NetworkAsk)
    }

    /// The smallest policy that covers what a sandbox used since its network was opened.
    pub fn suggest_network(&self, who: &Principal, id: &SandboxId) -> Result<Policy, Error> {
        Ok(self.open_network(who, id)?.suggest())
    }

    fn open_network(&self, who: &Principal, id: &SandboxId) -> Result<Arc<Attachment>, Error> {
        let handle = self.shared.find(who, id)?;
        let open = handle.network.attachment();
        open.ok_or_else(|| {
            if handle.meta().terms.network.policy.is_none() {
                Error::NetworkAsk(AskError::DoesNotAsk)
            } else {
                RuntimeError::NotRunning { id: id.clone() }.into()
            }
        })
    }
}
