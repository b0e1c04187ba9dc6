//! The policy against a slow reading of its definition.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn compiled(policy: serde_json::Value) -> Compiled {
    with(policy, Admin::default())
}

fn with(policy: serde_json::Value, admin: Admin) -> Compiled {
    let policy = serde_json::from_value(policy).expect("a policy");
    let rules = Rules { policy, ..Rules::default() };
    Compiled::new(&rules, &Presets::built_in(), &admin)
}

fn admin(ceiling: Option<serde_json::Value>, ranges: &[&str]) -> Admin {
    Admin {
        ceiling: ceiling.map(|json| serde_json::from_value(json).expect("a ceiling")),
        ranges: ranges.iter().map(|range| range.parse().expect("a range")).collect(),
    }
}

fn host(text: &str) -> Host {
    match text.parse::<IpAddr>() {
        Ok(address) => Host::Address(address.to_canonical()),
        Err(_) => Host::Name(text.to_owned()),
    }
}

/// The rule that allows it, or what else there is to say.
fn found(compiled: &Compiled, to: &str, port: u16) -> String {
    match compiled.find(&host(to), port) {
        Finding::Allowed(allowed) => allowed.rule,
        Finding::Denied { rule, .. } => format!("denied by {rule}"),
        Finding::Unlisted => "unlisted".to_owned(),
    }
}

#[test]
fn deny_wins_and_entries_mean_what_they_say() {
    let policy = compiled(json!({
        "allow": ["a.example", "*.b.example", "git.example:22", "192.0.2.0/24", "python"],
        "deny": ["no.b.example", "*.deep.b.example:80", "192.0.2.7"],
    }));
    for (to, port, expected) in [
        ("a.example", 443, "a.example"),
        ("a.example", 80, "a.example"),
        ("a.example", 22, "unlisted"),
        ("x.a.example", 443, "unlisted"),
        ("b.example", 443, "unlisted"),
        ("x.b.example", 443, "*.b.example"),
        ("xb.example", 443, "unlisted"),
        ("no.b.example", 443, "denied by no.b.example"),
        ("no.b.example", 22, "denied by no.b.example"),
        ("x.deep.b.example", 80, "denied by *.deep.b.example:80"),
        ("x.deep.b.example", 443, "*.b.example"),
        ("git.example", 22, "git.example:22"),
        ("git.example", 443, "unlisted"),
        ("192.0.2.9", 443, "192.0.2.0/24"),
        ("::ffff:192.0.2.9", 443, "192.0.2.0/24"),
        ("192.0.2.7", 443, "denied by 192.0.2.7"),
        ("192.0.3.1", 443, "unlisted"),
        ("pypi.org", 443, "pypi.org"),
        ("files.pypi.org", 443, "unlisted"),
    ] {
        assert_eq!(found(&policy, to, port), expected, "{to}:{port}");
    }
}

#[test]
fn the_most_specific_entry_counts_and_equal_ones_add_up() {
    let policy = compiled(json!({ "allow": [
        "*",
        { "host": "*.example", "access": "read-only" },
        { "host": "a.example", "access": "full", "paths": ["/x"] },
        { "host": "a.example", "access": "read-only" },
        "b.example",
        { "host": "b.example", "access": "read-only" },
    ] }));
    let requests = |to: &str, port| match policy.find(&host(to), port) {
        Finding::Allowed(allowed) => allowed.requests.iter().flatten().count(),
        other => panic!("{to}: {other:?}"),
    };
    assert_eq!(requests("c.test", 5432), 0);
    assert_eq!(requests("c.example", 443), 1);
    assert_eq!(requests("a.example", 443), 2);
    assert_eq!(requests("b.example", 443), 0);
    assert!(policy.reads(&host("c.example"), 443) && !policy.reads(&host("b.example"), 443));
}

#[test]
fn the_ceiling_bounds_every_policy() {
    let most = json!({ "allow": [
        "*.example",
        { "host": "ro.test", "access": "read-only" },
    ], "deny": ["no.example"], "limits": { "connections": 5 } });
    let policy = json!({ "allow": ["*"], "on_deny": "audit", "limits": { "connections": 9 } });
    let bounded = with(policy.clone(), admin(Some(most), &[]));
    for (to, expected) in [
        ("a.example", "*"),
        ("ro.test", "*"),
        ("no.example", "denied by no.example"),
        ("a.test", "denied by egress_ceiling"),
    ] {
        assert_eq!(found(&bounded, to, 443), expected, "{to}");
    }
    assert!(bounded.reads(&host("ro.test"), 443), "the ceiling's rules for requests");
    assert_eq!(bounded.limits.connections, Some(5));
    let none = with(policy.clone(), admin(Some(json!("none")), &[]));
    assert_eq!(found(&none, "a.example", 443), "denied by egress_ceiling");
    let audits =
        with(policy, admin(Some(json!({ "allow": ["b.example"], "on_deny": "audit" })), &[]));
    assert_eq!(found(&audits, "a.test", 443), "*");
}

#[test]
fn names_are_mapped_only_where_a_connection_is_possible() {
    let maps = |policy: serde_json::Value, name: &str| compiled(policy).maps(name);
    let policy = json!({ "allow": ["a.example:22", "*.b.example"], "deny": ["no.b.example"] });
    for (name, expected) in [
        ("a.example", true),
        ("x.b.example", true),
        ("b.example", false),
        ("no.b.example", false),
        ("c.example", false),
    ] {
        assert_eq!(maps(policy.clone(), name), expected, "{name}");
    }
    assert!(maps(json!({ "allow": ["a.example"], "deny": ["a.example:80"] }), "a.example"));
    for on_deny in ["ask", "audit"] {
        let policy = json!({ "allow": [], "deny": ["no.example"], "on_deny": on_deny });
        assert!(maps(policy.clone(), "any.example") && !maps(policy, "no.example"));
    }
}

#[test]
fn only_addresses_of_others_are_dialed() {
    let policy = json!({ "allow": ["*"], "deny": ["8.8.8.0/24", "1.1.1.1:53"] });
    let policy = with(policy, admin(None, &["10.0.0.0/8", "198.18.0.0/15", "fe80::/10"]));
    let may =
        |to: &str, port, reach| policy.may_dial(to.parse().expect("one"), port, reach).is_ok();
    let both = [Reach::Public, Reach::PublicAndRanges];
    for reach in both {
        assert!(may("9.9.9.9", 443, reach) && may("2606:4700::1111", 443, reach));
        for never in ["127.0.0.1", "169.254.169.254", "::1", "198.18.0.9", "fe80::1", "8.8.8.8"] {
            assert!(!may(never, 443, reach), "{never}");
        }
        assert!(may("1.1.1.1", 443, reach) && !may("1.1.1.1", 53, reach));
        assert!(!may("::ffff:169.254.169.254", 443, reach));
    }
    assert_eq!(both.map(|reach| may("10.1.2.3", 443, reach)), [false, true]);
}

#[test]
fn secrets_go_to_their_hosts_and_ports() {
    let hosts = ["a.example", "*.b.example", "c.example:8080"];
    let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
    let value = SecretValue::new("hush".to_owned());
    let secret = Secret { placeholder: "P".to_owned(), value, hosts };
    let secrets = std::collections::BTreeMap::from([("T".to_owned(), secret)]);
    let rules = Rules { secrets, ..Rules::default() };
    let compiled = Compiled::new(&rules, &Presets::built_in(), &Admin::default());
    for (name, port, tls, plain) in [
        ("a.example", 443, true, false),
        ("a.example", 80, true, false),
        ("a.example", 8443, false, false),
        ("x.b.example", 443, true, false),
        ("b.example", 443, false, false),
        ("evila.example", 443, false, false),
        ("c.example", 8080, true, true),
        ("c.example", 443, false, false),
    ] {
        let gets = |transport| compiled.secrets_for(name, port, transport).next().is_some();
        assert_eq!((gets(Transport::Tls), gets(Transport::Plain)), (tls, plain), "{name}:{port}");
    }
}

/// A target as a list of labels, and how well it fits: the number of labels that it names.
fn fits(entry: &str, name: &str, port: u16, ports: &[u16]) -> Option<usize> {
    if entry == "*" {
        return Some(0);
    }
    let (target, named) = match entry.split_once(':') {
        Some((target, named)) => (target, Some(named.parse::<u16>().expect("a port"))),
        None => (entry, None),
    };
    let right_port = match named {
        Some(named) => named == port,
        None => ports.is_empty() || ports.contains(&port),
    };
    let labels = |text: &str| text.split('.').rev().map(str::to_owned).collect::<Vec<_>>();
    let (target, name) = (labels(target), labels(name));
    let right_host = match target.last().map(String::as_str) {
        Some("*") => {
            let suffix = &target[..target.len() - 1];
            name.len() > suffix.len() && name.starts_with(suffix)
        }
        _ => target == name,
    };
    // An exact name is better than any suffix.
    let better = if target.last().is_some_and(|label| label == "*") { target.len() } else { 100 };
    (right_port && right_host).then_some(better)
}

fn any_name() -> impl Strategy<Value = String> {
    "([ab]\\.){1,2}example"
}

fn any_entry() -> impl Strategy<Value = String> {
    prop_oneof![
        (any_name(), "(:(22|80|443))?").prop_map(|(name, port)| name + &port),
        (any_name(), "(:(22|80|443))?").prop_map(|(name, port)| format!("*.{name}{port}")),
        Just("*".to_owned()),
    ]
}

proptest! {
    #[test]
    fn decisions_are_those_of_a_slow_reading(
        allow in proptest::collection::vec((any_entry(), any::<bool>()), 0..5),
        deny in proptest::collection::vec(any_entry(), 0..3),
        name in any_name(),
        port in prop_oneof![Just(22_u16), Just(80), Just(443), Just(8080)],
    ) {
        let entry = |(text, rules): &(String, bool)| if *rules && text != "*" { json!({ "host": text, "access": "read-only" }) } else { json!(text) };
        let entries: Vec<_> = allow.iter().map(entry).collect();
        let compiled = compiled(json!({ "allow": entries, "deny": deny }));
        let denied = deny.iter().any(|entry| fits(entry, &name, port, &[]).is_some());
        let best = allow.iter().filter_map(|(entry, _)| fits(entry, &name, port, &[80, 443])).max();
        let deciding: Vec<_> = allow
            .iter()
            .filter(|(entry, _)| best.is_some() && fits(entry, &name, port, &[80, 443]) == best)
            .collect();
        let is_read = deciding.iter().all(|(entry, rules)| *rules && entry != "*");
        match compiled.find(&Host::Name(name.clone()), port) {
            Finding::Denied { .. } => prop_assert!(denied),
            Finding::Unlisted => prop_assert!(!denied && deciding.is_empty()),
            Finding::Allowed(allowed) => {
                prop_assert!(!denied && !deciding.is_empty());
                prop_assert_eq!(!allowed.requests.is_empty(), is_read);
                prop_assert!(compiled.maps(&name));
            }
        }
    }
}
