//! The network of a sandbox: what it may reach, what it reached, and what it asks for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::{Choice, Decision, Network, NetworkUsage, PendingRequest, Target};

/// The network of a sandbox. Values of secrets are never shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SandboxNetwork {
    /// As it was written.
    pub policy: Network,
    /// What each entry of `allow` means, with presets expanded.
    pub entries: Vec<EntryMeaning>,
    /// Secrets, by the variable that holds their placeholder.
    pub secrets: BTreeMap<String, SecretHosts>,
    pub gateway: GatewayState,
    /// Why the gateway is `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub certificate: CertificateState,
    pub usage: NetworkUsage,
}

/// What an entry of `allow` means for connections.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryMeaning {
    /// As it was written, or as its preset has it.
    pub entry: String,
    /// The preset that it comes from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<String>,
    /// Empty: every port.
    pub ports: Vec<u16>,
    pub handling: Handling,
    /// Whether TLS to this host is passed on unread. Its server can then be asked for another site that it hosts
    /// (domain fronting), and nobody outside sees that.
    pub fronting_unseen: bool,
}

/// What the daemon does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = NetworkHandling)]
pub enum Handling {
    /// It passes bytes on, and checks only the names in them.
    Plain,
    /// It ends TLS with a certificate of its own and reads every request: for secrets, and for rules for requests.
    Terminated,
}

/// The hosts that may get a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretHosts {
    #[schema(value_type = Vec<String>)]
    pub hosts: Vec<Target>,
}

/// Whether connections can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GatewayState {
    /// There is none: the sandbox has no network, or does not run.
    Closed,
    Open,
    /// It could not be opened. Connections are refused; the daemon tries again.
    Failed,
}

/// Whether programs inside trust the certificates of this daemon, which hosts with secrets or rules need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CertificateState {
    /// No host needs it, so it is not inside.
    NotNeeded,
    Installed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NetworkLog {
    /// Oldest first.
    pub items: Vec<Decision>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadNetworkLog {
    /// Maximum number of decisions, the newest ones; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only what was refused.
    #[serde(default)]
    #[param(required = false)]
    pub refused: bool,
    /// Keep the stream open and send decisions as they are made.
    #[serde(default)]
    #[param(required = false)]
    pub follow: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkRequests {
    /// Oldest first.
    pub items: Vec<PendingRequest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DecideNetworkRequest {
    pub choice: Choice,
}

/// A destination that an agent asks its owner for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AskForNetwork {
    /// The host name that is needed, such as `api.example.com`.
    pub host: String,
    /// 443 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub port: Option<u16>,
    /// What it is needed for.
    #[schema(max_length = 500)]
    pub reason: String,
}

/// The presets of this daemon, with their entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkPresets {
    pub presets: BTreeMap<String, Vec<String>>,
}
