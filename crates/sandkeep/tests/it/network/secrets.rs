//! Secrets: their values leave the daemon for their hosts alone.

use serde_json::{Value, json};

use super::upstream::{Authority, Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

const VALUE: &str = "hush-5b1f0c9e";

/// A daemon with a host for a secret and a host for none.
struct Scene {
    world: World,
    api: Upstream,
    other: Upstream,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new();
        let api = authority.https(&["api.test"]);
        Self { world: World::new().trusting(&authority), api, other: Upstream::http() }
    }

    fn spec(&self) -> Value {
        let (api, other) = (self.api.entry("api.test"), self.other.entry("b.test"));
        json!({
            "network": { "allow": [api, other] },
            "secrets": { "TOKEN": { "hosts": [api], "value": VALUE } },
        })
    }

    fn send(&self, daemon: &Daemon, id: &str) {
        let url = format!("https://{}/", self.api.entry("api.test"));
        let curl = format!(r#"curl -sS --max-time 20 -H "Authorization: Bearer $TOKEN" {url}"#);
        assert_eq!(daemon.sh(id, &curl).ok(), "hello");
    }

    /// The last request had the value, and not the placeholder.
    fn assert_replaced(&self) {
        let last = self.api.requests().pop().expect("a request");
        assert!(last.contains(&format!("Bearer {VALUE}")), "{last}");
    }
}

#[test]
fn a_secret_is_replaced_at_its_host_and_nowhere_else() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    let placeholder = daemon.sh(&id, "printf %s \"$TOKEN\"").ok();
    assert!(placeholder.starts_with("sandkeep-placeholder-"), "{placeholder}");
    scene.send(&daemon, &id);
    scene.assert_replaced();
    let elsewhere = format!(
        r#"curl -sS --max-time 20 -H "Authorization: Bearer $TOKEN" {}"#,
        scene.other.url("b.test")
    );
    assert_eq!(daemon.sh(&id, &elsewhere).ok(), "hello");
    let got = scene.other.requests().pop().expect("a request");
    assert!(got.contains(&placeholder) && !got.contains(VALUE), "{got}");
    let in_url = format!(
        r#"curl -sS --max-time 20 -d "$TOKEN" "https://{}/?q=$TOKEN""#,
        scene.api.entry("api.test")
    );
    daemon.sh(&id, &in_url).ok();
    let got = scene.api.requests().pop().expect("a request");
    assert!(!got.contains(VALUE), "a value in a URL: {got}");
    let env = daemon.root_sh(&id, "cat /proc/[0-9]*/environ; env; set").ok();
    assert!(!env.contains(VALUE));
    let network = daemon.network(&id);
    assert_eq!(network["certificate"], "installed");
    assert!(!network.to_string().contains(VALUE) && !network.to_string().contains(&placeholder));
    let answers = [daemon.get(&id), Value::Array(daemon.network_log(&id))];
    assert!(!format!("{answers:?}").contains(VALUE));
}

#[test]
fn a_value_is_nowhere_on_disk_and_in_no_log() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let mut daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    scene.send(&daemon, &id);
    daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{id}/snapshots"), &json!({}));
    let (_, said) = daemon.stop_and_hear();
    assert!(!said.contains(VALUE));
    let found = std::process::Command::new("grep")
        .args(["-rlaF", VALUE])
        .arg(daemon.data_dir())
        .output()
        .expect("grep runs");
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files with the value");
    let sealed = std::fs::metadata(daemon.home(&id).join("secrets")).expect("it is kept");
    let key = std::fs::metadata(daemon.data_dir().join("secrets.key")).expect("a key");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(
        (sealed.permissions().mode() & 0o777, key.permissions().mode() & 0o777),
        (0o600, 0o600)
    );
    daemon.start_again(&scene.world.setup);
}

#[test]
fn policy_and_secrets_go_with_the_sandbox() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let mut daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    let placeholder = |daemon: &Daemon, id: &str| daemon.sh(id, "printf %s \"$TOKEN\"").ok();
    let own = placeholder(&daemon, &id);
    let again = |daemon: &Daemon, id: &str, after: &str| {
        let before = scene.api.requests().len();
        scene.send(daemon, id);
        assert_eq!(scene.api.requests().len(), before + 1, "after {after}");
        scene.assert_replaced();
    };
    daemon.verb(&id, "stop");
    assert_eq!(daemon.network(&id)["gateway"], "closed");
    daemon.verb(&id, "start");
    again(&daemon, &id, "stop and start");
    daemon.verb(&id, "pause");
    daemon.verb(&id, "resume");
    again(&daemon, &id, "pause and resume");
    let snapshots = format!("/api/v1/sandboxes/{id}/snapshots");
    daemon.expect(201, "POST", &snapshots, &json!({ "name": "one" }));
    let rollback = json!({ "snapshot": "one" });
    daemon.expect(200, "POST", &format!("/api/v1/sandboxes/{id}/rollback"), &rollback);
    again(&daemon, &id, "rollback");
    let forked = daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{id}/fork"), &json!({}));
    let fork = forked["sandboxes"][0]["id"].as_str().expect("a fork").to_owned();
    again(&daemon, &fork, "fork");
    assert_ne!(placeholder(&daemon, &fork), own, "a fork has placeholders of its own");
    daemon.kill_9();
    daemon.start_again(&scene.world.setup);
    again(&daemon, &id, "kill -9");
    again(&daemon, &fork, "kill -9");
    assert_eq!(placeholder(&daemon, &id), own);
    // The placeholder of one is worthless in the other.
    let url = format!("https://{}/", scene.api.entry("api.test"));
    daemon.sh(&fork, &format!("curl -sS --max-time 20 -H 'X-Token: {own}' {url}")).ok();
    let got = scene.api.requests().pop().expect("a request");
    assert!(got.contains(&own) && !got.contains(VALUE), "{got}");
}

#[test]
fn a_host_with_rules_gets_the_requests_that_they_allow() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let rule = json!({ "host": scene.api.entry("api.test"), "access": "read-only", "paths": ["/repos/**"] });
    let id = daemon.create_with(&json!({ "network": { "allow": [rule] } }));
    let status = |options: &str, path: &str| {
        let url = format!("https://{}{path}", scene.api.entry("api.test"));
        let curl = format!(
            "curl -sS --path-as-is --max-time 20 -o /dev/null -w '%{{http_code}}' {options} '{url}'"
        );
        daemon.sh(&id, &curl).ok()
    };
    assert_eq!(status("", "/repos/a"), "200");
    let before = scene.api.requests().len();
    for (options, path) in [
        ("-X POST", "/repos/a"),
        ("-X DELETE", "/repos/a"),
        ("-X POST -H 'X-HTTP-Method-Override: GET'", "/repos/a"),
        ("", "/other"),
        ("", "/repos/../other"),
        ("", "/repos/%2e%2e/other"),
        ("", "/%72epos%2f..%2fother"),
        ("-H 'Host: b.test'", "/repos/a"),
    ] {
        let status = status(options, path);
        assert!(status.starts_with('4'), "{options} {path}: {status}");
    }
    assert_eq!(scene.api.requests().len(), before, "a refused request arrived");
}
