//! Verbs for several sandboxes, and lists of them.

use super::{call, json, ok};
use crate::daemon;
use crate::support::Daemon;

fn create(daemon: &Daemon, name: &str, team: &str) -> String {
    ok(daemon, &["create", "--name", name, "--label", &format!("team={team}")])
}

fn state(daemon: &Daemon, id: &str) -> String {
    daemon.get(id)["state"].as_str().expect("a state").to_owned()
}

#[test]
fn verbs_take_several_all_or_those_with_a_label() {
    let daemon = daemon!();
    let (one, two) = (create(&daemon, "one", "a"), create(&daemon, "two", "a"));
    let three = create(&daemon, "three", "b");
    let both = format!("{one}\n{two}");
    assert_eq!(ok(&daemon, &["stop", "one", &two, "one"]), both);
    assert_eq!(ok(&daemon, &["stop", "--all"]), three, "the others have stopped before");
    assert_eq!(ok(&daemon, &["start", "--label", "team=a"]), both);
    assert_eq!(state(&daemon, &three), "stopped");
    assert_eq!(ok(&daemon, &["pause", "--all"]), both);
    let resumed = json(&daemon, &["resume", "--all", "--json"]);
    assert_eq!(resumed["items"].as_array().map(Vec::len), Some(2), "{resumed}");
    let none = call(&daemon, &["resume", "--all"]);
    assert_eq!((none.code, &*none.stdout), (0, ""), "{none:?}");
    assert!(none.complaint().contains("no sandbox matches"), "{none:?}");

    let asked = call(&daemon, &["rm", "--label", "team=a"]);
    assert_eq!(asked.code, 2, "nobody can be asked: {asked:?}");
    assert_eq!(call(&daemon, &["rm", "one", "--label", "team=a"]).code, 2);
    assert_eq!(ok(&daemon, &["rm", "-y", "--label", "team=a"]), both);
    assert_eq!(daemon.ids(), [three]);
}

#[test]
fn one_that_fails_does_not_keep_a_verb_from_the_others() {
    let daemon = daemon!();
    let id = create(&daemon, "web", "a");
    let ran = call(&daemon, &["stop", "nobody", "web"]);
    assert_eq!((ran.code, ran.stdout.trim()), (1, &*id), "{ran:?}");
    assert!(ran.stderr.contains("nobody") && ran.complaint().contains("1 of 2 failed"), "{ran:?}");
    assert_eq!(state(&daemon, &id), "stopped");
}

#[test]
fn a_list_can_be_ids_a_table_or_lines_of_ones_own() {
    let daemon = daemon!();
    let id = create(&daemon, "web", "blue");
    assert_eq!(ok(&daemon, &["ls", "-q"]), id);
    assert_eq!(ok(&daemon, &["ls", "--format", "{{.name}}/{{.labels.team}}"]), "web/blue");
    let misspelt = call(&daemon, &["ls", "--format", "{{.nam}}"]);
    assert_eq!(misspelt.code, 2);
    assert!(misspelt.complaint().contains("created_at"), "{misspelt:?}");
    let table = ok(&daemon, &["ls"]);
    let mut lines = table.lines();
    assert!(lines.next().is_some_and(|header| header.starts_with("NAME ")), "{table}");
    let row = lines.next().unwrap_or_default();
    assert!(["web ", &*id, "running", "team=blue"].iter().all(|text| row.contains(text)), "{row}");
    let stats = ok(&daemon, &["stats"]);
    assert!(stats.contains("MEMORY") && stats.contains(&id), "{stats}");
    ok(&daemon, &["stop", "web"]);
    assert!(!ok(&daemon, &["stats"]).contains(&id), "it does not run");
}

#[test]
fn a_snapshot_may_be_named_by_the_beginning_of_its_id() {
    let daemon = daemon!();
    let id = create(&daemon, "web", "a");
    ok(&daemon, &["exec", &id, "--", "sh", "-c", "echo old > f"]);
    let snapshot = ok(&daemon, &["snapshot", &id]);
    ok(&daemon, &["exec", &id, "--", "sh", "-c", "echo new > f"]);
    ok(&daemon, &["revert", &id, "--to", &snapshot[..9], "f"]);
    assert_eq!(ok(&daemon, &["exec", &id, "--", "cat", "f"]), "old");
    assert_eq!(ok(&daemon, &["snapshot", "rm", &id, &snapshot[..9]]), snapshot);
}
