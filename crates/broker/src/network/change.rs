//! The policy of a sandbox that exists is changed: first in the row, which is authoritative, then in the metadata, then
//! in the gateway.

use std::sync::Arc;

use super::open::rules_of;
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::request::Command;
use crate::lifecycle::supervisor::Supervisor;
use crate::policy::admission;
use sandkeep_core::api::SandboxNetwork;
use sandkeep_core::event::EventKind;
use sandkeep_core::network::{NetworkPatch, NetworkTerms};
use sandkeep_core::{Principal, SandboxId, State, Trigger, Verb, failpoint};

impl Broker {
    /// Changes the policy of a sandbox. New connections follow it at once, and open ones that it does not allow end.
    pub async fn amend_network(
        &self,
        who: &Principal,
        id: &SandboxId,
        patch: NetworkPatch,
    ) -> Result<SandboxNetwork, Error> {
        if patch.is_mixed() {
            let problem = "it replaces all of the policy; leave out the other fields".to_owned();
            return Err(Error::InvalidField { field: "policy", problem });
        }
        let handle = self.shared.find(who, id)?;
        let amend = |reply| Command::AmendNetwork(Box::new(patch), reply);
        handle.ask(&self.shared, Verb::Amend, amend).await?;
        Ok(self.shared.network_of(&handle))
    }
}

impl Supervisor {
    pub(crate) async fn amend_network(&mut self, patch: NetworkPatch) -> Result<(), Error> {
        let (status, _) = self.next(Trigger::Begin(Verb::Amend))?;
        let present = &self.meta.terms.network;
        let changed = NetworkTerms { policy: patch.applied(&present.policy), ..present.clone() };
        if changed == *present {
            return Ok(());
        }
        self.shared.network.check_policy(&changed, self.runtime.as_ref())?;
        self.refuse_what_takes_a_launch(&changed)?;
        let rules = rules_of(&self.shared, self.id(), &changed).await?;
        let before = Arc::clone(&self.meta);
        self.meta_mut().terms.network = changed;
        let recorded = match admission::check_row(&self.meta) {
            Ok(()) => self.record(status).await,
            Err(error) => Err(error),
        };
        if let Err(error) = recorded {
            self.meta = before;
            return Err(error);
        }
        failpoint!("amend.after_row");
        self.rewrite_meta().await;
        failpoint!("amend.after_meta");
        if let Some(attachment) = self.network.attachment() {
            attachment.replace(rules);
        }
        self.emit(&EventKind::NetworkChanged {});
        Ok(())
    }

    /// A sandbox that runs has what its launch prepared.
    fn refuse_what_takes_a_launch(&self, changed: &NetworkTerms) -> Result<(), Error> {
        if !matches!(self.status().state(), State::Running | State::Paused) {
            return Ok(());
        }
        let (needs, has) = (changed.needs(), changed.prepared);
        let what = match () {
            () if needs.network && !has.network => "it was started without a network",
            () if needs.certificate && !has.certificate => {
                "rules for requests need the daemon's certificate inside, and it was started without"
            }
            () => return Ok(()),
        };
        let problem = format!("{what}: stop it, change its policy, and start it again");
        Err(Error::InvalidField { field: "network", problem })
    }
}
