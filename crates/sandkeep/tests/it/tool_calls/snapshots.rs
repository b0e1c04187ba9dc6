//! Snapshots after tool calls, for sandboxes with that setting.

use serde_json::{Value, json};

use super::{call, done};
use crate::daemon;
use crate::support::{Daemon, Setup, binary, obstacle};

fn write(path: &str, content: &str) -> Value {
    json!({ "path": path, "content": content })
}

/// The snapshot that the answer to a call names.
fn kept(daemon: &Daemon, id: &str, name: &str, arguments: &Value) -> Option<String> {
    let answer = call(daemon, id, name, arguments);
    assert!(!answer["content"].to_string().contains("no snapshot"), "{answer:#}");
    answer["snapshot_id"].as_str().map(str::to_owned)
}

/// The names of all snapshots; those of tools have none.
fn names(daemon: &Daemon, id: &str) -> Vec<String> {
    let listed =
        daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/snapshots"), &Value::Null);
    let all = listed["items"].as_array().expect("a list");
    all.iter().map(|snapshot| snapshot["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_call_that_may_change_files_leaves_a_snapshot_and_no_other_does() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "snapshot_tool_calls": true, "max_snapshots": 4 }));
    assert_eq!(daemon.get(&id)["snapshot_tool_calls"], true);
    let snapshots = format!("/api/v1/sandboxes/{id}/snapshots");
    daemon.expect(201, "POST", &snapshots, &json!({ "name": "mine" }));

    let first = kept(&daemon, &id, "write_file", &write("a", "one\n")).expect("a snapshot");
    let edit = json!({ "path": "a", "old_string": "one", "new_string": "two" });
    kept(&daemon, &id, "edit_file", &edit).expect("a snapshot");
    for (name, arguments) in [
        ("read_file", json!({ "path": "a" })),
        ("ls", json!({ "path": "." })),
        ("grep", json!({ "pattern": "t" })),
        ("edit_file", edit),
        ("bash", json!({ "command": "true", "snapshot": false })),
    ] {
        assert_eq!(kept(&daemon, &id, name, &arguments), None, "{name}");
    }
    let target = format!("/api/v1/sandboxes/{id}/rollback");
    daemon.expect(200, "POST", &target, &json!({ "snapshot": first }));
    assert_eq!(done(&daemon, &id, "read_file", &json!({ "path": "a" })), "     1\tone\n");

    for round in 0..4 {
        // The changes of a failed command are worth keeping, too.
        let command = json!({ "command": format!("echo {round} > b; false") });
        kept(&daemon, &id, "bash", &command).expect("a snapshot");
    }
    let left = names(&daemon, &id);
    assert_eq!(left.len(), 4, "{left:?}");
    assert!(left.contains(&"mine".to_owned()), "what was asked for by name stays: {left:?}");
    let gone = daemon.request("POST", &target, &json!({ "snapshot": first })).0;
    assert_eq!(gone, 404, "the oldest of the others gave way");

    let plain = daemon.create();
    assert_eq!(kept(&daemon, &plain, "write_file", &write("a", "one")), None);
    assert_eq!(daemon.get(&plain)["snapshot_tool_calls"], false);
}

#[test]
fn the_daemon_may_keep_calls_by_default_and_a_sandbox_may_decline() {
    crate::skip_if!(obstacle());
    let setup = Setup::default().env("SANDKEEP_SNAPSHOT_TOOL_CALLS", "true");
    let daemon = Daemon::start_with(&setup);
    let usual = daemon.create();
    assert!(kept(&daemon, &usual, "write_file", &write("a", "one")).is_some());
    let create = |argument: &str| {
        let mut cli = binary();
        let made = cli.env("SANDKEEP_URL", daemon.url()).args(["create", argument]).output();
        let made = made.expect("it runs");
        assert!(made.status.success(), "{made:?}");
        String::from_utf8(made.stdout).expect("an id").trim().to_owned()
    };
    let declined = create("--snapshot-tool-calls=false");
    assert_eq!(kept(&daemon, &declined, "write_file", &write("a", "one")), None);
    let asked = create("--snapshot-tool-calls");
    assert!(kept(&daemon, &asked, "bash", &json!({ "command": "echo > a" })).is_some());
}
