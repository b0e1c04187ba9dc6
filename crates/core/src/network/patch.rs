//! A change of the policy and the secrets of a sandbox that exists.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::entry::Entry;
use super::secret::SecretPatch;
use super::{Network, NetworkLimits, OnDeny, Policy};

/// A change of a network. `policy` replaces all of the policy; the other fields change a part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PatchNetwork)]
pub struct NetworkPatch {
    /// The new policy, in place of the present one. Not together with other fields, except those for secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Network>,
    /// The new entries of `allow`, in place of the present ones.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_entries")]
    pub allow: Option<Vec<Entry>>,
    /// The new entries of `deny`, in place of the present ones.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "some_entries")]
    pub deny: Option<Vec<Entry>>,
    /// Entries to add to `allow`. An entry of `deny` with the same text is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "super::entries")]
    pub add_allow: Vec<Entry>,
    /// Entries to add to `deny`. An entry of `allow` with the same text is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "super::entries")]
    pub add_deny: Vec<Entry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_deny: Option<OnDeny>,
    /// The new limits, in place of the present ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<NetworkLimits>,
    /// Secrets to add or to change, by their variable. Others stay as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretPatch>,
    /// Secrets to remove. What has their placeholder sends it as it is from then on.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub remove_secrets: BTreeSet<String>,
}

fn some_entries<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Vec<Entry>>, D::Error> {
    super::entries(from).map(Some)
}

impl NetworkPatch {
    /// The whole policy, and nothing beside it.
    pub fn is_mixed(&self) -> bool {
        let alone = Self { policy: self.policy.clone(), ..self.about_secrets() };
        self.policy.is_some() && *self != alone
    }

    /// The part that is about secrets.
    fn about_secrets(&self) -> Self {
        let (secrets, remove_secrets) = (self.secrets.clone(), self.remove_secrets.clone());
        Self { secrets, remove_secrets, ..Self::default() }
    }

    pub fn has_secrets(&self) -> bool {
        !self.secrets.is_empty() || !self.remove_secrets.is_empty()
    }

    /// The policy after the change. A part of a policy changes `none` into a policy.
    pub fn applied(&self, to: &Network) -> Network {
        if let Some(policy) = &self.policy {
            return policy.clone();
        }
        if *self == self.about_secrets() {
            return to.clone();
        }
        let mut policy = to.policy().cloned().unwrap_or_default();
        policy.allow = self.allow.clone().unwrap_or(policy.allow);
        policy.deny = self.deny.clone().unwrap_or(policy.deny);
        policy.on_deny = self.on_deny.unwrap_or(policy.on_deny);
        policy.limits = self.limits.unwrap_or(policy.limits);
        let Policy { allow, deny, .. } = &mut policy;
        add(&self.add_allow, allow, deny);
        add(&self.add_deny, deny, allow);
        Network::Policy(policy)
    }
}

/// Of two entries for one target the new one counts.
fn add(entries: &[Entry], to: &mut Vec<Entry>, other: &mut Vec<Entry>) {
    for entry in entries {
        other.retain(|present| present.target != entry.target);
        to.retain(|present| present.target != entry.target);
        to.push(entry.clone());
    }
}
