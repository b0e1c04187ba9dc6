//! Secrets of a sandbox, as a caller gives them. Inside there is only a placeholder; the value goes to its hosts alone.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::entry::Target;
use crate::{InvalidSpec, limits};

/// A secret, and the hosts that may get its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSecret)]
pub struct SecretDraft {
    /// `host`, `*.host` or `host:port`. The policy must allow them, too.
    #[schema(value_type = Vec<String>, example = json!(["api.example.com"]))]
    pub hosts: Vec<Target>,
    /// It is never shown again.
    #[schema(value_type = String, write_only)]
    pub value: SecretValue,
}

/// A value that is sent to the daemon, and shown nowhere.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretValue(String);

impl SecretValue {
    pub fn new(value: String) -> Self {
        Self(value)
    }

    /// The value, for the code that keeps it encrypted or puts it into a request.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// Whether secrets can be kept and used: names that a variable can have, hosts, values that a header can have. Errors
/// never contain a value.
pub fn check_secrets(secrets: &BTreeMap<String, SecretDraft>) -> Result<(), InvalidSpec> {
    let wrong = |problem| Err(InvalidSpec { field: "secrets", problem });
    if secrets.len() > limits::SECRETS_MAX {
        return wrong(format!("{} are more than {}", secrets.len(), limits::SECRETS_MAX));
    }
    for (name, secret) in secrets {
        if !is_variable(name) {
            let name: String = name.chars().take(64).collect();
            return wrong(format!("{name:?} is not the name of an environment variable"));
        }
        if let Some(problem) = secret.problem() {
            return wrong(format!("{name}: {problem}"));
        }
    }
    Ok(())
}

fn is_variable(name: &str) -> bool {
    (1..=limits::SECRET_NAME_MAX_BYTES).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl SecretDraft {
    fn problem(&self) -> Option<String> {
        if self.hosts.is_empty() {
            return Some("hosts is empty; name the hosts that may get it".to_owned());
        }
        if self.hosts.len() > limits::SECRET_HOSTS_MAX {
            let max = limits::SECRET_HOSTS_MAX;
            return Some(format!("{} hosts are more than {max}", self.hosts.len()));
        }
        let is_name = |host: &&Target| matches!(host, Target::Name { .. } | Target::Below { .. });
        if let Some(host) = self.hosts.iter().find(|host| !is_name(host)) {
            return Some(format!("{host} is not a host; write host or *.host"));
        }
        let value = self.value.reveal();
        if value.is_empty() {
            return Some("the value is empty".to_owned());
        }
        if value.len() > limits::SECRET_VALUE_MAX_BYTES {
            return Some(format!("the value is over {} bytes", limits::SECRET_VALUE_MAX_BYTES));
        }
        if value.chars().any(char::is_control) {
            return Some(
                "the value has a line break or a control character, which no header can hold"
                    .to_owned(),
            );
        }
        None
    }
}
