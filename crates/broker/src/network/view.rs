//! What a policy means, for people and programs that read it.

use std::sync::Arc;

use super::Networks;
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::api::{
    CertificateState, EntryMeaning, Handling, NetworkPresets, SandboxNetwork, SecretHosts,
};
use sandkeep_core::network::{DEFAULT_PORTS, Entry, NetworkTerms, Presets, Target, ceiling};

/// The port of TLS.
const HTTPS: u16 = 443;

impl Shared {
    pub(crate) fn network_of(&self, handle: &Handle) -> SandboxNetwork {
        let meta = Arc::clone(&handle.published.borrow().meta);
        let terms = &meta.terms.network;
        let (gateway, reason) = handle.network.state();
        let usage = handle.network.attachment().map(|open| open.usage()).unwrap_or_default();
        let secrets = terms
            .secrets
            .iter()
            .map(|(name, secret)| (name.clone(), SecretHosts { hosts: secret.hosts.clone() }));
        SandboxNetwork {
            policy: terms.policy.clone(),
            entries: meanings(terms, &self.network.presets),
            secrets: secrets.collect(),
            gateway,
            reason,
            certificate: if terms.prepared.certificate {
                CertificateState::Installed
            } else {
                CertificateState::NotNeeded
            },
            usage,
        }
    }
}

impl Networks {
    pub(super) fn shown_presets(&self) -> NetworkPresets {
        let shown = |(name, entries): (&str, &[Entry])| {
            (name.to_owned(), entries.iter().map(ToString::to_string).collect())
        };
        NetworkPresets { presets: self.presets.iter().map(shown).collect() }
    }
}

fn meanings(terms: &NetworkTerms, presets: &Presets) -> Vec<EntryMeaning> {
    let Some(policy) = terms.policy.policy() else { return Vec::new() };
    let expanded = policy.allow.iter().flat_map(|entry| {
        let preset = match &entry.target {
            Target::Preset(name) => Some(name.clone()),
            Target::Any | Target::Name { .. } | Target::Below { .. } | Target::Range { .. } => None,
        };
        presets.expanded(entry).iter().map(move |entry| (entry, preset.clone()))
    });
    expanded.map(|(entry, preset)| meaning(entry, preset, terms)).collect()
}

fn meaning(entry: &Entry, preset: Option<String>, terms: &NetworkTerms) -> EntryMeaning {
    let mut secret_hosts = terms.secrets.values().flat_map(|secret| &secret.hosts);
    let is_read = entry.requests.is_some()
        || secret_hosts.any(|host| ceiling::target_covers(host, &entry.target));
    let ports = match &entry.target {
        Target::Any | Target::Preset(_) => Vec::new(),
        Target::Name { port, .. } | Target::Below { port, .. } | Target::Range { port, .. } => {
            port.map_or_else(|| DEFAULT_PORTS.to_vec(), |port| vec![port])
        }
    };
    let may_be_tls = ports.is_empty() || ports.contains(&HTTPS);
    EntryMeaning {
        entry: entry.to_string(),
        preset,
        ports,
        handling: if is_read { Handling::Terminated } else { Handling::Plain },
        fronting_unseen: may_be_tls && !is_read,
    }
}

#[cfg(test)]
mod tests {
    use sandkeep_core::network::Network;
    use serde_json::json;

    use super::*;

    #[test]
    fn it_is_said_for_each_host_what_happens_to_its_connections() {
        let policy: Network = serde_json::from_value(json!({
            "allow": ["plain.example", "ssh.example:22", "go", "secret.example",
                { "host": "rule.example", "access": "read-only" }]
        }))
        .expect("a policy");
        let secrets = serde_json::from_value(
            json!({ "TOKEN": { "hosts": ["secret.example"], "value": "hush" } }),
        )
        .expect("secrets");
        let terms = NetworkTerms::new(policy, &secrets);
        let all = meanings(&terms, &Presets::built_in());
        let of = |entry: &str| {
            let found = all.iter().find(|meaning| meaning.entry.starts_with(entry));
            found.cloned().unwrap_or_else(|| panic!("{entry} in {all:?}"))
        };
        let plain = of("plain.example");
        assert_eq!((plain.handling, plain.fronting_unseen), (Handling::Plain, true));
        assert_eq!(plain.ports, [80, 443]);
        let ssh = of("ssh.example:22");
        assert_eq!((ssh.ports.as_slice(), ssh.fronting_unseen), (&[22][..], false));
        for entry in ["secret.example", "rule.example"] {
            let read = of(entry);
            assert_eq!((read.handling, read.fronting_unseen), (Handling::Terminated, false));
        }
        assert!(all.iter().any(|meaning| meaning.preset.as_deref() == Some("go")), "{all:?}");
    }
}
