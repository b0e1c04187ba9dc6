//! The limits of a tree and of its snapshots, as whoever is inside and whoever asks see them.

use serde_json::{Value, json};

use super::{at, rollback, turn};
use crate::skip_if;
use crate::support::{Daemon, Ground, Patience, obstacle, until};

fn write(daemon: &Daemon, id: &str, file: &str, mib: u64) -> bool {
    let command = format!("head -c {mib}M /dev/urandom > ~/{file} && sync ~/{file}");
    daemon.sh(id, &command).exit_code == Some(0)
}

fn disk(daemon: &Daemon, id: &str) -> Value {
    daemon.expect(200, "GET", &at(id, "stats"), &Value::Null)["disk"].clone()
}

#[test]
fn turn_after_turn_the_same_files_can_be_written_anew() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&Ground::Btrfs.setup());
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 50 } }));
    for round in 0..5 {
        assert!(write(&daemon, &id, "file", 30), "round {round}: {}", disk(&daemon, &id));
        turn(&daemon, &id);
    }
    rollback(&daemon, &id, "turn-0002");
    until("what a rollback brought back can be written anew", Patience::Long, || {
        write(&daemon, &id, "file", 30)
    });
}

#[test]
fn who_keeps_old_and_new_is_stopped_and_told_by_which_limit() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&Ground::Btrfs.setup());
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 40 } }));
    assert!(write(&daemon, &id, "first", 30));
    turn(&daemon, &id);
    let mut file = 0;
    until("no more can be written", Patience::Long, || {
        file += 1;
        !write(&daemon, &id, &format!("more-{file}"), 2)
    });
    // What was allowed for is no more than what the snapshot has.
    assert!(file < 40, "{file} files of 2 MiB fit beside 30");
    until("the limit is named", Patience::Long, || {
        disk(&daemon, &id)["limit_reached"] == "resources.disk_mb"
    });
    daemon.sh(&id, "rm ~/first ~/more-*").ok();
    until("there is room again", Patience::Long, || write(&daemon, &id, "first", 30));
}
