//! What the gateway of a sandbox decided, counts and asks: data for logs, answers and events. Nothing here ever holds a
//! secret, a body or the query of a URL.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One line of a sandbox's network log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NetworkDecision)]
pub struct Decision {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub kind: DecisionKind,
    pub verdict: NetworkVerdict,
    /// Names the same connection in all of its lines, since the daemon started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// The host name, if the destination was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address that was dialed, or the one that the sandbox named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// The entry of the policy that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Why it was refused, or how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of a request to a host whose requests the daemon reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Without its query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Bytes from the sandbox, and to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_up: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_down: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = NetworkDecisionKind)]
pub enum DecisionKind {
    /// A DNS query. Only refused ones are logged.
    Name,
    /// A connection, when it was opened or refused.
    Connection,
    /// The end of a connection, with its bytes and duration.
    Closed,
    /// A request to a host whose requests the daemon reads.
    Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum NetworkVerdict {
    Allowed,
    Denied,
    /// It passed because of `on_deny: audit`; the policy has no entry for it.
    Audited,
    /// It was allowed, and did not work: the host has no address, does not answer, or has no valid certificate.
    Failed,
}

/// A connection that waits for the owner's decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NetworkRequest)]
pub struct PendingRequest {
    pub id: u64,
    /// A host name or an address.
    pub host: String,
    pub port: u16,
    /// The reason that the program inside gave. It is text from the sandbox: do not trust it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub asked_at: Timestamp,
    /// When it will be refused.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    /// Connections that wait for it.
    pub waiting: u32,
}

/// The owner's answer to a [`PendingRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = NetworkChoice)]
pub enum Choice {
    /// The connections that wait pass.
    Once,
    /// The host and port become an entry of the policy.
    Always,
    Refuse,
}

/// What a sandbox uses of its network, counted since the daemon started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NetworkUsage)]
pub struct NetworkUsage {
    /// Connections that are open now.
    pub open: u64,
    /// All connections that were allowed.
    pub connections: u64,
    /// Connections and requests that were refused.
    pub refused: u64,
    /// Bytes from the sandbox, and to it.
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// DNS queries, and those among them that were refused.
    pub queries: u64,
    pub queries_refused: u64,
    /// Connections that wait for the owner's decision.
    pub pending: u64,
}
