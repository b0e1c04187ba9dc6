//! The same with every usable runtime.

use serde_json::{Value, json};

use super::{FILL, fork, rollback, sum, turn};
use crate::skip_if;
use crate::support::{Daemon, Engine, Ground, Kind, Setup, obstacle};

fn goes_through_time(daemon: &Daemon, runtime: &str) {
    let id = daemon.create_with(&json!({ "runtime": runtime }));
    daemon.sh(&id, FILL).ok();
    let first = sum(daemon, &id);
    turn(daemon, &id);
    daemon.sh(&id, "rm -rf ~/dir; echo second > ~/note; sleep 100000 >/dev/null 2>&1 &").ok();
    let second = sum(daemon, &id);
    let forks = fork(daemon, &id, &json!({ "count": 2 }));
    assert_eq!(rollback(daemon, &id, "turn-0001")["state"], "running", "{runtime}");
    assert_eq!(sum(daemon, &id), first, "{runtime}");
    for made in &forks {
        assert_eq!(daemon.get(made)["runtime"], runtime);
        assert_eq!(sum(daemon, made), second, "{runtime}");
    }
    for id in forks.iter().chain([&id]) {
        daemon.destroy(id);
    }
}

#[test]
fn every_runtime_goes_through_time() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    let answer = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let all = answer["runtimes"].as_array().expect("runtimes").iter();
    let usable = all.filter(|runtime| runtime["usable"] == true && runtime["name"] != "mock");
    let names: Vec<&str> =
        usable.map(|runtime| runtime["name"].as_str().expect("a name")).collect();
    assert!(names.contains(&"native"), "{names:?}");
    for runtime in names {
        goes_through_time(&daemon, runtime);
    }
}

fn through_an_engine(kind: Kind, runtime: &str, variable: &str) {
    let engine =
        Engine::start(kind).unwrap_or_else(|reason| panic!("{runtime} is needed: {}", reason.0));
    for ground in [Ground::Btrfs, Ground::Local] {
        let daemon = Daemon::start_with(&ground.setup().env(variable, &engine.host()));
        goes_through_time(&daemon, runtime);
    }
}

#[test]
fn containers_of_docker_go_through_time() {
    skip_if!(obstacle());
    through_an_engine(Kind::Docker, "docker", "SANDKEEP_DOCKER_HOST");
}

#[test]
fn containers_of_podman_go_through_time() {
    skip_if!(obstacle());
    through_an_engine(Kind::Podman, "podman", "SANDKEEP_PODMAN_HOST");
}

/// A sandbox that cannot be frozen is refused while it runs, and not otherwise.
#[test]
fn what_cannot_be_frozen_must_be_stopped_first() {
    skip_if!(obstacle());
    let daemon = Daemon::start_with(&Setup::default().env("SANDKEEP_ENABLE_MOCK", "true"));
    let id = daemon.create_with(&json!({ "runtime": "mock" }));
    let target = format!("/api/v1/sandboxes/{id}/turns");
    let refused = daemon.expect(400, "POST", &target, &Value::Null);
    assert!(refused["detail"].to_string().contains("stop it first"), "{refused:#}");
    daemon.verb(&id, "stop");
    assert_eq!(turn(&daemon, &id)["turn"], 1);
}
