//! An admin's ceiling: the widest policy that a tenant may ask for. A policy is within it if each of its entries is
//! covered by one entry of the ceiling. Destinations that the ceiling denies stay denied under every policy, and its
//! limits are maxima; whoever compiles a policy applies both.

use super::entry::{Entry, IpRange, Target};
use super::host::DEFAULT_PORTS;
use super::{Network, NetworkLimits, OnDeny, Policy, Presets};

/// What the operator of a daemon decides for all policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// The widest policy; `None` is no ceiling.
    pub ceiling: Option<Network>,
    /// Ranges that policies may allow although they are not public.
    pub ranges: Vec<IpRange>,
}

/// What of a policy is over the ceiling.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverCeiling {
    #[error("this daemon allows no sandbox a network")]
    NoNetwork,
    #[error("{0} is more than the ceiling of this daemon allows")]
    Entry(String),
    #[error(
        "on_deny: audit lets every public destination pass, which the ceiling of this daemon does not allow"
    )]
    Audit,
    #[error(
        "limits.{name}: {asked} is more than the {most} that the ceiling of this daemon allows"
    )]
    Limit { name: &'static str, asked: u64, most: u64 },
}

/// Whether a policy asks for no more than the ceiling.
pub fn check(asked: &Network, most: &Network, presets: &Presets) -> Result<(), OverCeiling> {
    match (asked, most) {
        (Network::None, _) => Ok(()),
        (Network::Policy(_), Network::None) => Err(OverCeiling::NoNetwork),
        (Network::Policy(asked), Network::Policy(most)) => check_policy(asked, most, presets),
    }
}

fn check_policy(asked: &Policy, most: &Policy, presets: &Presets) -> Result<(), OverCeiling> {
    for entry in &asked.allow {
        if let Some(over) = presets.expanded(entry).iter().find(|one| !covers(most, one, presets)) {
            return Err(OverCeiling::Entry(over.to_string()));
        }
    }
    let is_open = most.allow.iter().any(|entry| entry.target == Target::Any);
    if asked.on_deny == OnDeny::Audit && !is_open && most.on_deny != OnDeny::Audit {
        return Err(OverCeiling::Audit);
    }
    check_limits(&asked.limits, &most.limits)
}

/// Whether the ceiling allows all of an entry. It denies a part of a wide entry without making it too wide: that part
/// is refused when it is used.
fn covers(most: &Policy, asked: &Entry, presets: &Presets) -> bool {
    let expanded = |entries: &[Entry]| -> Vec<Entry> {
        entries.iter().flat_map(|entry| presets.expanded(entry).to_vec()).collect()
    };
    let denied = expanded(&most.deny).iter().any(|no| target_denies(&no.target, &asked.target));
    !denied && expanded(&most.allow).iter().any(|yes| entry_covers(yes, asked))
}

fn entry_covers(wider: &Entry, asked: &Entry) -> bool {
    let requests = match (&wider.requests, &asked.requests) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wider), Some(asked)) => wider.covers(asked),
    };
    requests && target_covers(&wider.target, &asked.target)
}

/// Whether every destination of one target is one of another, wider target. Presets have been expanded.
pub fn target_covers(wider: &Target, asked: &Target) -> bool {
    match (wider, asked) {
        (Target::Any, Target::Any | Target::Name { .. } | Target::Below { .. }) => true,
        // A range names addresses, and those that are not public stay closed below `*`.
        (Target::Any, Target::Range { .. }) => true,
        _ => hosts_cover(wider, asked) && ports_cover(port(wider), port(asked)),
    }
}

/// The same for an entry of `deny`, which without a port is about all ports.
fn target_denies(wider: &Target, asked: &Target) -> bool {
    let ports = port(wider).is_none() || port(wider) == port(asked);
    ports && (*wider == Target::Any || hosts_cover(wider, asked))
}

fn hosts_cover(wider: &Target, asked: &Target) -> bool {
    match (wider, asked) {
        (Target::Name { host, .. }, Target::Name { host: asked, .. }) => host == asked,
        (Target::Below { suffix, .. }, Target::Name { host, .. }) => is_below(host, suffix),
        (Target::Below { suffix, .. }, Target::Below { suffix: asked, .. }) => {
            asked == suffix || is_below(asked, suffix)
        }
        (Target::Range { range, .. }, Target::Range { range: asked, .. }) => range.covers(asked),
        _ => false,
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

fn port(target: &Target) -> Option<u16> {
    match target {
        Target::Preset(_) | Target::Any => None,
        Target::Name { port, .. } | Target::Below { port, .. } | Target::Range { port, .. } => {
            *port
        }
    }
}

fn ports_cover(wider: Option<u16>, asked: Option<u16>) -> bool {
    match (wider, asked) {
        (None, None) => true,
        (None, Some(asked)) => DEFAULT_PORTS.contains(&asked),
        (Some(_), None) => false,
        (Some(wider), Some(asked)) => wider == asked,
    }
}

fn check_limits(asked: &NetworkLimits, most: &NetworkLimits) -> Result<(), OverCeiling> {
    let wide = |limits: &NetworkLimits| {
        [
            ("connections", limits.connections.map(u64::from)),
            ("bytes_per_sec", limits.bytes_per_sec),
            ("bytes_total", limits.bytes_total),
        ]
    };
    for ((name, asked), (_, most)) in wide(asked).into_iter().zip(wide(most)) {
        // A policy without a limit gets the ceiling's.
        if let (Some(asked), Some(most)) = (asked, most)
            && asked > most
        {
            return Err(OverCeiling::Limit { name, asked, most });
        }
    }
    Ok(())
}

impl NetworkLimits {
    /// The smaller of each.
    pub fn capped(&self, most: &Self) -> Self {
        fn least<T: Ord>(asked: Option<T>, most: Option<T>) -> Option<T> {
            match (asked, most) {
                (Some(asked), Some(most)) => Some(asked.min(most)),
                (asked, most) => asked.or(most),
            }
        }
        Self {
            connections: least(self.connections, most.connections),
            bytes_per_sec: least(self.bytes_per_sec, most.bytes_per_sec),
            bytes_total: least(self.bytes_total, most.bytes_total),
        }
    }
}
