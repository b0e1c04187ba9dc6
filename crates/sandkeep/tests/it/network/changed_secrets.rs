//! Secrets of a sandbox that exists are added, changed and removed.

use serde_json::{Value, json};

use super::upstream::{Authority, Upstream, World};
use crate::skip_if;
use crate::support::{Daemon, Ran, binary, obstacle};

const OLD: &str = "hush-old-2c77";
const NEW: &str = "hush-new-90af";

struct Scene {
    world: World,
    api: Upstream,
    other: Upstream,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new();
        let (api, other) = (authority.https(&["api.test"]), authority.https(&["b.test"]));
        Self { world: World::new().trusting(&authority), api, other }
    }

    fn spec(&self) -> Value {
        let (api, other) = (self.api.entry("api.test"), self.other.entry("b.test"));
        json!({
            "network": { "allow": [read(&api), read(&other)] },
            "secrets": { "TOKEN": { "hosts": [api], "value": OLD } },
        })
    }

    /// What the host gets when this variable is sent to it.
    fn sent(&self, daemon: &Daemon, id: &str, variable: &str) -> String {
        Self::sent_to(&self.api, "api.test", daemon, id, variable)
    }

    fn sent_to(to: &Upstream, host: &str, daemon: &Daemon, id: &str, variable: &str) -> String {
        let url = format!("https://{}/", to.entry(host));
        let curl = format!(r#"curl -sS --max-time 20 -H "X-Token: ${variable}" {url}"#);
        assert_eq!(daemon.sh(id, &curl).ok(), "hello");
        let head = to.requests().pop().expect("a request");
        let line = head.lines().find_map(|line| line.strip_prefix("X-Token: "));
        line.unwrap_or_else(|| panic!("no token in {head}")).trim().to_owned()
    }
}

/// An entry whose requests are read with or without a secret, by the daemon's certificate.
fn read(host: &str) -> Value {
    json!({ "host": host, "access": "full" })
}

fn value(text: &str) -> Value {
    json!({ "secrets": { "TOKEN": { "value": text } } })
}

#[test]
fn a_new_value_is_in_force_at_once_under_the_same_placeholder_and_after_kill_9() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let mut daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    let placeholder = |daemon: &Daemon| daemon.sh(&id, "printf %s \"$TOKEN\"").ok();
    let before = placeholder(&daemon);
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), OLD);
    let answer = daemon.patch_network(&id, &value(NEW));
    assert!(!answer.to_string().contains("hush"), "{answer}");
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), NEW);
    assert_eq!(placeholder(&daemon), before);
    assert_eq!(daemon.network(&id)["policy"], scene.spec()["network"], "the policy stays");
    daemon.kill_9();
    daemon.start_again(&scene.world.setup);
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), NEW);
    assert_eq!(placeholder(&daemon), before);
    // A fork has what its source has now.
    let forked = daemon.expect(201, "POST", &format!("/api/v1/sandboxes/{id}/fork"), &json!({}));
    let fork = forked["sandboxes"][0]["id"].as_str().expect("a fork").to_owned();
    assert_eq!(scene.sent(&daemon, &fork, "TOKEN"), NEW);
    let events = daemon.expect(200, "GET", "/api/v1/events?limit=1000", &Value::Null);
    assert!(events.to_string().contains("network.changed"), "{events}");
    assert!(!events.to_string().contains("hush"));
    let (_, said) = daemon.stop_and_hear();
    assert!(!said.contains("hush"));
    for text in [OLD, NEW] {
        let found = std::process::Command::new("grep")
            .args(["-rlaF", text])
            .arg(daemon.data_dir())
            .output()
            .expect("grep runs");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files with {text}");
    }
    daemon.start_again(&scene.world.setup);
}

#[test]
fn secrets_are_added_moved_and_removed() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    let other = scene.other.entry("b.test");
    let added = json!({ "secrets": { "SECOND": { "hosts": [other], "value": "hush-second" } } });
    let answer = daemon.patch_network(&id, &added);
    assert_eq!(answer["secrets"]["SECOND"]["hosts"], json!([other]));
    let second = Scene::sent_to(&scene.other, "b.test", &daemon, &id, "SECOND");
    assert_eq!(second, "hush-second");
    assert!(scene.sent(&daemon, &id, "SECOND").starts_with("sandkeep-placeholder-"));
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), OLD, "the first stays");
    // To another host, with another value at the same time.
    let moved = json!({ "secrets": { "TOKEN": { "hosts": [other], "value": NEW } } });
    daemon.patch_network(&id, &moved);
    assert!(scene.sent(&daemon, &id, "TOKEN").starts_with("sandkeep-placeholder-"));
    assert_eq!(Scene::sent_to(&scene.other, "b.test", &daemon, &id, "TOKEN"), NEW);
    let placeholder = daemon.sh(&id, "printf %s \"$TOKEN\"").ok();
    daemon.patch_network(&id, &json!({ "remove_secrets": ["TOKEN"] }));
    assert_eq!(daemon.sh(&id, "printf %s \"${TOKEN-none}\"").ok(), "none");
    let kept = format!("export TOKEN={placeholder}; ");
    let url = format!("https://{other}/");
    let curl = format!(r#"{kept}curl -sS --max-time 20 -H "X-Token: $TOKEN" {url}"#);
    assert_eq!(daemon.sh(&id, &curl).ok(), "hello");
    let got = scene.other.requests().pop().expect("a request");
    assert!(got.contains(&placeholder) && !got.contains(NEW), "{got}");
    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    let second = Scene::sent_to(&scene.other, "b.test", &daemon, &id, "SECOND");
    assert_eq!(second, "hush-second", "after a start");
}

#[test]
fn a_change_that_cannot_be_made_changes_nothing() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let mut spec = scene.spec();
    spec["env"] = json!({ "PLAIN": "x" });
    let id = daemon.create_with(&spec);
    let target = format!("/api/v1/sandboxes/{id}/network");
    let before = daemon.network(&id);
    let host = scene.api.entry("api.test");
    let whole = json!({ "hosts": [host], "value": "x" });
    for (words, patch) in [
        ("needs hosts and a value", json!({ "secrets": { "OTHER": { "value": "x" } } })),
        ("there is no secret", json!({ "remove_secrets": ["OTHER"] })),
        ("does not allow", json!({ "secrets": { "TOKEN": { "hosts": ["c.test"] } } })),
        ("hosts is empty", json!({ "secrets": { "TOKEN": { "hosts": [] } } })),
        ("the value is empty", value("")),
        ("line break", value("hush\nhush")),
        ("in env as well", json!({ "secrets": { "PLAIN": whole } })),
        (
            "removed as well",
            json!({ "secrets": { "TOKEN": { "value": "x" } }, "remove_secrets": ["TOKEN"] }),
        ),
        ("not the name", json!({ "secrets": { "A B": whole } })),
    ] {
        let problem = daemon.expect(400, "PATCH", &target, &patch);
        let detail = problem["detail"].as_str().expect("a detail");
        assert!(detail.contains(words) && !detail.contains("hush"), "{patch}: {problem}");
    }
    let after = daemon.network(&id);
    assert_eq!((&before["secrets"], &before["policy"]), (&after["secrets"], &after["policy"]));
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), OLD);
    // The first secret takes a launch, which puts the certificate inside.
    let bare = daemon.create_allowing(&[&host]);
    let target = format!("/api/v1/sandboxes/{bare}/network");
    let first = json!({ "secrets": { "TOKEN": whole } });
    let problem = daemon.expect(400, "PATCH", &target, &first);
    assert!(problem["detail"].as_str().is_some_and(|text| text.contains("start it again")));
    daemon.verb(&bare, "stop");
    daemon.expect(200, "PATCH", &target, &first);
    daemon.verb(&bare, "start");
    assert_eq!(scene.sent(&daemon, &bare, "TOKEN"), "x");
}

/// A crash between the value on disk and the row leaves the old value, with its hosts; after the row the new one.
#[cfg(feature = "failpoints")]
#[test]
fn a_change_of_a_secret_is_made_whole_or_not_at_all() {
    skip_if!(obstacle());
    for (point, is_made) in
        [("network.after_values", false), ("amend.after_row", true), ("amend.after_meta", true)]
    {
        let scene = Scene::new();
        let mut daemon = scene.world.daemon();
        let id = daemon.create_with(&scene.spec());
        daemon.stop();
        daemon.start_again(&scene.world.setup.clone().env("SANDKEEP_FAILPOINT", point));
        let (api, other) = (scene.api.entry("api.test"), scene.other.entry("b.test"));
        let moved = json!({ "secrets": { "TOKEN": { "hosts": [other], "value": NEW } } });
        let target = format!("/api/v1/sandboxes/{id}/network");
        let answer = daemon.try_request("PATCH", &target, &moved);
        assert!(answer.is_err(), "{point} was not passed: {answer:?}");
        daemon.wait_for_end();
        daemon.start_again(&scene.world.setup);
        let (host, value) = if is_made { (&other, NEW) } else { (&api, OLD) };
        assert_eq!(daemon.network(&id)["secrets"]["TOKEN"]["hosts"], json!([host]), "{point}");
        let at_api = scene.sent(&daemon, &id, "TOKEN");
        let at_other = Scene::sent_to(&scene.other, "b.test", &daemon, &id, "TOKEN");
        let (right, wrong) = if is_made { (at_other, at_api) } else { (at_api, at_other) };
        assert_eq!(right, value, "{point}");
        assert!(wrong.starts_with("sandkeep-placeholder-"), "{point}: {wrong}");
        daemon.patch_network(&id, &json!({ "secrets": { "TOKEN": { "value": "third" } } }));
    }
}

#[test]
fn the_command_line_takes_values_from_its_environment() {
    skip_if!(obstacle());
    let scene = Scene::new();
    let daemon = scene.world.daemon();
    let id = daemon.create_with(&scene.spec());
    let run = |arguments: &[&str]| -> Ran {
        let mut command = binary();
        command.args(["network", "secret", &id]).args(arguments).env("TOKEN", NEW);
        command.env("SANDKEEP_URL", daemon.url()).output().expect("the binary runs").into()
    };
    assert_eq!(run(&["TOKEN"]).code, 0);
    assert_eq!(scene.sent(&daemon, &id, "TOKEN"), NEW);
    let other = format!("TOKEN@{}", scene.other.entry("b.test"));
    assert_eq!(run(&[&other]).code, 0);
    assert_eq!(Scene::sent_to(&scene.other, "b.test", &daemon, &id, "TOKEN"), NEW);
    let valued = run(&["TOKEN=hush@api.test"]);
    assert!(valued.code != 0 && !valued.stderr.contains("hush"), "{valued:?}");
    assert_eq!(run(&["--remove", "TOKEN"]).code, 0);
    assert_eq!(daemon.network(&id)["secrets"], json!({}));
    assert_ne!(run(&[]).code, 0, "nothing to do");
}
