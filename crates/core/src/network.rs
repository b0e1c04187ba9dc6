//! What a sandbox may reach: its network policy, as callers write it and as it is stored. Everything here is data and
//! pure functions; the policy is enforced outside of the sandbox, by the daemon.
//!
//! ```text
//! "none"                                  loopback only, the default
//! "open"                                  every public destination, the same as { allow: ["*"] }
//! { allow: ["python", "api.example.com", "*.cdn.example.com", "git.example.com:22"] }
//! { allow: ["*"], deny: ["*.corp.example"], on_deny: "ask" }
//! ```
//!
//! A policy is valid by construction: text becomes an [`Entry`] only through its parser, and [`Policy`] is read only
//! within its bounds. Whether its presets exist, and whether an admin's ceiling covers it, depends on the daemon:
//! [`Policy::check`] and [`ceiling`].

pub mod ceiling;
mod decision;
mod entry;
mod host;
mod patch;
mod presets;
mod requests;
mod secret;
mod terms;
#[cfg(test)]
mod tests;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use utoipa::ToSchema;

use crate::{InvalidSpec, limits};

pub use ceiling::{Admin, OverCeiling};
pub use decision::{Choice, Decision, DecisionKind, NetworkUsage, NetworkVerdict, PendingRequest};
pub use entry::{Entry, EntryProblem, InvalidEntry, IpRange, Target};
pub use host::{DEFAULT_PORTS, host_name};
pub use patch::NetworkPatch;
pub use presets::{InvalidPreset, Presets};
pub use requests::{InvalidRequests, Methods, Requests};
pub use secret::{SecretDraft, SecretPatch, SecretValue, check_secrets};
pub use terms::{NetworkTerms, Prepared, SecretTerms};

/// The network of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Network {
    /// Loopback only.
    #[default]
    None,
    Policy(Policy),
}

/// Which destinations a sandbox may reach. `deny` wins over `allow`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NetworkPolicy)]
pub struct Policy {
    /// Entries: `host`, `*.host` (not the host itself), `host:port`, an address or a CIDR range, the name of a preset,
    /// `*` for every public destination, or an object with rules for requests. Ports 80 and 443 unless given.
    #[serde(default, deserialize_with = "entries")]
    pub allow: Vec<Entry>,
    /// Entries without rules for requests. All ports unless given.
    #[serde(default, deserialize_with = "entries", skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Entry>,
    #[serde(default, skip_serializing_if = "OnDeny::is_refuse")]
    pub on_deny: OnDeny,
    #[serde(default, skip_serializing_if = "NetworkLimits::is_default")]
    pub limits: NetworkLimits,
}

/// What happens to a connection that no entry of `allow` covers. Entries of `deny` always refuse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = NetworkOnDeny)]
pub enum OnDeny {
    /// It is refused.
    #[default]
    Refuse,
    /// It waits until the owner decides, for 30 seconds at most.
    Ask,
    /// It passes if its destination is public, and is logged as one that the policy would have refused.
    Audit,
}

impl OnDeny {
    fn is_refuse(&self) -> bool {
        *self == Self::Refuse
    }
}

/// Bounds of all connections of a sandbox together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NetworkLimits)]
pub struct NetworkLimits {
    /// Maximum number of concurrent connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 4096)]
    pub connections: Option<u32>,
    /// Maximum rate in bytes per second, both directions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub bytes_per_sec: Option<u64>,
    /// Maximum number of bytes until the sandbox is gone, both directions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub bytes_total: Option<u64>,
}

impl NetworkLimits {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), InvalidSpec> {
        let field = "network.limits";
        let zero = |name: &str| {
            Err(wrong(field, format!("limits.{name}: 0 allows nothing; leave it out for none")))
        };
        let max = limits::NETWORK_CONNECTIONS_MAX;
        match self {
            Self { connections: Some(0), .. } => zero("connections"),
            Self { bytes_per_sec: Some(0), .. } => zero("bytes_per_sec"),
            Self { bytes_total: Some(0), .. } => zero("bytes_total"),
            Self { connections: Some(asked), .. } if *asked > max => {
                Err(wrong(field, format!("limits.connections: {asked} is more than {max}")))
            }
            Self { .. } => Ok(()),
        }
    }
}

impl Network {
    /// Every public destination.
    pub fn open() -> Self {
        Self::Policy(Policy { allow: vec![Entry::of(Target::Any)], ..Policy::default() })
    }

    pub fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::None => None,
            Self::Policy(policy) => Some(policy),
        }
    }

    /// Whether this daemon can apply it: see [`Policy::check`].
    pub fn check(&self, presets: &Presets) -> Result<(), InvalidSpec> {
        self.policy().map_or(Ok(()), |policy| policy.check(presets))
    }
}

impl Policy {
    /// Whether everything that it names exists, and whether its numbers are within their bounds.
    pub fn check(&self, presets: &Presets) -> Result<(), InvalidSpec> {
        for (field, entries) in [("network.allow", &self.allow), ("network.deny", &self.deny)] {
            if entries.len() > limits::NETWORK_ENTRIES_MAX {
                let (count, max) = (entries.len(), limits::NETWORK_ENTRIES_MAX);
                return Err(wrong(field, format!("{count} entries are more than {max}")));
            }
            for entry in entries {
                if let Target::Preset(name) = &entry.target {
                    presets.get(name).ok_or_else(|| wrong(field, presets.unknown(name)))?;
                }
            }
        }
        if let Some(entry) = self.deny.iter().find(|entry| entry.requests.is_some()) {
            let problem = format!("{entry}: an entry of deny has no rules for requests");
            return Err(wrong("network.deny", problem));
        }
        self.limits.check()
    }

    /// Whether `allow` has an entry for this destination, and `deny` has none: for checks before a policy is in force.
    /// Rules for requests are not considered.
    pub fn covers(&self, wanted: &Target, presets: &Presets) -> bool {
        let any = |entries: &[Entry]| {
            entries
                .iter()
                .flat_map(|entry| presets.expanded(entry))
                .any(|entry| ceiling::target_covers(&entry.target, wanted))
        };
        any(&self.allow) && !any(&self.deny)
    }
}

fn wrong(field: &'static str, problem: String) -> InvalidSpec {
    InvalidSpec { field, problem }
}

/// Reads a list within its bound, so that a hostile body ends early.
fn entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Entry>, D::Error> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<Entry>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of network entries")
        }

        fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Entry>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = seq.next_element()? {
                if entries.len() == limits::NETWORK_ENTRIES_MAX {
                    let max = limits::NETWORK_ENTRIES_MAX;
                    return Err(de::Error::custom(format!("more than {max} network entries")));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    from.deserialize_seq(Entries)
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => to.serialize_str("none"),
            Self::Policy(policy) => policy.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = Network;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"none\", \"open\", or an object with `allow`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Network, E> {
                match text {
                    "none" => Ok(Network::None),
                    "open" => Ok(Network::open()),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Network, A::Error> {
                Policy::deserialize(MapAccessDeserializer::new(map)).map(Network::Policy)
            }
        }

        from.deserialize_any(Form)
    }
}

impl utoipa::PartialSchema for Network {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
        let words = ObjectBuilder::new()
            .schema_type(Type::String)
            .enum_values(Some(["none", "open"]))
            .description(Some("`none`: loopback only. `open`: every public destination."));
        OneOfBuilder::new()
            .item(words)
            .item(utoipa::openapi::Ref::from_schema_name("NetworkPolicy"))
            .into()
    }
}

impl ToSchema for Network {
    fn name() -> std::borrow::Cow<'static, str> {
        "Network".into()
    }

    fn schemas(
        schemas: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::schema::Schema>)>,
    ) {
        use utoipa::PartialSchema;
        schemas.push(("NetworkPolicy".to_owned(), Policy::schema()));
        Policy::schemas(schemas);
    }
}
