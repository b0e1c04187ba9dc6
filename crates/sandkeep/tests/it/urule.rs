//! Urule's door with real sandboxes.

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Patience, processes_in_cgroup, until};

#[test]
fn a_session_runs_tasks_with_their_environment_workdir_and_timeout() {
    let daemon = daemon!();
    let body =
        json!({ "workspaceId": "ws-1", "runtimeProfile": "node-20", "env": { "WHO": "me" } });
    let session = daemon.expect(201, "POST", "/api/v1/sessions", &body);
    let id = session["sessionId"].as_str().expect("an id").to_owned();
    let tasks = format!("/api/v1/sessions/{id}/tasks");
    let task = json!({
        "command": "echo $WHO $WHAT; pwd; echo oops >&2; exit 3",
        "env": { "WHAT": "too" },
        "workdir": "/tmp",
    });
    let result = daemon.expect(200, "POST", &tasks, &task);
    let expected = json!({ "exitCode": 3, "stdout": "me too\n/tmp\n", "stderr": "oops\n" });
    assert_eq!(result, expected);

    let task = json!({ "command": "echo on; sleep 100000 & sleep 100000", "timeout": 0.5 });
    let result = daemon.expect(200, "POST", &tasks, &task);
    assert_eq!((&result["exitCode"], &result["outcome"]), (&json!(124), &json!("timed_out")));
    assert_eq!(result["stdout"], "on\n");
    until("the whole tree is killed", Patience::Short, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() == 1
    });

    daemon.expect(204, "DELETE", &format!("/api/v1/sessions/{id}"), &Value::Null);
    daemon.expect(404, "GET", &format!("/api/v1/sessions/{id}/status"), &Value::Null);
    daemon.assert_no_leaks();
}
