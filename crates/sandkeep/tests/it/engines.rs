//! Sandboxes as containers of a real Docker and a real Podman, through the daemon.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::crash::remove_registry;
use crate::doctor::{Doctor, verdicts};
use crate::skip_if;
use crate::support::{
    Daemon, Engine, Kind, Patience, Raw, Setup, binary, file_server, obstacle, until,
};

/// The runtime, and the setting that says where its engine is.
fn words(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Docker => ("docker", "SANDKEEP_DOCKER_HOST"),
        Kind::Podman => ("podman", "SANDKEEP_PODMAN_HOST"),
    }
}

fn assert_same(after: &Value, before: &Value) {
    for field in ["id", "owner", "slot", "labels", "resources", "runtime", "state"] {
        assert_eq!(after[field], before[field], "{field}");
    }
}

fn started(kind: Kind) -> Engine {
    Engine::start(kind).unwrap_or_else(|reason| panic!("{kind:?} is needed: {}", reason.0))
}

/// One life, in which the daemon is killed and forgets everything.
fn outlives_the_daemon_and_its_registry(kind: Kind) {
    let engine = started(kind);
    let (runtime, variable) = words(kind);
    let setup = Setup::default().env(variable, &engine.host());
    let mut daemon = Daemon::start_with(&setup);
    let spec =
        json!({ "runtime": runtime, "slot": "agent", "project": "web", "labels": { "a": "b" } });
    let id = daemon.create_with(&spec);
    assert_eq!(engine.containers(), 1);
    assert!(!daemon.sh(&id, "echo kept > ~/note; sleep 100000 & echo $!").ok().is_empty());
    let left = daemon.sh(&id, "pgrep -x sleep").ok();
    let target = format!("/api/v1/sandboxes/{id}/processes");
    let process = daemon.expect(201, "POST", &target, &file_server(8000));
    assert_eq!(process["status"], "running", "{process:#}");
    let before = daemon.get(&id);

    daemon.kill_9();
    remove_registry(&daemon);
    daemon.start_again(&setup);
    assert_same(&daemon.get(&id), &before);
    assert_eq!(daemon.sh(&id, "pgrep -x sleep").ok(), left, "what ran was disturbed");
    let looked = daemon.expect(200, "GET", &target, &Value::Null);
    let address = looked["items"][0]["address"].as_str().expect("an address");
    let reply = Raw::open(address.parse().expect("host:port"))
        .send(b"GET /note HTTP/1.1\r\nHost: x\r\n\r\n")
        .reply("GET");
    assert_eq!((reply.status, reply.text().as_str()), (200, "kept\n"));
    assert_eq!(daemon.verb(&id, "pause")["state"], "paused");
    assert_eq!(daemon.verb(&id, "resume")["state"], "running");
    assert_eq!(daemon.sh(&id, "pgrep -x sleep").ok(), left, "what stood still goes on");

    daemon.verb(&id, "stop");
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note; pgrep -cx sleep || :").ok(), "kept\n0");
    daemon.destroy(&id);
    assert_eq!(engine.containers(), 0);
}

#[test]
fn a_docker_sandbox_outlives_the_daemon_and_its_registry() {
    skip_if!(obstacle());
    outlives_the_daemon_and_its_registry(Kind::Docker);
}

#[test]
fn a_podman_sandbox_outlives_the_daemon_and_its_registry() {
    skip_if!(obstacle());
    outlives_the_daemon_and_its_registry(Kind::Podman);
}

fn everything_holds(kind: Kind) {
    let engine = started(kind);
    let (runtime, variable) = words(kind);
    let doctor = Doctor::new();
    let mut command = doctor.command(&["--json", "--runtime", runtime]);
    let ran = command.env(variable, engine.host()).output().expect("the binary runs");
    let said: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
    let found = &said["runtimes"][0];
    assert_eq!((&found["name"], &found["usable"]), (&json!(runtime), &json!(true)), "{found:#}");
    assert_eq!(verdicts(&found["battery"], "leaked"), [""; 0], "{found:#}");
    // Its users are the host's, so what is counted for each of them is as well.
    assert!(verdicts(&found["battery"], "not_applicable").contains(&"inotify-bomb"), "{found:#}");
    assert_eq!(engine.containers(), 0);
}

#[test]
fn everything_holds_on_docker() {
    skip_if!(obstacle());
    everything_holds(Kind::Docker);
}

#[test]
fn everything_holds_on_podman() {
    skip_if!(obstacle());
    everything_holds(Kind::Podman);
}

#[test]
fn what_a_doctor_leaves_that_is_killed_beside_docker_goes_with_the_next_run() {
    skip_if!(obstacle());
    let engine = started(Kind::Docker);
    let (_, variable) = words(Kind::Docker);
    let doctor = Doctor::new();
    let mut victim = doctor.command(&["--runtime", "docker"]);
    victim.env(variable, engine.host()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut victim = victim.spawn().expect("the binary runs");
    until("it has a container", Patience::Long, || engine.containers() > 0);
    victim.kill().expect("it is our child");
    victim.wait().expect("it is our child");
    // Its own launcher does not know where the engine is, and may be at it still.
    until("all is cleared up", Patience::Long, || {
        let mut run = binary();
        run.env("TMPDIR", doctor.tmp.path())
            .env(variable, engine.host())
            .args(["run", "--", "true"]);
        assert!(run.status().expect("the binary runs").success());
        // The bait is a file and a socket, which the next doctor sweeps up.
        let directories = doctor.leftovers().into_iter().filter(|path| path.is_dir());
        directories.filter(|path| path.join("instance").exists()).count() == 0
    });
    assert_eq!(engine.containers(), 0);
}

#[test]
fn an_engine_that_is_not_there_is_named_with_a_remedy_and_costs_nobody_else() {
    skip_if!(obstacle());
    let setup = Setup::default().env("SANDKEEP_DOCKER_HOST", "unix:///no/such/socket");
    let daemon = Daemon::start_with(&setup);
    let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let listed = listed["runtimes"].as_array().expect("a list");
    let docker = listed.iter().find(|runtime| runtime["name"] == "docker").expect("it is listed");
    assert!(docker.to_string().contains("/no/such/socket"), "{docker:#}");
    let spec = json!({ "runtime": "docker" });
    let (status, problem) = daemon.request("POST", "/api/v1/sandboxes", &spec);
    assert!(status >= 400, "{problem:#}");
    assert!(problem["detail"].to_string().contains("/no/such/socket"), "{problem:#}");
    assert_eq!(daemon.sh(&daemon.create(), "echo fine").ok(), "fine");
}

#[test]
fn an_engine_that_is_started_later_is_found_without_a_restart() {
    skip_if!(obstacle());
    let place = tempfile::tempdir().expect("a directory");
    let socket = place.path().join("docker.sock");
    let host = format!("unix://{}", socket.display());
    let daemon = Daemon::start_with(&Setup::default().env("SANDKEEP_DOCKER_HOST", &host));
    let spec = json!({ "runtime": "docker" });
    let (status, problem) = daemon.request("POST", "/api/v1/sandboxes", &spec);
    assert_eq!((status, &problem["code"]), (400, &json!("runtime_unusable")), "{problem:#}");

    let engine = started(Kind::Docker);
    let real = engine.host();
    let real = real.strip_prefix("unix://").expect("a socket of this machine");
    std::os::unix::fs::symlink(real, &socket).expect("the engine is there now");
    let made = daemon.expect(201, "POST", "/api/v1/sandboxes", &spec);
    let id = made["id"].as_str().expect("an id");
    assert_eq!(daemon.sh(id, "echo found").ok(), "found");
    daemon.expect(204, "DELETE", &format!("/api/v1/sandboxes/{id}"), &Value::Null);
    assert_eq!(engine.containers(), 0);
}
