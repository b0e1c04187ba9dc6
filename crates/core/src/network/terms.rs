//! The network of a sandbox as it is recorded, in its row and in its metadata: everything but the values of secrets.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::entry::Target;
use super::secret::{SecretDraft, SecretPatch, check_secrets, problem_of, too_many};
use super::{Network, NetworkPatch, Presets};
use crate::InvalidSpec;
use crate::id::random_id;

/// What a placeholder begins with, so that a reader of a log sees what it is. It has only lower case letters, digits and
/// hyphens, so that it is the same in every encoding of a header.
const PLACEHOLDER: &str = "sandkeep-placeholder-";

/// The policy of a sandbox, and what may be known of its secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkTerms {
    #[serde(default, skip_serializing_if = "Network::is_none")]
    pub policy: Network,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, SecretTerms>,
    #[serde(default, skip_serializing_if = "Prepared::is_default")]
    pub prepared: Prepared,
}

/// What the last launch has prepared in the sandbox. More takes another launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Its connections are caught.
    pub network: bool,
    /// Its programs find the daemon's certificate.
    pub certificate: bool,
}

impl Prepared {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretTerms {
    pub hosts: Vec<Target>,
    /// What the sandbox has in place of the value. It is random, and of this sandbox alone.
    pub placeholder: String,
    /// How often the value was replaced. It names the value where values are kept, so that a new one is in force
    /// together with its hosts, and not before.
    #[serde(default, skip_serializing_if = "is_first")]
    pub revision: u32,
}

fn is_first(revision: &u32) -> bool {
    *revision == 0
}

impl SecretTerms {
    fn of(hosts: Vec<Target>) -> Self {
        Self { hosts, placeholder: random_id(PLACEHOLDER), revision: 0 }
    }

    /// The name of its value where values are kept.
    pub fn value_name(&self, variable: &str) -> String {
        match self.revision {
            0 => variable.to_owned(),
            // No variable has such a name.
            revision => format!("{variable}#{revision}"),
        }
    }
}

impl NetworkTerms {
    /// Those of a new sandbox, with new placeholders.
    pub fn new(policy: Network, secrets: &BTreeMap<String, SecretDraft>) -> Self {
        let named = |(name, secret): (&String, &SecretDraft)| {
            (name.clone(), SecretTerms::of(secret.hosts.clone()))
        };
        let secrets = secrets.iter().map(named).collect();
        Self { policy, secrets, prepared: Prepared::default() }
    }

    /// What a launch has to prepare.
    pub fn needs(&self) -> Prepared {
        let rules = self
            .policy
            .policy()
            .is_some_and(|policy| policy.allow.iter().any(|entry| entry.requests.is_some()));
        Prepared { network: !self.policy.is_none(), certificate: rules || !self.secrets.is_empty() }
    }

    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The same for another sandbox: its placeholders are worthless in this one.
    pub fn renewed(&self) -> Self {
        let renewed = |(name, secret): (&String, &SecretTerms)| {
            (name.clone(), SecretTerms::of(secret.hosts.clone()))
        };
        Self {
            policy: self.policy.clone(),
            secrets: self.secrets.iter().map(renewed).collect(),
            prepared: Prepared::default(),
        }
    }

    /// The terms after a change; whether the policy covers the changed secrets is not considered.
    pub fn patched(&self, patch: &NetworkPatch) -> Result<Self, InvalidSpec> {
        let wrong = |problem: String| InvalidSpec { field: "secrets", problem };
        let mut secrets = self.secrets.clone();
        for name in &patch.remove_secrets {
            secrets.remove(name).ok_or_else(|| wrong(format!("there is no secret {name:?}")))?;
        }
        for (name, SecretPatch { hosts, value }) in &patch.secrets {
            if patch.remove_secrets.contains(name) {
                return Err(wrong(format!("{name}: it is removed as well; give it once")));
            }
            if let Some(problem) = problem_of(name, hosts.as_deref(), value.as_ref()) {
                return Err(wrong(problem));
            }
            match (secrets.get_mut(name), hosts, value) {
                (Some(present), hosts, value) => {
                    present.hosts = hosts.as_ref().unwrap_or(&present.hosts).clone();
                    present.revision = present.revision.wrapping_add(u32::from(value.is_some()));
                }
                (None, Some(hosts), Some(_)) => {
                    secrets.insert(name.clone(), SecretTerms::of(hosts.clone()));
                }
                (None, ..) => {
                    let problem = format!("{name}: a new secret needs hosts and a value");
                    return Err(wrong(problem));
                }
            }
        }
        if let Some(problem) = too_many(secrets.len()) {
            return Err(wrong(problem));
        }
        Ok(Self { policy: patch.applied(&self.policy), secrets, prepared: self.prepared })
    }

    /// Whether the policy and the secrets fit together.
    pub fn check(&self, presets: &Presets) -> Result<(), InvalidSpec> {
        self.policy.check(presets)?;
        self.check_secrets(presets, self.secrets.keys())
    }

    /// Whether the policy covers these of its secrets.
    pub fn check_secrets<'a>(
        &'a self,
        presets: &Presets,
        names: impl Iterator<Item = &'a String>,
    ) -> Result<(), InvalidSpec> {
        for (name, secret) in names.filter_map(|name| self.secrets.get_key_value(name)) {
            let wrong = |problem: String| InvalidSpec { field: "secrets", problem };
            let Some(policy) = self.policy.policy() else {
                let problem = format!("{name}: there is no network to use it; give network.allow");
                return Err(wrong(problem));
            };
            if let Some(host) = secret.hosts.iter().find(|host| !policy.covers(host, presets)) {
                let problem =
                    format!("{name}: the policy does not allow {host}; add it to network.allow");
                return Err(wrong(problem));
            }
        }
        Ok(())
    }

    /// The terms that a draft asks for. Its secrets are checked as far as this needs no policy.
    pub(crate) fn asked(
        policy: Option<&Network>,
        secrets: Option<&BTreeMap<String, SecretDraft>>,
        env: Option<&BTreeMap<String, String>>,
    ) -> Result<Self, InvalidSpec> {
        let none = BTreeMap::new();
        let secrets = secrets.unwrap_or(&none);
        check_secrets(secrets)?;
        let both = secrets.keys().find(|name| env.is_some_and(|env| env.contains_key(*name)));
        if let Some(name) = both {
            let problem = format!("{name} is in env as well; give it once");
            return Err(InvalidSpec { field: "secrets", problem });
        }
        Ok(Self::new(policy.cloned().unwrap_or_default(), secrets))
    }
}
