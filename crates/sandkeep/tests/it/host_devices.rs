//! The host's own device nodes stay root's, whichever tool creates a sandbox. Some tools change the owner of their
//! stdin and stdout to the sandbox's user (crun) or to nobody (runsc), and that must never be the host's null device.

use std::os::unix::fs::MetadataExt;

use serde_json::{Value, json};

use crate::skip_if;
use crate::support::{Daemon, Engine, Kind, Setup, obstacle};

const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Whose the devices are, with what rights.
fn devices() -> Vec<(&'static str, u32, u32, u32)> {
    let found = |path: &'static str| {
        let stat = std::fs::metadata(path).expect("every host has it");
        (path, stat.uid(), stat.gid(), stat.mode() & 0o7777)
    };
    DEVICES.map(found).into()
}

/// A life of a sandbox, with all that is done to one.
fn live(daemon: &Daemon, runtime: &str) {
    let id = daemon.create_with(&json!({ "runtime": runtime }));
    daemon.sh(&id, "chown 1000 /dev/null 2>/dev/null; chmod 600 /dev/null 2>/dev/null; :").ok();
    daemon.root_sh(&id, "chown 1000 /dev/null 2>/dev/null; cat </dev/null >/dev/null").ok();
    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    daemon.sh(&id, "echo x >/dev/null").ok();
    daemon.destroy(&id);
}

#[test]
fn the_hosts_devices_are_roots_after_sandboxes_of_every_runtime() {
    skip_if!(obstacle());
    let before = devices();
    let null = before[0];
    assert_eq!((null.1, null.2, null.3), (0, 0, 0o666), "somebody else gave it away before");
    let engines = [Kind::Docker, Kind::Podman].map(|kind| (kind, Engine::start(kind)));
    let mut setup = Setup::default();
    for (kind, engine) in &engines {
        match (kind, engine) {
            (Kind::Docker, Ok(engine)) => setup = setup.env("SANDKEEP_DOCKER_HOST", &engine.host()),
            (Kind::Podman, Ok(engine)) => setup = setup.env("SANDKEEP_PODMAN_HOST", &engine.host()),
            (_, Err(reason)) => eprintln!("without {kind:?}: {}", reason.0),
        }
    }
    let daemon = Daemon::start_with(&setup);
    let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let mut tried = 0;
    for runtime in listed["runtimes"].as_array().expect("runtimes") {
        let name = runtime["name"].as_str().expect("a name");
        if runtime["usable"] != true || name == "mock" {
            eprintln!("without {name}: {}", runtime["reason"]);
            continue;
        }
        live(&daemon, name);
        assert_eq!(devices(), before, "after a sandbox of {name}");
        tried += 1;
    }
    assert!(tried > 0, "{listed}");
}
