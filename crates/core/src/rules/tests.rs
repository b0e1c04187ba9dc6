//! The rules, and the engine against a reading of them that is as plain as it is slow.

use proptest::prelude::*;

use super::Permission::{None, Read, View, Write};
use super::*;
use crate::limits;

fn rules(rows: &[(&str, Permission, i32)]) -> Rules {
    let rule = |(pattern, permission, priority): &(&str, Permission, i32)| {
        Rule::new(*pattern, *permission).with_priority(*priority)
    };
    Rules::new(rows.iter().map(rule).collect()).unwrap()
}

fn of(rules: &Rules, path: &str) -> Permission {
    rules.decide(path).permission
}

#[test]
fn two_stars_cross_any_number_of_segments_including_none() {
    let rules = rules(&[("**/*", Read, 0), ("**/secrets/**", None, 1)]);
    for hidden in ["/secrets", "/secrets/x", "/a/secrets", "/a/b/secrets/x", "/a/b/secrets/x/y"] {
        assert_eq!(of(&rules, hidden), None, "{hidden}");
    }
    for seen in ["/secret", "/a/secrets.txt", "/a/b/mysecrets/x"] {
        assert_eq!(of(&rules, seen), Read, "{seen}");
    }
}

#[test]
fn one_star_stays_within_a_segment() {
    let rules = rules(&[("*.md", Read, 0), ("docs/a*b*c", View, 0), ("lib/*/x", Write, 0)]);
    assert_eq!(of(&rules, "/x.md"), Read);
    assert_eq!(of(&rules, "/.md"), Read);
    assert_eq!(of(&rules, "/a/x.md"), None);
    assert_eq!(of(&rules, "docs/abc"), View);
    assert_eq!(of(&rules, "docs/a-b-b-c"), View);
    assert_eq!(of(&rules, "docs/ab"), None);
    assert_eq!(of(&rules, "docs/acb"), None);
    assert_eq!(of(&rules, "lib/any/x"), Write);
    assert_eq!(of(&rules, "lib/any/more/x"), None);
}

#[test]
fn a_pattern_without_wildcards_covers_what_is_below_unless_it_is_of_type_file() {
    let all = Rules::new(vec![
        Rule::new("src", Read),
        Rule::new("doc", Read).with_type(RuleType::File),
        Rule::new("/lib/", Write),
    ])
    .unwrap();
    assert_eq!(of(&all, "src"), Read);
    assert_eq!(of(&all, "src/a/b"), Read);
    assert_eq!(of(&all, "doc"), Read);
    assert_eq!(of(&all, "doc/a"), None);
    assert_eq!(of(&all, "lib/a"), Write);
}

#[test]
fn priority_wins_over_type_and_type_over_specificity() {
    let make = |file, directory, glob| {
        let rules = vec![
            Rule::new("a/x", Read).with_type(RuleType::File).with_priority(file),
            Rule::new("a", View).with_type(RuleType::Directory).with_priority(directory),
            Rule::new("a/*", Write).with_priority(glob),
        ];
        of(&Rules::new(rules).unwrap(), "a/x")
    };
    assert_eq!(make(0, 0, 0), Read);
    assert_eq!(make(0, 1, 0), View);
    assert_eq!(make(0, 1, 2), Write);
    assert_eq!(make(-1, 0, 0), View);
}

#[test]
fn the_more_specific_pattern_wins() {
    let less_to_more = [
        ["**", "**/*"],
        ["**/*", "**/*.md"],
        ["**/*.md", "**/docs/*.md"],
        ["**/a/b/*", "a/**"],
        ["a/**", "a/*/c"],
        ["a/*", "a/x*"],
        ["*/b", "a/b"],
    ];
    for [less, more] in less_to_more {
        let kind = |pattern: &str| Rule::new(pattern, Read).with_type(RuleType::Glob);
        let weight = |pattern: &str| pattern::Pattern::parse(&kind(pattern)).unwrap().weight();
        assert!(weight(less) < weight(more), "{less} before {more}");
    }
}

#[test]
fn of_equal_rules_the_later_one_wins_so_that_own_rules_are_on_top_of_a_preset() {
    let draft: RulesDraft = serde_json::from_str(
        r#"{"preset":"read-only","rules":[{"pattern":"**/*","permission":"write"}]}"#,
    )
    .unwrap();
    assert_eq!(of(&draft.check().unwrap(), "a"), Write);
}

#[test]
fn a_hidden_directory_hides_what_is_below_except_for_rules_of_a_higher_priority() {
    let low = rules(&[("**/*", Read, 0), ("private", None, 5), ("private/ok", Write, 5)]);
    assert_eq!(of(&low, "private/ok"), None);
    let high = rules(&[("**/*", Read, 0), ("private", None, 5), ("private/ok", Write, 6)]);
    assert_eq!(of(&high, "private"), None);
    assert!(high.decide("private").may_lead_on);
    assert_eq!(of(&high, "private/ok"), Write);
    assert_eq!(of(&high, "private/other"), None);
    // A rule that opens one level does not open all: the rule for all is below the one that hides.
    let deep = rules(&[("**/*", Read, 0), ("p/**", None, 5), ("p/*", View, 6)]);
    assert_eq!(of(&deep, "p/a"), View);
    assert_eq!(of(&deep, "p/a/b"), None);
}

#[test]
fn the_root_is_never_hidden() {
    let rules = rules(&[("**", None, 0), ("src/**", Read, 0)]);
    assert_eq!(of(&rules, "/"), View);
    assert_eq!(of(&rules, "src/a"), Read);
    assert_eq!(of(&rules, "lib"), None);
    // Its own attributes may be changed if the whole tree may be.
    assert_eq!(of(&super::tests::rules(&[("**/*", Write, 0)]), "/"), Write);
    assert_eq!(of(&super::tests::rules(&[("**/*", Write, 0), ("**", Read, 1)]), "/"), Read);
}

#[test]
fn a_directory_that_no_rule_matches_may_show_the_way() {
    let rules = rules(&[("a/b/*.md", Read, 0), ("**/x.txt", View, 0)]);
    assert!(rules.decide("a").may_lead_on && rules.decide("a/b").may_lead_on);
    assert_eq!(of(&rules, "a/b"), None);
    assert!(rules.decide("c/d").may_lead_on, "a file x.txt may be there");
    let only = super::tests::rules(&[("a/b/*.md", Read, 0)]);
    assert!(!only.decide("c").may_lead_on);
    assert!(!only.decide("a/b/c").may_lead_on);
}

#[test]
fn a_decision_names_the_rule_that_made_it() {
    let rules = RulesDraft::from(RulePreset::AgentSafe).check().unwrap();
    let why = |path: &str| rules.decide(path).to_string();
    assert_eq!(why("src/main.rs"), "read: rule **/* = read");
    assert_eq!(why("output/x"), "write: rule /output/** = write @10");
    assert_eq!(why("a/.env.local"), "none: rule **/.env* = none @100");
    assert_eq!(why(".git"), "none: rule **/.git/** = none @50");
    assert_eq!(
        why("a/.envs/b"),
        "none: a directory above it is hidden by rule **/.env* = none @100"
    );
    assert_eq!(Rules::new(vec![]).unwrap().decide("x").to_string(), "none: no rule matches");
}

#[test]
fn rules_are_read_from_a_name_a_list_or_an_object() {
    let read = |text: &str| serde_json::from_str::<RulesDraft>(text);
    assert_eq!(read(r#""agent-safe""#).unwrap(), RulePreset::AgentSafe.into());
    let list = read(r#"[{"pattern":"a","permission":"read","type":"file","priority":3}]"#).unwrap();
    let rule = Rule::new("a", Read).with_type(RuleType::File).with_priority(3);
    assert_eq!(list, RulesDraft { preset: Option::None, rules: vec![rule] });
    let back = serde_json::to_string(&list).unwrap();
    assert_eq!(read(&back).unwrap(), list);
    assert!(read(r#""agent-save""#).unwrap_err().to_string().contains("agent-safe"));
    assert!(read(r#"[{"pattern":"a","permission":"all"}]"#).is_err());
    assert!(read(r#"[{"pattern":"a","permission":"read","prio":1}]"#).is_err());
    let many = format!("[{}]", vec![r#"{"pattern":"a","permission":"read"}"#; 300].join(","));
    assert!(read(&many).unwrap_err().to_string().contains("256"));
}

#[test]
fn patterns_that_would_be_misunderstood_are_refused() {
    let problem = |rule: Rule| Rules::new(vec![rule]).unwrap_err().to_string();
    for odd in ["", "a//b", "a/../b", "./a", "a**", "**.md", "*.{key,pem}", "*.[ch]", "?*", "*/"] {
        assert!(Rules::new(vec![Rule::new(odd, Read)]).is_err(), "{odd}");
    }
    assert!(problem(Rule::new("a*", Read).with_type(RuleType::File)).contains("type glob"));
    let deep = vec!["a"; limits::RULE_SEGMENTS_MAX + 1].join("/");
    assert!(problem(Rule::new(deep, Read)).contains("segments"));
    let many = vec![Rule::new("a", Read); limits::RULES_MAX + 1];
    assert!(Rules::new(many).unwrap_err().to_string().contains("257"));
    let long = vec![Rule::new("a".repeat(limits::RULE_PATTERN_MAX_BYTES), Read); 65];
    assert_eq!(Rules::new(long).unwrap_err(), InvalidRules::TooLong);
    // Names that exist: routes of web frameworks.
    assert_eq!(of(&rules(&[("app/[id]/page.tsx", Read, 0)]), "app/[id]/page.tsx"), Read);
}

#[test]
fn equal_states_mean_that_a_directory_may_change_its_place() {
    let rules = RulesDraft::from(RulePreset::Development).check().unwrap();
    let at = |path: &str| {
        path.split('/').fold(rules.root(), |state, name| rules.step(&state, name.as_bytes()).1)
    };
    assert_eq!(at("a"), at("b/c/d"));
    assert_ne!(at("secrets"), at("b"));
    let rules = super::tests::rules(&[("**/*", Write, 0), ("keep/*/x", Read, 1)]);
    let at = |path: &str| {
        path.split('/').fold(rules.root(), |state, name| rules.step(&state, name.as_bytes()).1)
    };
    assert_ne!(at("keep/dir"), at("dir"), "x below it is protected only there");
    assert_eq!(at("keep/dir/y"), at("dir"));
}

#[test]
fn plain_rules_are_those_that_mounts_keep() {
    let plain = |rows| rules(rows).plain();
    let root = |root, writable: &[&str]| {
        let writable = writable.iter().map(|path| (*path).to_owned()).collect();
        Some(Plain { root, writable })
    };
    use PlainAccess as P;
    assert_eq!(plain(&[("**/*", Write, 0)]), root(P::Write, &[]));
    assert_eq!(plain(&[("**", Read, 0)]), root(P::Read, &[]));
    assert_eq!(plain(&[("/", Read, 0)]), root(P::Read, &[]));
    let two = [("**/*", Read, 0), ("out/**", Write, 0), ("out/x", Write, 1), ("tmp", Write, 0)];
    assert_eq!(plain(&two), root(P::Read, &["out", "tmp"]));
    assert_eq!(plain(&[("**/*", Write, 0), ("vendor", Read, 0)]), Option::None);
    assert_eq!(plain(&[("**/*", Read, 0), ("a", Write, 0), ("a/b", Read, 1)]), Option::None);
    assert_eq!(plain(&[("**/*", Read, 0), ("*.md", Write, 0)]), Option::None);
    assert_eq!(plain(&[("**/*", View, 0)]), Option::None);
    assert_eq!(plain(&[("src/**", Read, 0)]), Option::None);
    // A higher rule for all leaves nothing to the others.
    assert_eq!(plain(&[("**/*", Read, 9), ("out/**", Write, 0)]), root(P::Read, &[]));
    assert_eq!(plain(&[("unnamed-0", Write, 0), ("**/*", Read, 0)]), root(P::Read, &["unnamed-0"]));
}

/// A second reading of the rules, from their text alone, by recursion over whole paths.
mod brute {
    use super::*;

    fn name(pattern: &str, text: &str) -> bool {
        match pattern.split_once('*') {
            Option::None => pattern == text,
            Some((head, tail)) => text
                .strip_prefix(head)
                .is_some_and(|rest| (0..=rest.len()).any(|skip| name(tail, &rest[skip..]))),
        }
    }

    fn glob(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], []) => true,
            (["**", rest @ ..], path) => (0..=path.len()).any(|skip| glob(rest, &path[skip..])),
            ([first, rest @ ..], [at, below @ ..]) => name(first, at) && glob(rest, below),
            _ => false,
        }
    }

    fn kind(rule: &Rule) -> RuleType {
        let other = if rule.pattern.contains('*') { RuleType::Glob } else { RuleType::Directory };
        rule.kind.unwrap_or(other)
    }

    fn matches(rule: &Rule, path: &[&str]) -> bool {
        let pattern: Vec<&str> = rule.pattern.trim_matches('/').split('/').collect();
        match kind(rule) {
            RuleType::File => pattern == path,
            RuleType::Directory => path.starts_with(&pattern),
            RuleType::Glob => glob(&pattern, path),
        }
    }

    type Rank = (i32, u8, bool, usize, usize, usize, usize, usize);

    fn rank(rule: &Rule, at: usize) -> Rank {
        let segments: Vec<&str> = rule.pattern.trim_matches('/').split('/').collect();
        let is_plain = |segment: &&&str| !segment.contains('*');
        let kind = match kind(rule) {
            RuleType::Glob => 0,
            RuleType::Directory => 1,
            RuleType::File => 2,
        };
        (
            rule.priority,
            kind,
            !rule.pattern.contains('*'),
            segments.iter().take_while(is_plain).count(),
            segments.iter().filter(is_plain).count(),
            segments.iter().filter(|segment| **segment != "**").count(),
            segments.iter().map(|segment| segment.replace('*', "").len()).sum(),
            at,
        )
    }

    /// The permission of a path, and the priority with which everything below it is hidden.
    pub fn decide(rules: &[Rule], path: &[&str]) -> (Permission, Option<i32>) {
        let [above @ .., _] = path else { return (View, Option::None) };
        let (_, hidden) = decide(rules, above);
        let first = rules.iter().enumerate().filter(|(_, rule)| matches(rule, path));
        let first = first.max_by_key(|(at, rule)| rank(rule, *at)).map(|(_, rule)| rule);
        match first {
            Some(rule) if hidden.is_none_or(|hidden| rule.priority > hidden) => {
                let hides = (rule.permission == None).then_some(rule.priority);
                (rule.permission, hides.or(hidden))
            }
            _ => (None, hidden),
        }
    }
}

const NAMES: [&str; 6] = ["a", "b", "ab", "ba", "aab", "c.md"];

fn a_rule() -> impl Strategy<Value = Rule> {
    let segment = prop::sample::select(vec![
        "a", "b", "ab", "ba", "*", "**", "a*", "*b", "*a*", "*.md", "a*b", "c.md",
    ]);
    let pattern = prop::collection::vec(segment, 1..4).prop_map(|segments| segments.join("/"));
    let kind = prop::sample::select(vec![
        Option::None,
        Some(RuleType::Glob),
        Some(RuleType::Directory),
        Some(RuleType::File),
    ]);
    let permission = prop::sample::select(Permission::ALL.to_vec());
    (pattern, permission, kind, -1..3).prop_map(|(pattern, permission, kind, priority)| {
        let kind = kind.filter(|kind| *kind == RuleType::Glob || !pattern.contains('*'));
        Rule { pattern, permission, kind, priority }
    })
}

fn a_path() -> impl Strategy<Value = Vec<&'static str>> {
    prop::collection::vec(prop::sample::select(NAMES.to_vec()), 0..5)
}

/// All paths of up to two more names.
fn below<'a>(path: &[&'a str]) -> Vec<Vec<&'a str>> {
    let one = |path: &[&'a str]| -> Vec<Vec<&'a str>> {
        NAMES.iter().map(|name| [path, &[*name]].concat()).collect()
    };
    let first = one(path);
    first.iter().flat_map(|path| one(path)).chain(first.clone()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_engine_decides_as_a_plain_reading_does(
        rules in prop::collection::vec(a_rule(), 0..8),
        paths in prop::collection::vec(a_path(), 1..12),
    ) {
        let engine = Rules::new(rules.clone()).unwrap();
        for path in paths.iter().filter(|path| !path.is_empty()) {
            let decision = engine.decide(path.join("/"));
            prop_assert_eq!(decision.permission, brute::decide(&rules, path).0, "{:?}", path);
            let visible = below(path).iter().any(|path| brute::decide(&rules, path).0 > None);
            prop_assert!(decision.may_lead_on || !visible, "{:?} hides the way", path);
        }
    }

    #[test]
    fn directories_in_equal_states_show_equal_things(
        rules in prop::collection::vec(a_rule(), 0..6),
        one in a_path(),
        other in a_path(),
    ) {
        let engine = Rules::new(rules.clone()).unwrap();
        let state = |path: &[&str]| {
            path.iter().fold(engine.root(), |state, name| engine.step(&state, name.as_bytes()).1)
        };
        if state(&one) == state(&other) {
            for (a, b) in below(&one).iter().zip(below(&other)) {
                prop_assert_eq!(brute::decide(&rules, a).0, brute::decide(&rules, &b).0);
            }
        }
    }

    #[test]
    fn plain_rules_decide_as_their_mounts_do(
        rules in prop::collection::vec(a_rule(), 0..4),
        paths in prop::collection::vec(a_path(), 1..12),
    ) {
        let all = Rule::new("**/*", Read);
        let rules: Vec<Rule> = rules.into_iter().chain([all]).collect();
        let engine = Rules::new(rules.clone()).unwrap();
        let Some(plain) = engine.plain() else { return Ok(()) };
        for path in paths.iter().filter(|path| !path.is_empty()) {
            let text = path.join("/");
            let is_in = |dir: &String| text == *dir || text.starts_with(&format!("{dir}/"));
            let expected = match plain.root {
                PlainAccess::Write => Write,
                PlainAccess::Read if plain.writable.iter().any(is_in) => Write,
                PlainAccess::Read => Read,
            };
            prop_assert_eq!(brute::decide(&rules, path).0, expected, "{:?}", path);
        }
    }
}
