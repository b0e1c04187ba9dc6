//! The policy and the secrets of a sandbox that exists are changed: first in the row, which is authoritative, then in the
//! metadata, then in the gateway. New values of secrets are on disk before the row names them; old ones leave after it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::warn;

use super::KeptValues;
use super::open::{kept_values, rules_of};
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
    /// Changes the policy and the secrets of a sandbox. New connections follow them at once, and open ones that are not
    /// allowed any more end.
    pub async fn amend_network(
        &self,
        who: &Principal,
        id: &SandboxId,
        patch: NetworkPatch,
    ) -> Result<SandboxNetwork, Error> {
        if patch.is_mixed() {
            let problem =
                "it replaces all of the policy; leave out the others, except those for secrets"
                    .to_owned();
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
        let present = self.meta.terms.network.clone();
        let changed = present.patched(&patch)?;
        if changed == present {
            return Ok(());
        }
        self.check_change(&patch, &changed)?;
        let values = self.values_after(&patch, &present, &changed).await?;
        let rules = rules_of(self.id(), &changed, &values)?;
        // An end that was opened with such a limit has counted them already.
        let earlier = if self.network.counts_earlier() {
            None
        } else {
            self.network.earlier_bytes(&self.shared, &rules.policy, self.id()).await?
        };
        // Those that the row names until then are kept beside the new ones.
        if patch.has_secrets() {
            self.keep_secrets(&values).await?;
            failpoint!("network.after_values");
        }
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
            if let Some(earlier) = earlier {
                self.network.count_earlier(&attachment, earlier);
            }
            attachment.replace(rules);
        }
        self.emit(&EventKind::NetworkChanged {});
        if patch.has_secrets() {
            self.forget_old_values(values).await;
        }
        Ok(())
    }

    /// Whether the sandbox may have it, and whether what was changed of its secrets fits. A policy may be taken away from
    /// secrets that stay.
    fn check_change(&self, patch: &NetworkPatch, changed: &NetworkTerms) -> Result<(), Error> {
        let networks = &self.shared.network;
        networks.check_policy(changed, self.runtime.as_ref())?;
        let touched = patch.secrets.keys();
        changed.check_secrets(&networks.presets, touched.clone())?;
        let env = self.meta.spec.env();
        let is_new = |name: &&String| !self.meta.terms.network.secrets.contains_key(*name);
        if let Some(name) = touched.clone().filter(is_new).find(|name| env.contains_key(*name)) {
            let problem = format!("{name} is in env as well, which cannot be changed");
            return Err(Error::InvalidField { field: "secrets", problem });
        }
        self.refuse_what_takes_a_launch(changed)
    }

    /// The values of the secrets before and after a change, as they are kept.
    async fn values_after(
        &self,
        patch: &NetworkPatch,
        present: &NetworkTerms,
        changed: &NetworkTerms,
    ) -> Result<KeptValues, Error> {
        let mut values = kept_values(&self.shared, self.id(), present).await?;
        for (name, change) in &patch.secrets {
            if let (Some(value), Some(secret)) = (&change.value, changed.secrets.get(name)) {
                values.insert(secret.value_name(name), value.clone());
            }
        }
        Ok(values)
    }

    /// Removes the values that nothing names any more. If that fails, or a crash prevents it, they stay there encrypted
    /// until the next change, or until the sandbox is gone.
    async fn forget_old_values(&self, mut values: KeptValues) {
        let secrets = &self.meta.terms.network.secrets;
        let named: BTreeSet<String> =
            secrets.iter().map(|(name, secret)| secret.value_name(name)).collect();
        values.retain(|name, _| named.contains(name));
        if let Err(error) = self.keep_secrets(&values).await {
            warn!(id = %self.id(), %error, "cannot remove the former values of secrets");
        }
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
                "secrets and rules for requests need the daemon's certificate inside, and it was started without"
            }
            () => return Ok(()),
        };
        let problem = format!("{what}: stop it, change its policy, and start it again");
        Err(Error::InvalidField { field: "network", problem })
    }
}
