//! Every form of an entry, every way to write it wrong, and the ceiling.

use proptest::prelude::*;

use super::*;

/// What a caller reads of an error.
#[derive(Debug, PartialEq)]
struct Message(String);

impl Message {
    fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl std::ops::Deref for Message {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn network(json: serde_json::Value) -> Result<Network, Message> {
    serde_json::from_value(json).map_err(Message::of)
}

fn policy(json: serde_json::Value) -> Policy {
    serde_json::from_value(json).expect("a policy")
}

#[test]
fn every_form_of_an_entry_is_read_and_written_in_its_one_form() {
    for (text, expected) in [
        ("*", "*"),
        ("python", "python"),
        ("api.example.com", "api.example.com"),
        ("API.Example.com.", "api.example.com"),
        ("*.cdn.example.com", "*.cdn.example.com"),
        ("git.example.com:22", "git.example.com:22"),
        ("*.example.com:8443", "*.example.com:8443"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:5432", "192.0.2.7:5432"),
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("10.0.0.0/8:22", "10.0.0.0/8:22"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:db8::/32", "2001:db8::/32"),
        ("[2001:db8::1]:443", "[2001:db8::1]:443"),
        ("[2001:db8::/32]:443", "[2001:db8::/32]:443"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ] {
        let entry: Entry = text.parse().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(entry.to_string(), expected, "{text}");
        assert_eq!(entry.to_string().parse::<Entry>().as_ref(), Ok(&entry));
        let json = serde_json::to_value(&entry).expect("JSON");
        assert_eq!(json, serde_json::json!(expected));
    }
}

#[test]
fn a_wrong_entry_is_named_with_what_is_wrong() {
    let long = format!("{}.example.com", "x".repeat(64));
    let longer = format!("{}.com", "a.".repeat(300));
    for (text, part) in [
        ("", "empty"),
        ("https://api.example.com/x", "write its host, such as \"api.example.com\""),
        ("api.example.com:0", "port"),
        ("api.example.com:65536", "port"),
        ("api.example.com:+22", "port"),
        ("api.example.com:", "port"),
        ("python:443", "preset has no port"),
        ("Python", "preset has lower case"),
        ("a*.example.com", "first part"),
        ("*.*.example.com", "first part"),
        ("*.", "part of a host name"),
        ("-a.example.com", "part of a host name"),
        ("a..example.com", "part of a host name"),
        ("a b.example.com", "part of a host name"),
        ("user@example.com", "part of a host name"),
        ("example.com/path", "part of a host name"),
        ("bücher.example", "xn--"),
        ("127.1", "four decimal"),
        ("0x7f.0.0.1", "four decimal"),
        ("1.2.3.4.5", "four decimal"),
        ("example.0x10", "four decimal"),
        ("010.0.0.1", "four decimal"),
        ("10.0.0.1/8", "write 10.0.0.0/8"),
        ("10.0.0.0/33", "prefix"),
        ("10.0.0.0/+8", "prefix"),
        ("10.0.0.0/", "prefix"),
        ("[2001:db8::1", "part of a host name"),
        ("[2001:db8::1]443", "part of a host name"),
        ("fe80::1%lo", "port"),
        (long.as_str(), "part of a host name"),
        (longer.as_str(), "too long"),
    ] {
        let wrong = text.parse::<Entry>().expect_err(text).to_string();
        assert!(wrong.contains(part), "{text}: {wrong}");
        let start: String = text.chars().take(40).collect();
        assert!(wrong.contains(&start) && wrong.len() < 700, "{text}: {wrong}");
    }
}

#[test]
fn a_network_is_a_word_or_a_policy() {
    use serde_json::json;
    assert_eq!(network(json!("none")), Ok(Network::None));
    assert_eq!(network(json!("open")), network(json!({ "allow": ["*"] })));
    assert_eq!(Network::open().policy().map(|open| open.allow.len()), Some(1));
    for (wrong, part) in [
        (json!("closed"), "\"none\", \"open\""),
        (json!(true), "\"none\", \"open\""),
        (json!({ "allow": "python" }), "a list of network entries"),
        (json!({ "allow": ["a b"] }), "network entry \"a b\""),
        (json!({ "alow": [] }), "unknown field `alow`"),
        (json!({ "on_deny": "explode" }), "unknown variant"),
        (json!({ "allow": vec!["a.b"; limits::NETWORK_ENTRIES_MAX + 1] }), "more than 256"),
    ] {
        let error = network(wrong.clone()).expect_err("wrong");
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

#[test]
fn rules_for_requests_are_read_checked_and_written_again() {
    use serde_json::json;
    for object in [
        json!({ "host": "api.example.com", "access": "read-only", "paths": ["/repos/**"] }),
        json!({ "host": "*.example.com:8443", "access": "full" }),
        json!({ "host": "api.example.com", "methods": ["GET", "POST"] }),
    ] {
        let entry: Entry = serde_json::from_value(object.clone()).expect("an entry");
        assert!(entry.requests.is_some());
        assert_eq!(serde_json::to_value(&entry).expect("JSON"), object);
    }
    let plain: Entry = serde_json::from_value(json!({ "host": "a.example" })).expect("an entry");
    assert_eq!(plain, "a.example".parse().expect("the same"));
    for (wrong, part) in [
        (json!({ "access": "full" }), "missing field `host`"),
        (json!({ "host": "a.example", "verbs": ["GET"] }), "unknown field `verbs`"),
        (json!({ "host": "a.example", "access": "full", "methods": ["GET"] }), "not both"),
        (json!({ "host": "a.example", "methods": [] }), "methods is empty"),
        (json!({ "host": "a.example", "methods": ["G ET"] }), "not an HTTP method"),
        (json!({ "host": "a.example", "paths": ["x"] }), "begin with /"),
        (json!({ "host": "a.example", "paths": ["/a/../b"] }), ". or .."),
        (json!({ "host": "a.example", "paths": ["/a%2fb"] }), "decoded path"),
        (json!({ "host": "a.example", "paths": ["/a?b"] }), "query"),
        (json!({ "host": "a.example", "paths": ["/a**"] }), "whole segment"),
        (json!({ "host": "a.example", "paths": ["//a"] }), "empty segment"),
        (json!({ "host": "python", "access": "read-only" }), "need a host name"),
        (json!({ "host": "*", "access": "read-only" }), "need a host name"),
        (json!({ "host": "10.0.0.0/8", "paths": ["/a"] }), "need a host name"),
    ] {
        let error = serde_json::from_value::<Entry>(wrong.clone()).expect_err("wrong").to_string();
        assert!(error.contains(part), "{wrong}: {error}");
    }
}

#[test]
fn presets_come_with_the_program_and_admins_replace_them() {
    let mut presets = Presets::built_in();
    for name in ["python", "node", "rust", "go", "debian", "git"] {
        assert!(presets.get(name).is_some_and(|entries| !entries.is_empty()), "{name}");
    }
    let unknown =
        policy(serde_json::json!({ "allow": ["pyton"] })).check(&presets).expect_err("no");
    assert_eq!(unknown.field, "network.allow");
    assert!(unknown.problem.contains("python"), "{unknown}");
    let mirror: Vec<Entry> = vec!["mirror.example".parse().expect("an entry")];
    presets.set("python", mirror.clone()).expect("replaces");
    presets.set("corp", mirror.clone()).expect("adds");
    assert_eq!(presets.get("python"), Some(mirror.as_slice()));
    let nested = vec!["python".parse().expect("an entry")];
    for (name, entries) in [("a.b", mirror), ("x", nested), ("y", Vec::new())] {
        assert!(presets.set(name, entries).is_err(), "{name}");
    }
}

#[test]
fn a_patch_replaces_or_adds_and_the_last_word_counts() {
    let before = network(serde_json::json!({ "allow": ["a.example", "b.example"] })).expect("one");
    let after = |patch: serde_json::Value| {
        let patch: NetworkPatch = serde_json::from_value(patch).expect("a patch");
        serde_json::to_value(patch.applied(&before)).expect("JSON")
    };
    use serde_json::json;
    assert_eq!(after(json!({})), json!({ "allow": ["a.example", "b.example"] }));
    assert_eq!(after(json!({ "policy": "none" })), json!("none"));
    assert_eq!(after(json!({ "allow": [] })), json!({ "allow": [] }));
    let added = after(json!({ "add_allow": [{ "host": "a.example", "access": "read-only" }] }));
    let rule = json!({ "host": "a.example", "access": "read-only" });
    assert_eq!(added, json!({ "allow": ["b.example", rule] }));
    let denied = after(json!({ "add_deny": ["a.example"], "on_deny": "ask" }));
    let expected = json!({ "allow": ["b.example"], "deny": ["a.example"], "on_deny": "ask" });
    assert_eq!(denied, expected);
    let mixed: NetworkPatch =
        serde_json::from_value(json!({ "policy": "open", "allow": [] })).expect("a patch");
    assert!(mixed.is_mixed());
}

#[test]
fn secrets_have_names_hosts_and_values_and_show_no_value() {
    let secrets = |json: serde_json::Value| -> Result<(), Message> {
        let secrets = serde_json::from_value(json).map_err(Message::of)?;
        assert!(!format!("{secrets:?}").contains("hush"));
        check_secrets(&secrets).map_err(Message::of)
    };
    use serde_json::json;
    let one = |hosts: &[&str], value: &str| json!({ "TOKEN": { "hosts": hosts, "value": value } });
    assert_eq!(secrets(one(&["api.example.com", "*.example.org"], "hush")), Ok(()));
    for (wrong, part) in [
        (one(&[], "hush"), "hosts is empty"),
        (one(&["*"], "hush"), "not a host"),
        (one(&["10.0.0.1"], "hush"), "not a host"),
        (one(&["python"], "hush"), "not a host"),
        (one(&["a.example"], ""), "value is empty"),
        (one(&["a.example"], "hush\r\nX: y"), "line break"),
        (one(&["a.example"], &"x".repeat(limits::SECRET_VALUE_MAX_BYTES + 1)), "over"),
        (json!({ "A-B": { "hosts": ["a.example"], "value": "hush" } }), "environment variable"),
    ] {
        let error = secrets(wrong).expect_err(part);
        assert!(error.contains(part) && !error.contains("hush"), "{error}");
    }
}

#[test]
fn the_ceiling_covers_what_is_narrower_and_names_what_is_not() {
    use serde_json::json;
    let presets = Presets::built_in();
    let most = json!({
        "allow": ["python", "*.example.com", "git.example.org:22", "10.1.0.0/16",
            { "host": "api.example.net", "access": "read-write", "paths": ["/repos/**"] }],
        "deny": ["secret.example.com"],
        "limits": { "connections": 10 },
    });
    let most = network(most).expect("a ceiling");
    let check = |asked: serde_json::Value| {
        ceiling::check(&network(asked).expect("a policy"), &most, &presets)
    };
    for within in [
        json!("none"),
        json!({ "allow": [] }),
        json!({ "allow": ["python", "pypi.org", "pypi.org:443"] }),
        json!({ "allow": ["*.example.com", "*.a.example.com", "b.example.com:80"] }),
        json!({ "allow": ["10.1.2.3", "git.example.org:22"], "limits": { "connections": 10 } }),
        json!({ "allow": [{ "host": "api.example.net", "access": "read-only", "paths": ["/repos/a/*"] }] }),
        json!({ "allow": ["python"], "on_deny": "ask" }),
    ] {
        assert_eq!(check(within.clone()), Ok(()), "{within}");
    }
    for over in [
        json!("open"),
        json!({ "allow": ["example.com"] }),
        json!({ "allow": ["notexample.com"] }),
        json!({ "allow": ["secret.example.com"] }),
        json!({ "allow": ["b.example.com:22"] }),
        json!({ "allow": ["git.example.org"] }),
        json!({ "allow": ["10.0.0.0/8"] }),
        json!({ "allow": ["node"] }),
        json!({ "allow": ["api.example.net"] }),
        json!({ "allow": [{ "host": "api.example.net", "access": "full", "paths": ["/repos/**"] }] }),
        json!({ "allow": [{ "host": "api.example.net", "access": "read-only" }] }),
        json!({ "allow": ["python"], "on_deny": "audit" }),
        json!({ "allow": ["python"], "limits": { "connections": 11 } }),
    ] {
        assert!(check(over.clone()).is_err(), "{over}");
    }
    let none = ceiling::check(&Network::open(), &Network::None, &presets);
    assert_eq!(none, Err(OverCeiling::NoNetwork));
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let name = "[a-c]{1,2}\\.(example|test)(:(22|80|443))?";
    let text = prop_oneof![
        name.prop_map(|name| name),
        name.prop_map(|name| format!("*.{name}")),
        "10\\.[0-3]\\.0\\.0/16",
        Just("*".to_owned()),
    ];
    text.prop_map(|text| text.parse().expect("generated entries are valid"))
}

fn any_policy() -> impl Strategy<Value = Network> {
    (proptest::collection::vec(any_entry(), 0..4), proptest::collection::vec(any_entry(), 0..2))
        .prop_map(|(allow, deny)| Network::Policy(Policy { allow, deny, ..Policy::default() }))
}

proptest! {
    #[test]
    fn no_text_makes_the_parser_panic_and_what_it_reads_it_writes(text in "\\PC{0,60}") {
        if let Ok(entry) = text.parse::<Entry>() {
            prop_assert_eq!(entry.to_string().parse::<Entry>(), Ok(entry));
        }
    }

    #[test]
    fn addresses_in_a_range_have_its_prefix(bits in any::<u32>(), prefix in 0u8..=32, other in any::<u32>()) {
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
        let range = IpRange::new(std::net::Ipv4Addr::from_bits(bits & mask).into(), prefix).expect("a range");
        let other = std::net::Ipv4Addr::from_bits(other);
        prop_assert_eq!(range.contains(other.into()), (other.to_bits() & mask) == (bits & mask));
        prop_assert_eq!(range.contains(other.to_ipv6_mapped().into()), range.contains(other.into()));
    }

    #[test]
    fn a_wider_ceiling_never_refuses_what_a_narrower_one_covers(asked in any_policy(), most in any_policy(), more in any_entry()) {
        let presets = Presets::built_in();
        if ceiling::check(&asked, &most, &presets).is_err() {
            return Ok(());
        }
        let Network::Policy(mut wider) = most else { unreachable!("policies only") };
        wider.allow.push(more);
        prop_assert_eq!(ceiling::check(&asked, &Network::Policy(wider), &presets), Ok(()));
    }

    #[test]
    fn covering_is_transitive(entries in proptest::collection::vec(any_entry(), 3..12)) {
        let covers = |wide: &Entry, narrow: &Entry| ceiling::target_covers(&wide.target, &narrow.target);
        for a in &entries {
            for b in entries.iter().filter(|b| covers(b, a)) {
                for c in entries.iter().filter(|c| covers(c, b)) {
                    prop_assert!(covers(c, a), "{a} {b} {c}");
                }
            }
        }
    }

    #[test]
    fn a_policy_is_stored_and_read_again(network in any_policy()) {
        let text = serde_json::to_vec(&network).expect("JSON");
        prop_assert_eq!(serde_json::from_slice::<Network>(&text).expect("reads"), network);
    }
}

fn with_secret() -> NetworkTerms {
    use serde_json::json;
    let secrets =
        serde_json::from_value(json!({ "TOKEN": { "hosts": ["a.example"], "value": "hush" } }));
    NetworkTerms::new(Network::open(), &secrets.expect("secrets"))
}

fn change(patch: serde_json::Value) -> NetworkPatch {
    serde_json::from_value(patch).expect("a patch")
}

#[test]
fn a_change_of_secrets_leaves_the_policy_and_the_placeholders() {
    use serde_json::json;
    let before = with_secret();
    assert_eq!(before.patched(&NetworkPatch::default()), Ok(before.clone()));
    let valued = change(json!({ "secrets": { "TOKEN": { "value": "other" } } }));
    let after = before.patched(&valued).expect("a change");
    let (old, new) = (&before.secrets["TOKEN"], &after.secrets["TOKEN"]);
    assert_eq!((&old.placeholder, &old.hosts), (&new.placeholder, &new.hosts));
    assert_ne!(old.value_name("TOKEN"), new.value_name("TOKEN"), "values are told apart");
    assert_eq!(after.policy, before.policy);
    let hosted = change(json!({ "secrets": { "TOKEN": { "hosts": ["b.example"] } } }));
    let after = before.patched(&hosted).expect("a change");
    assert_eq!(
        old.value_name("TOKEN"),
        after.secrets["TOKEN"].value_name("TOKEN"),
        "the same value"
    );
    // A fork begins with new placeholders, and with values under their plain names.
    let fork = before.patched(&valued).expect("a change").renewed();
    assert_eq!(fork.secrets["TOKEN"].value_name("TOKEN"), "TOKEN");
    let none = NetworkTerms::default();
    let added = json!({ "secrets": { "TOKEN": { "hosts": ["a.example"], "value": "x" } } });
    assert!(none.patched(&change(added)).expect("a change").policy.is_none());
}

#[test]
fn a_change_of_secrets_is_whole_or_refused() {
    use serde_json::json;
    let before = with_secret();
    let both = json!({ "secrets": { "TOKEN": { "value": "x" } }, "remove_secrets": ["TOKEN"] });
    for patch in [
        json!({ "secrets": { "OTHER": { "value": "hush" } } }),
        json!({ "secrets": { "OTHER": { "hosts": ["a.example"] } } }),
        json!({ "secrets": { "TOKEN": { "hosts": [] } } }),
        json!({ "secrets": { "TOKEN": { "value": "hush\n" } } }),
        json!({ "secrets": { "1": { "hosts": ["a.example"], "value": "hush" } } }),
        json!({ "remove_secrets": ["OTHER"] }),
        both,
    ] {
        let refused = before.patched(&change(patch.clone())).expect_err("not a change");
        assert!(!refused.to_string().contains("hush"), "{patch}: {refused}");
    }
    let many: serde_json::Map<_, _> = (0..=limits::SECRETS_MAX)
        .map(|n| (format!("N{n}"), json!({ "hosts": ["a.example"], "value": "x" })))
        .collect();
    assert!(before.patched(&change(json!({ "secrets": many }))).is_err());
    let gone = before.patched(&change(json!({ "remove_secrets": ["TOKEN"] }))).expect("a change");
    assert!(gone.secrets.is_empty());
    let mixed = change(json!({ "policy": "none", "remove_secrets": ["TOKEN"] }));
    assert!(!mixed.is_mixed() && change(json!({ "policy": "none", "allow": [] })).is_mixed());
}
