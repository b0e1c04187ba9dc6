//! What becomes of secrets whose key or file is gone.

use serde_json::json;

use super::upstream::World;
use crate::skip_if;
use crate::support::obstacle;

#[test]
fn without_its_key_a_sandbox_is_not_started_with_less() {
    skip_if!(obstacle());
    let world = World::new();
    let mut daemon = world.daemon();
    let id = daemon.create_with(&json!({
        "network": { "allow": ["a.test"] },
        "secrets": { "TOKEN": { "hosts": ["a.test"], "value": "hush" } },
    }));
    daemon.verb(&id, "stop");
    daemon.stop();
    let key = daemon.data_dir().join("secrets.key");
    let kept = std::fs::read(&key).expect("a key");
    std::fs::remove_file(&key).expect("it is there");
    daemon.start_again(&world.setup);
    let start = format!("/api/v1/sandboxes/{id}/start");
    let refused = daemon.expect(500, "POST", &start, &json!({}));
    assert_eq!(refused["code"], "secrets_unreadable", "{refused}");
    assert_eq!(daemon.state(&id), "failed");
    daemon.stop();
    std::fs::write(&key, kept).expect("it is ours");
    daemon.start_again(&world.setup);
    daemon.verb(&id, "start");
    assert_eq!(daemon.network(&id)["gateway"], "open");
}
