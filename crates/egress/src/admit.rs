//! Whether a policy would let a sandbox reach a host, decided without a sandbox: for what the daemon fetches itself on
//! behalf of one, and for what it can refuse before one is made.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use sandkeep_core::SandboxId;
use sandkeep_core::network::{Decision, PendingRequest};

use crate::gateway::{Gateway, Recorder};
use crate::policy::{Finding, Host};
use crate::rules::Rules;
use crate::sandbox::Sandbox;
use crate::upstream::{self, UpstreamError};

/// Why a host may not be reached.
#[derive(Debug, thiserror::Error)]
pub enum NotAdmitted {
    #[error("{host}:{port} is refused by {rule}: {reason}")]
    Denied { host: String, port: u16, rule: String, reason: &'static str },
    #[error("no entry of the policy allows {host}:{port}")]
    Unlisted { host: String, port: u16 },
    #[error("{0}")]
    Refused(String),
    /// It has no address now, which may change.
    #[error("{0}")]
    Unknown(String),
}

impl Gateway {
    /// The addresses at which these rules let a host be reached: looked up once, and checked as for a connection of a
    /// sandbox. Whoever dials must dial these and no others. Destinations that would be asked for or audited are not
    /// admitted.
    pub async fn admit(
        &self,
        organization: &str,
        rules: &Rules,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, NotAdmitted> {
        let host = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Host::Address(address.to_canonical()),
            Err(_) => Host::Name(host.trim_end_matches('.').to_ascii_lowercase()),
        };
        let (shared, nobody) = (Arc::clone(self.shared()), Arc::new(Nobody));
        let who = (SandboxId::random(), shared.tenants.of(organization));
        let sandbox = Sandbox::new(who, shared, rules.clone(), nobody);
        let shown = host.to_string();
        let reach = match sandbox.rules().find(&host, port) {
            Finding::Allowed(allowed) => allowed.reach,
            Finding::Denied { rule, reason } => {
                return Err(NotAdmitted::Denied { host: shown, port, rule, reason });
            }
            Finding::Unlisted => return Err(NotAdmitted::Unlisted { host: shown, port }),
        };
        let found = upstream::addresses(&sandbox, &host, port, reach).await;
        found.map_err(|error| match error {
            UpstreamError::Lookup { .. } => NotAdmitted::Unknown(error.to_string()),
            UpstreamError::Refused { .. }
            | UpstreamError::Dial { .. }
            | UpstreamError::Certificate { .. }
            | UpstreamError::ClientCertificate { .. }
            | UpstreamError::Tls { .. } => NotAdmitted::Refused(error.to_string()),
        })
    }
}

/// There is no connection to record.
struct Nobody;

impl Recorder for Nobody {
    fn record(&self, _: &Decision) {}

    fn asked(&self, _: &PendingRequest) {}
}

#[cfg(test)]
mod tests {
    use sandkeep_core::network::{Admin, Network, Policy, Presets};
    use sandkeep_outgoing::Roots;
    use serde_json::{Value, json};

    use super::*;
    use crate::{FixedHosts, Settings, Times};

    fn gateway(admin: Admin) -> Gateway {
        let hosts = [("own.test", "127.0.1.1"), ("meta.test", "169.254.169.254")];
        let hosts = hosts.map(|(name, at)| (name.to_owned(), vec![at.parse().expect("one")]));
        Gateway::new(Settings {
            presets: Arc::new(Presets::built_in()),
            admin,
            ca_dir: "/nowhere".into(),
            roots: Roots::default(),
            resolver: Arc::new(FixedHosts(hosts.into())),
            times: Times::default(),
        })
    }

    fn rules(allow: &Value) -> Rules {
        let policy: Policy = serde_json::from_value(json!({ "allow": allow })).expect("a policy");
        Rules { policy, ..Rules::default() }
    }

    /// Nothing is dialed here.
    #[tokio::test]
    async fn only_what_the_policy_the_ceiling_and_the_ranges_allow_is_admitted() {
        let all = rules(&json!(["own.test:1", "meta.test", "none.test", "169.254.169.254"]));
        let strict = gateway(Admin::default());
        for (host, port) in [("own.test", 1), ("meta.test", 443), ("169.254.169.254", 80)] {
            let refused = strict.admit("acme", &all, host, port).await;
            assert!(matches!(refused, Err(NotAdmitted::Refused(_))), "{host}: {refused:?}");
        }
        let other = strict.admit("acme", &all, "own.test", 2).await;
        assert!(matches!(other, Err(NotAdmitted::Unlisted { .. })), "{other:?}");
        let unknown = strict.admit("acme", &all, "none.test", 443).await;
        assert!(matches!(unknown, Err(NotAdmitted::Unknown(_))), "{unknown:?}");
        let ranges = vec!["127.0.0.0/8".parse().expect("a range")];
        let open = Admin { ranges: ranges.clone(), ..Admin::default() };
        let found = gateway(open).admit("acme", &all, "OWN.test.", 1).await.expect("it is allowed");
        assert_eq!(found, ["127.0.1.1:1".parse().expect("an address")]);
        let ceiling: Network = serde_json::from_value(json!({ "allow": ["a.test"] })).expect("one");
        let bounded = Admin { ranges, ceiling: Some(ceiling) };
        let over = gateway(bounded).admit("acme", &all, "own.test", 1).await;
        assert!(matches!(over, Err(NotAdmitted::Denied { .. })), "{over:?}");
    }
}
