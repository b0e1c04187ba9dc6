//! The daemon is killed at every named point of a build. A template is whole or not there, no sandbox of a build is
//! left, and the next build goes on with the steps that were done.

use std::os::unix::process::ExitStatusExt;

use serde_json::Value;

use super::{STORAGES, build, built, cached, context, import_base, on, sandbox};
use crate::skip_if;
use crate::support::{Daemon, Patience, until};
use crate::templates::images;

const FILE: &str = "\
FROM base
COPY note /note
RUN cat /note > /copy
";

const POINTS: [&str; 11] = [
    "build.after_intent",
    "build.after_context",
    "build.after_archive",
    "build.after_row",
    "build.after_step",
    "build.after_sandbox",
    "build.after_run",
    "build.after_layer",
    "build.after_room",
    "build.after_steps",
    "build.after_outcome",
];
const START_UP: &str = "start_up.after_launch";

/// All points that are tried here.
pub fn points() -> impl Iterator<Item = &'static str> {
    POINTS.into_iter().chain([START_UP])
}

fn homes(daemon: &Daemon) -> usize {
    daemon.home("").read_dir().map_or(0, |homes| homes.count())
}

fn dies_at(daemon: &mut Daemon, storage: &str, point: &str, deed: impl FnOnce(&Daemon)) {
    daemon.kill_9();
    daemon.start_again(&on(storage).env("SANDKEEP_FAILPOINT", point));
    deed(daemon);
    let status = daemon.wait_for_end();
    assert_eq!(status.signal(), Some(9), "{point} was never passed on {storage}");
    daemon.start_again(&on(storage));
    until("no sandbox of a build is left", Patience::Short, || homes(daemon) == 0);
    assert!(daemon.ids().is_empty(), "{point}");
}

fn survives(storage: &str) {
    let mut daemon = Daemon::start_with(&on(storage));
    import_base(&daemon);
    for (index, point) in POINTS.into_iter().enumerate() {
        eprintln!("killing at {point} on {storage}");
        let note = format!("note {index}\n");
        let context = context(&[("Dockerfile", FILE), ("note", note.as_str())]);
        dies_at(&mut daemon, storage, point, |daemon| {
            let ran = build(daemon, context.path(), &["-t", "subject"]);
            assert_ne!(ran.code, 0, "{point}: {ran:?}");
        });
        let there = daemon.request("GET", "/api/v1/templates/subject", &Value::Null).0 == 200;
        assert_eq!(there, point == "build.after_outcome", "{point}: it is whole or not there");
        let again = built(&daemon, context.path(), &["-t", "subject"]);
        let before =
            POINTS.iter().position(|point| *point == "build.after_row").expect("it is there");
        let all =
            POINTS.iter().position(|point| *point == "build.after_steps").expect("it is there");
        let expected = match index {
            index if index < before => 0,
            index if index < all => 1,
            _ => 2,
        };
        assert_eq!(cached(&again), expected, "{point}: {again:?}");
        let id = sandbox(&daemon, "subject");
        assert_eq!(daemon.sh(&id, "cat /copy").ok(), format!("note {index}"), "{point}");
        daemon.destroy(&id);
        daemon.expect(204, "DELETE", "/api/v1/templates/subject", &Value::Null);
    }
    start_up_survives(&mut daemon, storage);
    daemon.assert_no_leaks();
}

fn start_up_survives(daemon: &mut Daemon, storage: &str) {
    let file = "from host\nstart exec sleep 100000\nready run true\n";
    let context = context(&[("Sandkeepfile", file)]);
    built(daemon, context.path(), &["-t", "starting"]);
    daemon.kill_9();
    daemon.start_again(&on(storage).env("SANDKEEP_FAILPOINT", START_UP));
    let body = serde_json::json!({ "template": "starting" });
    let answer = daemon.try_request("POST", "/api/v1/sandboxes", &body);
    assert_eq!(daemon.wait_for_end().signal(), Some(9), "{START_UP}: {answer:?}");
    daemon.start_again(&on(storage));
    // It was there, and so is what it starts.
    for id in daemon.ids() {
        daemon.sh(&id, "true").ok();
        daemon.destroy(&id);
    }
}

#[test]
fn a_build_survives_kill_9_at_every_step() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        survives(storage);
    }
}
