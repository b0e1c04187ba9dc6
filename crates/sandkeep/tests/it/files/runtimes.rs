//! The same on every runtime, in full and empty sandboxes, and with an earlier daemon's guests.

use serde_json::json;

use super::Place;
use crate::support::{Daemon, Engine, Kind, Setup, obstacle};
use crate::tools::missing;
use crate::{daemon, skip_if};

/// All that differs between runtimes: how the program comes inside, and what the kernel there knows.
fn works(place: &Place<'_>) {
    let bytes = vec![7; 3_000_000];
    assert_eq!(place.ask("PUT", "?path=a/b&parents=true", &[], &bytes).status, 201);
    assert_eq!(place.read("a/b"), bytes);
    assert_eq!(place.put("a/b", b"again").status, 200);
    assert_eq!(place.names("/list?path=a"), ["a/b"]);
    assert_eq!(place.stat("a/b")["size"], 5);
    let (status, moved) = place.post("/move", &json!({ "from": "a/b", "to": "a/c" }));
    assert_eq!(status, 200, "{moved:#}");
    let archive = place.get("/archive?path=a");
    assert_eq!(archive.status, 200, "{}", archive.text());
    let reply = place.ask("PUT", "/archive?path=copy&parents=true", &[], &archive.body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let owner = "import os; print(os.stat(\"copy/c\").st_uid)";
    assert_eq!(place.sh(&format!("cat copy/c; python3 -c '{owner}'")), "again1000");
    assert_eq!(place.ask("DELETE", "?path=a&recursive=true", &[], b"").status, 204);
    assert_eq!(place.refused(&place.get("?path=a/c"), 404), "file_not_found");
}

fn on(runtime: &str) {
    let daemon = Daemon::start();
    if let Some(reason) = missing(&daemon, runtime) {
        eprintln!("SKIP files::runtimes::{runtime}: {reason}");
        return;
    }
    works(&Place::with(&daemon, &json!({ "runtime": runtime })));
}

#[test]
fn files_work_in_bwrap() {
    skip_if!(obstacle());
    on("bwrap");
}

#[test]
fn files_work_in_crun() {
    skip_if!(obstacle());
    on("crun");
}

#[test]
fn files_work_in_runc() {
    skip_if!(obstacle());
    on("runc");
}

#[test]
fn files_work_in_gvisor() {
    skip_if!(obstacle());
    on("gvisor");
}

fn on_engine(kind: Kind, runtime: &str, variable: &str) {
    let engine = Engine::start(kind).unwrap_or_else(|reason| panic!("{kind:?}: {}", reason.0));
    let daemon = Daemon::start_with(&Setup::default().env(variable, &engine.host()));
    works(&Place::with(&daemon, &json!({ "runtime": runtime })));
}

#[test]
fn files_work_in_docker() {
    skip_if!(obstacle());
    on_engine(Kind::Docker, "docker", "SANDKEEP_DOCKER_HOST");
}

#[test]
fn files_work_in_podman() {
    skip_if!(obstacle());
    on_engine(Kind::Podman, "podman", "SANDKEEP_PODMAN_HOST");
}

#[test]
fn files_work_after_the_daemon_was_killed_and_when_processes_are_many() {
    let mut daemon = daemon!();
    let id = daemon.create();
    works(&Place { daemon: &daemon, id: id.clone() });
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    works(&Place { daemon: &daemon, id });
}

#[test]
fn nothing_inside_can_replace_the_program_or_see_it_on_disk() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("x", b"x");
    let found =
        daemon.root_sh(&place.id, "find / -xdev -name '*toolbox*' 2>/dev/null").stdout_text();
    assert_eq!(found, "");
    // A PATH, a loader's variable, a directory in the way: none is looked at.
    place.sh("mkdir -p ~/bin; printf '#!/bin/sh\\necho no' > ~/bin/sandkeep-toolbox; chmod +x ~/bin/sandkeep-toolbox");
    assert_eq!(place.read("x"), b"x");
}
