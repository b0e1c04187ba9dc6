//! A profile: a name for what sandboxes of one kind have in common. What a request says itself wins
//! over its profile; its labels and variables are added to the profile's.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::value::Invalid;
use crate::limits::PROFILE_NAME_MAX_BYTES;
use crate::sandbox::{NamesOnly, OnTimeout, Privilege, ResourcesDraft};

#[derive(Clone, Default, PartialEq)]
pub struct Profile {
    pub template: Option<String>,
    pub runtime: Option<String>,
    pub resources: ResourcesDraft,
    pub env: BTreeMap<String, String>,
    pub labels: BTreeMap<String, String>,
    pub privilege: Option<Privilege>,
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub on_timeout: Option<OnTimeout>,
    pub network: Network,
}

/// What of the world a sandbox can reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Its own loopback alone.
    #[default]
    None,
}

/// The values of `env` are secrets.
impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("template", &self.template)
            .field("runtime", &self.runtime)
            .field("resources", &self.resources)
            .field("env", &NamesOnly(&self.env))
            .field("labels", &self.labels)
            .field("privilege", &self.privilege)
            .field("timeout", &self.timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("on_timeout", &self.on_timeout)
            .field("network", &self.network)
            .finish()
    }
}

pub(super) fn check_name(name: &str) -> Result<(), Invalid> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    match starts_well && name.len() <= PROFILE_NAME_MAX_BYTES && name.chars().all(fine) {
        true => Ok(()),
        false => Err(Invalid::new(format!(
            "a profile's name has up to {PROFILE_NAME_MAX_BYTES} letters, digits, `.`, `_` and `-`, the first a letter or digit"
        ))),
    }
}
