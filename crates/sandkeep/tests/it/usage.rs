//! What owners have used.

use serde_json::{Value, json};

use crate::keys::{create_key, key_of};
use crate::support::{Daemon, Setup, binary, obstacle};

const WORK: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

fn cpu_secs(usage: &Value, user: &str) -> f64 {
    let all = usage["items"].as_array().expect("a list").iter();
    let own = all.filter(|one| one["owner"]["user"] == user);
    own.filter_map(|one| one["cpu_secs"].as_f64()).sum()
}

fn used(daemon: &Daemon) -> Value {
    daemon.expect(200, "GET", "/api/v1/usage", &Value::Null)
}

#[test]
fn use_is_counted_over_destroyed_sandboxes_and_restarts_and_never_twice() {
    crate::skip_if!(obstacle());
    let setup = Setup::default();
    let mut daemon = Daemon::start_with(&setup);
    let id = daemon.create();
    daemon.sh(&id, WORK).ok();
    let running = cpu_secs(&used(&daemon), "local");
    assert!(running > 0.0, "a sandbox that runs");
    assert!(cpu_secs(&used(&daemon), "local") < 2.0 * running, "the same work was counted again");
    daemon.destroy(&id);
    let gone = cpu_secs(&used(&daemon), "local");
    assert!(gone >= running, "a sandbox that is gone");
    let other = daemon.create();
    daemon.sh(&other, WORK).ok();
    let both = cpu_secs(&used(&daemon), "local");
    daemon.stop();
    daemon.start_again(&setup);
    let later = cpu_secs(&used(&daemon), "local");
    assert!(later >= both, "{later} after a restart, {both} before");
    assert!(later < both + running, "{later} after a restart, {both} before: counted twice");
    daemon.verb(&other, "stop");
    let stopped = cpu_secs(&used(&daemon), "local");
    daemon.verb(&other, "start");
    daemon.sh(&other, WORK).ok();
    assert!(cpu_secs(&used(&daemon), "local") > stopped, "its counters began anew");
    let answer = used(&daemon);
    let one = &answer["items"][0];
    assert_eq!(
        one["owner"],
        json!({ "organization": "local", "user": "local", "project": "default" })
    );
    assert_eq!(one["network_bytes"], 0);
    assert!(one["disk_mb_hours"].is_number() && one["memory_mb_hours"].is_number(), "{one}");
    let shown = binary().args(["--url", &daemon.url(), "usage", "--from", "1h"]).output();
    let shown = String::from_utf8(shown.expect("the binary runs").stdout).expect("text");
    assert!(shown.contains("local/local/default"), "{shown}");
}

#[test]
fn a_period_is_in_whole_hours() {
    let daemon = crate::daemon!();
    daemon.create();
    let at = |from: &str, to: &str| {
        let target = format!("/api/v1/usage?from={from}&to={to}");
        daemon.expect(200, "GET", &target, &Value::Null)
    };
    let past = at("2020-01-01T00:30:00Z", "2020-01-01T02:00:00Z");
    let expected =
        json!({ "from": "2020-01-01T00:00:00Z", "to": "2020-01-01T02:00:00Z", "items": [] });
    assert_eq!(past, expected);
    for wrong in
        ["from=2020-01-02T00:00:00Z&to=2020-01-01T00:00:00Z", "from=yesterday", "since=now"]
    {
        daemon.expect(400, "GET", &format!("/api/v1/usage?{wrong}"), &Value::Null);
    }
}

#[test]
fn owners_see_their_own_use_and_administrators_all() {
    crate::skip_if!(obstacle());
    let mut daemon = Daemon::start_with(&Setup::default());
    let root = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "admin"]);
    daemon.use_key(key_of(&root));
    let made =
        create_key(&daemon.data_dir(), "ann", "ann", &["--scope", "read", "--scope", "write"]);
    let admin = daemon.create();
    daemon.sh(&admin, WORK).ok();
    daemon.destroy(&admin);
    daemon.use_key(key_of(&made));
    let id = daemon.create();
    daemon.sh(&id, WORK).ok();
    let own = used(&daemon);
    let owners = own["items"].as_array().expect("a list");
    assert_eq!((owners.len(), &owners[0]["owner"]["user"]), (1, &json!("ann")), "{own}");
    daemon.destroy(&id);
    daemon.use_key(key_of(&root));
    let all = used(&daemon);
    assert!(
        cpu_secs(&all, "ann") > 0.0 && all["items"].as_array().expect("a list").len() == 2,
        "{all}"
    );
}
