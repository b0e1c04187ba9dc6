//! File changes as they happen.

use serde_json::Value;

use super::Place;
use crate::daemon;

/// The events of a watch, as lines of JSON.
fn watch(place: &Place<'_>, query: &str) -> impl Iterator<Item = Value> + use<> {
    let connection = place.daemon.connection().expect("the daemon listens");
    let connection = connection.with_header("accept", "application/x-ndjson");
    let target = place.target(&format!("/watch?{query}"));
    let (status, lines) = connection.stream("GET", &target, "").expect("an answer");
    assert_eq!(status, 200, "{:?}", lines.collect::<Vec<_>>());
    let lines = lines.map_while(Result::ok).filter(|line| !line.is_empty());
    lines.map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}")))
}

fn wait_for(events: &mut impl Iterator<Item = Value>, kind: &str, path: &str) {
    let found = events.find(|event| event["type"] == kind && event["path"] == path);
    assert!(found.is_some(), "the watch ended before {kind} {path}");
}

#[test]
fn a_directory_tells_what_changes_in_it_and_beneath() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir w");
    let mut events = watch(&place, "path=w&recursive=true");
    assert_eq!(events.next().expect("a first")["type"], "watching");
    place.put("w/note", b"1");
    wait_for(&mut events, "created", "w/note");
    place.sh("echo 2 >> w/note");
    wait_for(&mut events, "modified", "w/note");
    place.sh("chmod 600 w/note");
    wait_for(&mut events, "attributes", "w/note");
    place.sh("mkdir -p w/a/b && echo x > w/a/b/deep");
    wait_for(&mut events, "created", "w/a/b/deep");
    place.sh("rm w/note");
    wait_for(&mut events, "deleted", "w/note");
    place.sh("rm -r w");
    wait_for(&mut events, "gone", "w");
    assert_eq!(events.last(), None, "there is nothing left to watch");
}

#[test]
fn a_file_is_seen_when_it_is_replaced_and_its_neighbors_are_not() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("one", b"1");
    let mut events = watch(&place, "path=one");
    events.next();
    place.put("other", b"1");
    place.put("one", b"2");
    let next = events.next().expect("a change");
    assert_eq!((next["type"].as_str(), next["path"].as_str()), (Some("created"), Some("./one")));
}

#[test]
fn a_watch_does_not_hinder_a_pause() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let mut events = watch(&place, "path=.");
    events.next();
    assert_eq!(daemon.verb(&place.id, "pause")["state"], "paused");
    daemon.verb(&place.id, "resume");
    place.put("after", b"x");
    wait_for(&mut events, "created", "./after");
}
