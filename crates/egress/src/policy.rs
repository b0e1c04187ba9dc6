//! What the rules of a sandbox say about a destination. Pure: nothing here waits, looks up or dials.
//!
//! ```text
//! denied by the policy or the ceiling        ──▶ Denied
//! not allowed by the ceiling                 ──▶ Denied
//! allowed by an entry                        ──▶ Allowed, with its rules for requests
//! neither                                    ──▶ Unlisted: on_deny says what happens
//! ```
//!
//! Of several entries of `allow` for one destination, the most specific counts: a name before `*.name`, the longer
//! suffix before the shorter, everything before `*`. So `["*", {host: "api.example.com", access: "read-only"}]` limits
//! that host. Equally specific entries add up.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sandkeep_core::network::{
    Admin, DEFAULT_PORTS, Entry, IpRange, Network, NetworkLimits, OnDeny, Policy, Presets,
    Requests, SecretValue, Target,
};
use sandkeep_outgoing::{is_own, is_public};

use crate::names;
use crate::rules::{HeaderRule, Rules, Secret};

/// A destination, as the sandbox names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Host {
    /// In lower case, without its final dot.
    Name(String),
    /// IPv4 addresses are never in their IPv6 form.
    Address(IpAddr),
}

impl Host {
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::Address(address) => Some(*address),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => address.fmt(f),
        }
    }
}

/// What the rules say about a destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Allowed(Allowed),
    /// Nobody can allow it without a change of the policy or the ceiling.
    Denied {
        rule: String,
        reason: &'static str,
    },
    Unlisted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Allowed {
    /// The entry, as text.
    pub(crate) rule: String,
    /// Every group must have a rule that allows a request. None: requests are not looked at.
    pub(crate) requests: Vec<Vec<Requests>>,
    pub(crate) reach: Reach,
}

/// Which addresses a destination may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only public ones: the policy does not name the host.
    Public,
    /// Also those that the admin allowed.
    PublicAndRanges,
}

/// Why an address of a destination is not dialed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotDialed {
    #[error("{0} is not an address of another host")]
    NotAHost(IpAddr),
    #[error("its address {address} is refused by {rule}")]
    Denied { address: IpAddr, rule: String },
    #[error(
        "its address {0} is not public; an administrator can allow its range with `egress_allow_ranges`"
    )]
    NotPublic(IpAddr),
    #[error("it has no address")]
    None,
}

/// The rules of a sandbox within the admin's bounds, with presets in place.
#[derive(Clone, Debug)]
pub(crate) struct Compiled {
    own: Lists,
    ceiling: Option<Lists>,
    /// The ceiling does not bound what audit lets pass.
    audits_all: bool,
    pub(crate) on_deny: OnDeny,
    pub(crate) limits: NetworkLimits,
    secrets: Vec<Secret>,
    headers: Vec<HeaderRule>,
    ranges: Vec<IpRange>,
}

#[derive(Clone, Debug, Default)]
struct Lists {
    allow: Vec<Entry>,
    deny: Vec<Entry>,
}

const DENIED: &str = "an entry of deny refuses it";
const OVER_CEILING: &str = "this daemon allows it to no sandbox";

impl Compiled {
    pub(crate) fn new(rules: &Rules, presets: &Presets, admin: &Admin) -> Self {
        let most = admin.ceiling.as_ref().map(|most| match most {
            Network::None => Policy::default(),
            Network::Policy(policy) => policy.clone(),
        });
        let capped = most.as_ref().map(|most| rules.policy.limits.capped(&most.limits));
        Self {
            own: Lists::of(&rules.policy, presets),
            audits_all: most.as_ref().is_some_and(|most| most.on_deny == OnDeny::Audit),
            ceiling: most.map(|most| Lists::of(&most, presets)),
            on_deny: rules.policy.on_deny,
            limits: capped.unwrap_or(rules.policy.limits),
            secrets: rules.secrets.values().cloned().collect(),
            headers: rules.headers.clone(),
            ranges: admin.ranges.clone(),
        }
    }

    /// Whether a connection to this host and port may be made.
    pub(crate) fn find(&self, host: &Host, port: u16) -> Finding {
        for lists in self.lists() {
            if let Some(entry) = lists.denies(host, port) {
                return Finding::Denied { rule: entry.to_string(), reason: DENIED };
            }
        }
        let bound = self.ceiling.as_ref().map(|lists| lists.allows(host, port));
        if bound == Some(None) && !(self.on_deny == OnDeny::Audit && self.audits_all) {
            return Finding::Denied { rule: "egress_ceiling".to_owned(), reason: OVER_CEILING };
        }
        let Some(mut allowed) = self.own.allows(host, port) else { return Finding::Unlisted };
        allowed.requests.extend(bound.flatten().map(|bound| bound.requests).unwrap_or_default());
        Finding::Allowed(allowed)
    }

    /// What is known of a host that the owner allowed, or that audit lets pass: the ceiling's rules for its requests.
    pub(crate) fn bound(&self, host: &Host, port: u16) -> Vec<Vec<Requests>> {
        let bound = self.ceiling.as_ref().and_then(|lists| lists.allows(host, port));
        bound.map(|bound| bound.requests).unwrap_or_default()
    }

    /// Whether the resolver tells an address for this name: some connection to it may be allowed, or asked for.
    pub(crate) fn maps(&self, name: &str) -> bool {
        let host = Host::Name(name.to_owned());
        let denied = self.lists().any(|lists| {
            lists.deny.iter().any(|entry| port(&entry.target).is_none() && covers(entry, &host))
        });
        let listed = self.own.allow.iter().any(|entry| covers(entry, &host));
        !denied && (listed || self.on_deny != OnDeny::Refuse)
    }

    /// Whether an address of a destination may be dialed.
    pub(crate) fn may_dial(&self, to: IpAddr, port: u16, reach: Reach) -> Result<(), NotDialed> {
        let to = to.to_canonical();
        if names::is_reserved(to) || is_link_local(to) || to.is_multicast() || to.is_unspecified() {
            return Err(NotDialed::NotAHost(to));
        }
        let host = Host::Address(to);
        if let Some(entry) = self.lists().find_map(|lists| lists.denies_range(&host, port)) {
            return Err(NotDialed::Denied { address: to, rule: entry.to_string() });
        }
        let in_range = self.ranges.iter().any(|range| range.contains(to));
        if (is_public(to) && !is_own(to)) || (in_range && reach == Reach::PublicAndRanges) {
            Ok(())
        } else {
            Err(NotDialed::NotPublic(to))
        }
    }

    /// The secrets whose value this host may get.
    pub(crate) fn secrets_for(
        &self,
        name: &str,
        port: u16,
        transport: Transport,
    ) -> impl Iterator<Item = &Secret> {
        let host = Host::Name(name.to_owned());
        self.secrets.iter().filter(move |secret| names_host(&secret.hosts, &host, port, transport))
    }

    /// The headers that are set on requests to this host.
    pub(crate) fn headers_for(
        &self,
        name: &str,
        port: u16,
        transport: Transport,
    ) -> impl Iterator<Item = (&str, &SecretValue)> {
        let host = Host::Name(name.to_owned());
        let rules = self.headers.iter();
        let rules = rules.filter(move |rule| names_host(&rule.hosts, &host, port, transport));
        rules.flat_map(|rule| rule.set.iter().map(|(name, value)| (name.as_str(), value)))
    }

    /// Whether requests to this host have to be read although they are encrypted.
    pub(crate) fn reads(&self, host: &Host, port: u16) -> bool {
        let Some(name) = host.name() else { return false };
        let rules = match self.find(host, port) {
            Finding::Allowed(allowed) => !allowed.requests.is_empty(),
            Finding::Denied { .. } => false,
            Finding::Unlisted => !self.bound(host, port).is_empty(),
        };
        rules
            || self.secrets_for(name, port, Transport::Tls).next().is_some()
            || self.headers_for(name, port, Transport::Tls).next().is_some()
    }

    /// Whether an entry of the policy is about this destination.
    pub(crate) fn lists_host(&self, host: &Host, port: u16) -> bool {
        self.own.allows(host, port).is_some()
    }

    fn lists(&self) -> impl Iterator<Item = &Lists> {
        std::iter::once(&self.own).chain(&self.ceiling)
    }
}

/// How requests get to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tls,
    /// Everybody on the way can read it.
    Plain,
}

/// Whether a secret may go to this host. Unencrypted it goes only to a port that was named for it.
fn names_host(targets: &[Target], host: &Host, at: u16, transport: Transport) -> bool {
    targets.iter().any(|target| {
        let named = port(target);
        let ports = match transport {
            Transport::Tls => has_port(target, at),
            Transport::Plain => named == Some(at),
        };
        ports && is_host(target, host) && *target != Target::Any
    })
}

impl Lists {
    fn of(policy: &Policy, presets: &Presets) -> Self {
        let expanded = |entries: &[Entry]| {
            entries.iter().flat_map(|entry| presets.expanded(entry)).cloned().collect()
        };
        Self { allow: expanded(&policy.allow), deny: expanded(&policy.deny) }
    }

    fn denies(&self, host: &Host, at: u16) -> Option<&Entry> {
        self.deny
            .iter()
            .find(|entry| covers(entry, host) && port(&entry.target).is_none_or(|only| only == at))
    }

    /// Names were judged by their name; this is about their addresses.
    fn denies_range(&self, host: &Host, at: u16) -> Option<&Entry> {
        self.denies(host, at).filter(|entry| matches!(entry.target, Target::Range { .. }))
    }

    fn allows(&self, host: &Host, at: u16) -> Option<Allowed> {
        let matching =
            self.allow.iter().filter(|entry| covers(entry, host) && has_port(&entry.target, at));
        let matching: Vec<&Entry> = matching.collect();
        let most = matching.iter().map(|entry| rank(&entry.target)).max()?;
        let deciding = matching.into_iter().filter(|entry| rank(&entry.target) == most);
        let deciding: Vec<&Entry> = deciding.collect();
        let free = deciding.iter().find(|entry| entry.requests.is_none());
        let rules = deciding.iter().filter_map(|entry| entry.requests.clone()).collect();
        let shown: Vec<String> = deciding.iter().map(ToString::to_string).collect();
        Some(Allowed {
            rule: free.map_or_else(|| shown.join(", "), ToString::to_string),
            requests: if free.is_some() { Vec::new() } else { vec![rules] },
            reach: if most == Rank::Any { Reach::Public } else { Reach::PublicAndRanges },
        })
    }
}

/// How specific a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Any,
    Range(u8),
    Below(usize),
    Name,
}

fn rank(target: &Target) -> Rank {
    match target {
        // A preset was replaced by its entries.
        Target::Any | Target::Preset(_) => Rank::Any,
        Target::Range { range, .. } => Rank::Range(range.prefix()),
        Target::Below { suffix, .. } => Rank::Below(suffix.len()),
        Target::Name { .. } => Rank::Name,
    }
}

fn covers(entry: &Entry, host: &Host) -> bool {
    is_host(&entry.target, host)
}

fn is_host(target: &Target, host: &Host) -> bool {
    match (target, host) {
        (Target::Any, _) => true,
        (Target::Name { host: name, .. }, Host::Name(asked)) => name == asked,
        (Target::Below { suffix, .. }, Host::Name(asked)) => {
            let rest = asked.strip_suffix(suffix.as_str());
            rest.is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        }
        (Target::Range { range, .. }, Host::Address(address)) => range.contains(*address),
        (Target::Preset(_) | Target::Name { .. } | Target::Below { .. }, _)
        | (Target::Range { .. }, Host::Name(_)) => false,
    }
}

fn has_port(target: &Target, at: u16) -> bool {
    match target {
        Target::Any => true,
        _ => port(target).map_or(DEFAULT_PORTS.contains(&at), |only| only == at),
    }
}

fn port(target: &Target) -> Option<u16> {
    match target {
        Target::Preset(_) | Target::Any => None,
        Target::Name { port, .. } | Target::Below { port, .. } | Target::Range { port, .. } => {
            *port
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => Ipv4Addr::is_link_local(&v4),
        IpAddr::V6(v6) => Ipv6Addr::is_unicast_link_local(&v6),
    }
}

#[cfg(test)]
mod tests;
