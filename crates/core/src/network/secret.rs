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

/// A change of a secret. Of one that exists the rest stays as it is, its placeholder as well; a new one has both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PatchSecret)]
pub struct SecretPatch {
    /// `host`, `*.host` or `host:port`. The policy must allow them, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>, example = json!(["api.example.com"]))]
    pub hosts: Option<Vec<Target>>,
    /// It is never shown again. Requests on new connections get it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, write_only)]
    pub value: Option<SecretValue>,
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
    if let Some(problem) = too_many(secrets.len()) {
        return wrong(problem);
    }
    for (name, secret) in secrets {
        let problem = problem_of(name, Some(&secret.hosts), Some(&secret.value));
        if let Some(problem) = problem {
            return wrong(problem);
        }
    }
    Ok(())
}

pub(super) fn too_many(count: usize) -> Option<String> {
    let max = limits::SECRETS_MAX;
    (count > max).then(|| format!("{count} are more than {max}"))
}

/// What is wrong with a secret, as far as it is given.
pub(super) fn problem_of(
    name: &str,
    hosts: Option<&[Target]>,
    value: Option<&SecretValue>,
) -> Option<String> {
    if !is_variable(name) {
        let name: String = name.chars().take(64).collect();
        return Some(format!("{name:?} is not the name of an environment variable"));
    }
    let problem = hosts.and_then(problem_of_hosts).or_else(|| value.and_then(problem_of_value));
    problem.map(|problem| format!("{name}: {problem}"))
}

fn is_variable(name: &str) -> bool {
    (1..=limits::SECRET_NAME_MAX_BYTES).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn problem_of_hosts(hosts: &[Target]) -> Option<String> {
    if hosts.is_empty() {
        return Some("hosts is empty; name the hosts that may get it".to_owned());
    }
    if hosts.len() > limits::SECRET_HOSTS_MAX {
        let max = limits::SECRET_HOSTS_MAX;
        return Some(format!("{} hosts are more than {max}", hosts.len()));
    }
    let is_name = |host: &&Target| matches!(host, Target::Name { .. } | Target::Below { .. });
    let other = hosts.iter().find(|host| !is_name(host));
    other.map(|host| format!("{host} is not a host; write host or *.host"))
}

fn problem_of_value(value: &SecretValue) -> Option<String> {
    let value = value.reveal();
    if value.is_empty() {
        return Some("the value is empty".to_owned());
    }
    if value.len() > limits::SECRET_VALUE_MAX_BYTES {
        return Some(format!("the value is over {} bytes", limits::SECRET_VALUE_MAX_BYTES));
    }
    value.chars().any(char::is_control).then(|| {
        "the value has a line break or a control character, which no header can hold".to_owned()
    })
}
