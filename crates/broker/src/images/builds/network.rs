//! The network of a build: what its commands may reach, as for any sandbox, and what is said of refusals.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::broadcast::{self, error::TryRecvError};

use super::steps::Builder;
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::handle::Handle;
use crate::policy::admission;
use sandkeep_core::limits;
use sandkeep_core::network::{Decision, Network, NetworkTerms, NetworkVerdict, OnDeny, Policy};
use sandkeep_guestlink::OutputStream;
use sandkeep_image::certificates;

/// A policy as part of the key of a step.
pub fn policy_text(policy: &Policy) -> String {
    serde_json::to_string(policy).expect("a policy is text and numbers")
}

/// The refusals of a step, from its beginning on.
pub struct Refusals(Option<broadcast::Receiver<Arc<Decision>>>);

impl Refusals {
    pub fn of(handle: &Handle) -> Self {
        let has_network = handle.meta().terms.network.prepared.network;
        Self(has_network.then(|| handle.network.follow()))
    }

    /// Each destination once, with the reason.
    fn lines(self) -> BTreeSet<String> {
        let mut lines = BTreeSet::new();
        let Self(Some(mut decisions)) = self else { return lines };
        loop {
            match decisions.try_recv() {
                Ok(decision) if decision.verdict == NetworkVerdict::Denied => {
                    lines.insert(line(&decision));
                }
                Ok(_) | Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return lines,
            }
        }
    }
}

fn line(decision: &Decision) -> String {
    let address = decision.address.map(|address| address.to_string());
    let host = decision.name.clone().or(address).unwrap_or_default();
    let place = decision.port.map_or(host.clone(), |port| format!("{host}:{port}"));
    let reason = decision.reason.as_deref().unwrap_or("no entry of the policy allows it");
    format!("network: refused {place}: {reason}\n")
}

impl Broker {
    /// Whether the commands of a build may have such a network.
    pub(super) fn network_of_build(&self, asked: &Network) -> Result<NetworkTerms, Error> {
        let terms = NetworkTerms::new(asked.clone(), &BTreeMap::new());
        let Some(policy) = asked.policy() else { return Ok(terms) };
        if policy.on_deny == OnDeny::Ask {
            let problem = "on_deny: ask has nobody to ask during a build; use refuse or audit";
            return Err(Error::InvalidField { field: "network", problem: problem.to_owned() });
        }
        let shared = &self.shared;
        let runtime = shared.usable_runtime(admission::usual_runtime(shared))?;
        shared.network.check(&terms, runtime.as_ref())?;
        Ok(terms)
    }
}

impl Builder<'_> {
    /// Says what was refused, because a command may not.
    pub async fn tell_refusals(&self, refusals: Refusals) {
        let lines = refusals.lines();
        for line in lines.into_iter().take(limits::BUILD_REFUSED_TOLD_MAX) {
            self.events.output(OutputStream::Stderr, Bytes::from(line)).await;
        }
    }

    /// The daemon's certificates are for the step, and not a part of its layer.
    pub async fn remove_certificates(&self, handle: &Handle) -> Result<(), Error> {
        if !handle.meta().terms.network.prepared.certificate {
            return Ok(());
        }
        if let Some(root) = handle.volume.root().await? {
            certificates::remove(&root).await?;
        }
        Ok(())
    }
}
