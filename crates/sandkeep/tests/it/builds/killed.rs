//! The daemon is killed at every failpoint of a build. A template is complete or does not exist, no build sandbox is
//! left, and the next build continues with the completed steps.

use std::os::unix::process::ExitStatusExt;

use serde_json::{Value, json};

use super::{STORAGES, build, built, cached, context, import_base, on, sandbox};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, until};
use crate::templates::images;

const FILE: &str = "\
FROM base
COPY note /note
RUN --mount=type=cache,target=/c,id=ID cat /note > /copy
";

const POINTS: [&str; 13] = [
    "build.after_intent",
    "build.after_context",
    "build.after_archive",
    "build.after_row",
    "build.after_step",
    "build.after_cache_row",
    "build.after_cache_volume",
    "build.after_sandbox",
    "build.after_run",
    "build.after_layer",
    "build.after_room",
    "build.after_steps",
    "build.after_outcome",
];
const START_UP: [&str; 3] =
    ["start_up.after_note", "start_up.after_launch", "start_up.after_begun"];

/// All points that are tried here.
pub fn points() -> impl Iterator<Item = &'static str> {
    POINTS.into_iter().chain(START_UP)
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
        // A cache that is there already would not be made.
        let file = FILE.replace("ID", point);
        let context = context(&[("Dockerfile", file.as_str()), ("note", note.as_str())]);
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
    daemon.assert_no_leaks();
}

#[test]
fn a_build_survives_kill_9_at_every_step() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        survives(storage);
    }
}

/// A template that leaves a line in a file each time that it is started.
fn starting(daemon: &Daemon) {
    let file = "FROM host\nWORKDIR /home/user\n\
                LABEL sandkeep.start='echo up >> starts; exec sleep 100000'\n\
                LABEL sandkeep.ready='run test -e starts'\n";
    let context = context(&[("Dockerfile", file)]);
    built(daemon, context.path(), &["-t", "starting"]);
}

/// Kills the daemon where it does what is asked for, and starts it again.
fn dies_and_comes_back(
    daemon: &mut Daemon,
    point: &str,
    ask: impl FnOnce(&Daemon) -> std::io::Result<(u16, Value)>,
) {
    eprintln!("killing at {point}");
    daemon.kill_9();
    daemon.start_again(&Setup::default().env("SANDKEEP_FAILPOINT", point));
    let answer = ask(daemon);
    let status = daemon.wait_for_end();
    assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
    daemon.start_again(&Setup::default());
}

/// It was started so often in all, and one of them runs.
fn assert_started(daemon: &Daemon, id: &str, times: usize, point: &str) {
    let lines = || daemon.sh(id, "cat ~/starts").stdout_text().lines().count();
    until("it is started", Patience::Long, || lines() >= times);
    let processes = format!("/api/v1/sandboxes/{id}/processes");
    let listed = daemon.expect(200, "GET", &processes, &Value::Null);
    let items = listed["items"].as_array().expect("items").iter();
    let going_on = items.filter(|item| item["status"] != "exited").count();
    assert_eq!((going_on, lines()), (1, times), "{point}: {listed}");
}

#[test]
fn what_a_template_starts_runs_once_whichever_daemon_dies() {
    skip_if!(obstacle());
    let mut daemon = Daemon::start();
    starting(&daemon);
    let created = [
        "start_up.after_note",
        "create.after_meta_ready",
        "create.after_outcome",
        "exec.after_admission",
        "exec.after_journal",
        "exec.after_start",
        "start_up.after_launch",
        "start_up.after_begun",
        "create.before_answer",
    ];
    for point in created {
        dies_and_comes_back(&mut daemon, point, |daemon| {
            let body = json!({ "template": "starting" });
            daemon.try_request("POST", "/api/v1/sandboxes", &body)
        });
        let there = usize::from(point != "start_up.after_note");
        assert_eq!(daemon.ids().len(), there, "{point}");
        for id in daemon.ids() {
            assert_started(&daemon, &id, 1, point);
            daemon.destroy(&id);
        }
    }
    daemon.assert_no_leaks();
}

#[test]
fn what_a_template_starts_runs_once_more_each_time_that_its_sandbox_comes_up() {
    skip_if!(obstacle());
    let mut daemon = Daemon::start();
    starting(&daemon);
    let id = daemon.create_with(&json!({ "template": "starting" }));
    let mut times = 1;
    assert_started(&daemon, &id, times, "create");
    let started = [
        "start_up.after_note",
        "start.after_launch",
        "start.after_outcome",
        "exec.after_journal",
        "exec.after_start",
        "start_up.after_launch",
        "start_up.after_begun",
    ];
    for point in started {
        daemon.verb(&id, "stop");
        dies_and_comes_back(&mut daemon, point, |daemon| {
            let target = format!("/api/v1/sandboxes/{id}/start");
            daemon.try_request("POST", &target, &Value::Null)
        });
        if daemon.state(&id) != "running" {
            daemon.verb(&id, "start");
        }
        times += 1;
        assert_started(&daemon, &id, times, point);
    }
    let snapshots = format!("/api/v1/sandboxes/{id}/snapshots");
    daemon.expect(201, "POST", &snapshots, &json!({ "name": "then" }));
    for point in ["rollback.after_volume", "rollback.after_launch", "rollback.after_outcome"] {
        dies_and_comes_back(&mut daemon, point, |daemon| {
            let target = format!("/api/v1/sandboxes/{id}/rollback");
            daemon.try_request("POST", &target, &json!({ "snapshot": "then" }))
        });
        assert_eq!(daemon.state(&id), "running", "{point}");
        assert_started(&daemon, &id, times + 1, point);
    }
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}
