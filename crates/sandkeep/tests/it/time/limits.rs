//! The limits of a tree and of its snapshots, as seen inside and in the API.

use serde_json::{Value, json};

use super::{at, fork, rollback, snapshot, turn};
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
    // The allowance covers no more than the snapshot.
    assert!(file < 40, "{file} files of 2 MiB fit beside 30");
    until("the limit is named", Patience::Long, || {
        disk(&daemon, &id)["limit_reached"] == "resources.disk_mb"
    });
    daemon.sh(&id, "rm ~/first ~/more-*").ok();
    until("there is room again", Patience::Long, || write(&daemon, &id, "first", 30));
}

/// Writes until not even a small file fits any more.
const FILL_UP: &str = "cd ~ && cat /dev/urandom > rest; i=0; \
                       while head -c 4096 /dev/urandom > small-$i; do i=$((i + 1)); done; sync; ls | wc -l";

/// Just then a way back is needed most.
#[test]
fn a_full_disk_can_be_taken_forked_and_rolled_back() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&Ground::Btrfs.setup());
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 40 } }));
    assert!(write(&daemon, &id, "kept", 10));
    turn(&daemon, &id);
    daemon.sh(&id, FILL_UP);
    assert!(!write(&daemon, &id, "more", 1), "it is not full: {}", disk(&daemon, &id));
    turn(&daemon, &id);
    snapshot(&daemon, &id, "full");
    let copies = fork(&daemon, &id, &json!({ "count": 2 }));
    rollback(&daemon, &id, "full");
    turn(&daemon, &copies[0]);
    for id in [&id, &copies[0], &copies[1]] {
        daemon.sh(id, "test -s ~/rest && rm -f ~/rest ~/small-* ~/more").ok();
        until("there is room again", Patience::Long, || write(&daemon, id, "again", 20));
    }
    let mut file = 0;
    until("no more can be written", Patience::Long, || {
        file += 1;
        !write(&daemon, &id, &format!("more-{file}"), 2)
    });
    // The allowance covers no more than the snapshots.
    assert!(file < 40, "{file} files of 2 MiB fit beside 30");
    rollback(&daemon, &id, "turn-0001");
    assert_eq!(daemon.sh(&id, "ls ~").ok(), "kept");
}

#[test]
fn with_tree_and_snapshots_full_there_is_a_way_back_and_a_way_out() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&Ground::Btrfs.setup());
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 40, "disk_total_mb": 50 } }));
    for round in 0..2 {
        assert!(write(&daemon, &id, "file", 20), "round {round}: {}", disk(&daemon, &id));
        turn(&daemon, &id);
    }
    assert!(!write(&daemon, &id, "file", 20), "60 MiB in 50: {}", disk(&daemon, &id));
    turn(&daemon, &id);
    let copies = fork(&daemon, &id, &json!({ "snapshot": "turn-0002" }));
    assert!(write(&daemon, &copies[0], "more", 10), "{}", disk(&daemon, &copies[0]));
    rollback(&daemon, &id, "turn-0001");
    assert_eq!(daemon.sh(&id, "stat -c %s ~/file; rm ~/file").ok(), (20 << 20).to_string());
}
