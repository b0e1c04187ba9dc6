//! What becomes of secrets whose key or file is gone.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use super::upstream::{Authority, World};
use crate::skip_if;
use crate::support::{Daemon, Patience, obstacle, until};

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

/// A KMS of the test: it wraps keys with one of its own, and counts its calls.
const KMS: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 1
[ -e locked ] && { echo "the key is locked" >&2; exit 3; }
echo "$1" >> calls
case "$1" in
  encrypt) exec openssl enc -aes-256-cbc -pbkdf2 -pass file:pass ;;
  decrypt) exec openssl enc -d -aes-256-cbc -pbkdf2 -pass file:pass ;;
esac
"#;

#[test]
fn a_kms_keeps_the_key_over_kill_9_and_without_it_nothing_is_given() {
    skip_if!(obstacle());
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("kms"), KMS).expect("a script");
    std::fs::write(path("pass"), "of the KMS").expect("a file");
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path("kms"), executable).expect("executable");
    let authority = Authority::new();
    let (api, world) = (authority.https(&["api.test"]), World::new().trusting(&authority));
    let option = format!("--egress-kms-command={}", path("kms").display());
    let setup = world.setup.clone().argument(&option);
    let mut daemon = Daemon::start_with(&setup);
    let host = api.entry("api.test");
    let id = daemon.create_with(&json!({
        "network": { "allow": [host] },
        "secrets": { "TOKEN": { "hosts": [host], "value": "hush" } },
    }));
    let sends = |daemon: &Daemon, value: &str| {
        let curl = format!(r#"curl -sS --max-time 20 -H "X-Token: $TOKEN" https://{host}/"#);
        assert_eq!(daemon.sh(&id, &curl).ok(), "hello");
        let got = api.requests().pop().expect("a request");
        assert!(got.contains(&format!("X-Token: {value}")), "{got}");
    };
    sends(&daemon, "hush");
    let calls = || std::fs::read_to_string(path("calls")).expect("calls");
    assert_eq!(calls(), "encrypt\n");
    assert!(!daemon.data_dir().join("secrets.key").exists(), "the key is on disk as it is");
    daemon.kill_9();
    daemon.start_again(&setup);
    until("the network is open again", Patience::Short, || {
        daemon.network(&id)["gateway"] == "open"
    });
    sends(&daemon, "hush");
    assert_eq!(calls(), "encrypt\ndecrypt\n");
    daemon.patch_network(&id, &json!({ "secrets": { "TOKEN": { "value": "changed" } } }));
    sends(&daemon, "changed");
    // A KMS that refuses: the sandbox runs on without a network, and gets it when the KMS answers again.
    std::fs::write(path("locked"), "").expect("a file");
    daemon.kill_9();
    daemon.start_again(&setup);
    until("it is said why there is no network", Patience::Short, || {
        let network = daemon.network(&id);
        network["gateway"] == "failed"
            && network["reason"].as_str().is_some_and(|reason| reason.contains("decrypt failed"))
    });
    std::fs::remove_file(path("locked")).expect("it is there");
    until("the network is open again", Patience::Long, || daemon.network(&id)["gateway"] == "open");
    sends(&daemon, "changed");
}
