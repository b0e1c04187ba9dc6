//! The daemon is killed at every failpoint of every verb, and restarted. Nothing acknowledged is lost, interrupted
//! operations are completed or undone, and nothing is left over.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use sandkeep_core::event::EventKind;
use sandkeep_core::failpoint::ALL;
use serde_json::{Value, json};

use crate::support::{Daemon, Patience, Setup, obstacle, until_some};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Create,
    Exec,
    Stop,
    Start,
    Pause,
    Resume,
    Amend,
    Rename,
    Destroy,
}

impl Verb {
    const ALL: [Self; 9] = [
        Self::Create,
        Self::Exec,
        Self::Stop,
        Self::Start,
        Self::Pause,
        Self::Resume,
        Self::Amend,
        Self::Rename,
        Self::Destroy,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Exec => "exec",
            Self::Stop => "stop",
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Amend => "amend",
            Self::Rename => "rename",
            Self::Destroy => "destroy",
        }
    }

    fn points(self) -> impl Iterator<Item = &'static str> {
        ALL.iter().copied().filter(move |point| {
            point.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with('.'))
        })
    }

    /// The verb's sandbox, with a file in it; `create` makes its own.
    fn prepare(self, daemon: &Daemon) -> Option<String> {
        if self == Self::Create {
            return None;
        }
        let id = daemon.create_with(&named());
        daemon.sh(&id, "echo kept > ~/note; sleep 100000 >/dev/null 2>&1 &").ok();
        match self {
            Self::Start => drop(daemon.verb(&id, "stop")),
            Self::Resume => drop(daemon.verb(&id, "pause")),
            _ => {}
        }
        Some(id)
    }

    /// Sends the request. The daemon dies during it, before or after its answer.
    fn request(
        self,
        daemon: &Daemon,
        subject: Option<&str>,
        point: &str,
    ) -> std::io::Result<(u16, Value)> {
        let target = format!("/api/v1/sandboxes/{}", subject.unwrap_or_default());
        match self {
            Self::Create => create_once(daemon, point),
            Self::Amend => {
                let body = json!({ "labels": { "a": "new" }, "timeout_secs": 100_000 });
                daemon.try_request("PATCH", &target, &body)
            }
            Self::Rename => daemon.try_request("PATCH", &target, &json!({ "name": "new" })),
            Self::Exec => {
                let body = json!({ "command": "echo out; sync; exit 3" });
                daemon.try_request("POST", &format!("{target}/execs"), &body)
            }
            Self::Stop | Self::Start | Self::Pause | Self::Resume => {
                daemon.try_request("POST", &format!("{target}/{}", self.name()), &Value::Null)
            }
            Self::Destroy => daemon.try_request("DELETE", &target, &Value::Null),
        }
    }
}

/// A sandbox that takes every step there is: it has a name and a slot.
fn named() -> Value {
    json!({ "name": "old", "slot": "shared", "labels": { "a": "old" } })
}

/// With a key, which makes it idempotent; with a repository, so that there is work before and after the launch.
fn create_once(daemon: &Daemon, key: &str) -> std::io::Result<(u16, Value)> {
    let mut spec = named();
    spec["source"] = json!({ "git": repository(&daemon.data_dir()) });
    daemon.request_with(&[("Idempotency-Key", key)], "POST", "/api/v1/sandboxes", &spec)
}

/// An empty one among the daemon's own files, which a clone is content with.
fn repository(data_dir: &std::path::Path) -> String {
    let path = data_dir.join("source.git");
    let mut init = std::process::Command::new("git");
    init.args(["init", "--quiet", "--bare"]).arg(&path).env_clear().env("PATH", "/usr/bin:/bin");
    assert!(init.status().expect("git runs").success());
    format!("file://{}", path.display())
}

/// An unrelated sandbox, which must not be affected.
struct Witness {
    id: String,
    process: String,
}

impl Witness {
    fn new(daemon: &Daemon) -> Self {
        let id = daemon.create();
        let command = "echo here > ~/note; sleep 100000 >/dev/null 2>&1 & echo $!";
        let process = daemon.sh(&id, command).ok();
        Self { id, process }
    }

    fn assert_unharmed(&self, daemon: &Daemon, point: &str) {
        let command = format!("cat ~/note /proc/{}/comm", self.process);
        assert_eq!(daemon.sh(&self.id, &command).ok(), "here\nsleep", "{point}");
    }
}

fn survives_every_failpoint(verb: Verb) {
    assert!(verb.points().count() > 0, "{} has no failpoints", verb.name());
    let mut daemon = Daemon::start();
    let witness = Witness::new(&daemon);
    for point in verb.points() {
        eprintln!("killing at {point}");
        let subject = verb.prepare(&daemon);
        daemon.kill_9();
        daemon.start_again(&Setup::default().env("SANDKEEP_FAILPOINT", point));
        let answer = verb.request(&daemon, subject.as_deref(), point);
        let status = daemon.wait_for_end();
        assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");

        daemon.start_again(&Setup::default());
        let acknowledged = answer.ok().filter(|(status, _)| (200..300).contains(status));
        witness.assert_unharmed(&daemon, point);
        assert_whole_or_gone(&daemon, verb, subject.as_deref(), acknowledged, &witness, point);
        daemon.assert_no_leaks();
        for id in daemon.ids().iter().filter(|id| **id != witness.id) {
            daemon.destroy(id);
        }
        daemon.assert_no_leaks();
        assert_eq!(daemon.ids(), [witness.id.as_str()], "{point}");
        assert_told_once(&daemon, &witness, point);
    }
}

/// Every created sandbox and every ended exec is published once, and every other sandbox is gone.
fn assert_told_once(daemon: &Daemon, witness: &Witness, point: &str) {
    let events = sandkeep_broker::recorded_events(&daemon.data_dir()).expect("a readable log");
    let (mut there, mut ended) = (BTreeSet::new(), BTreeSet::new());
    for event in &events {
        let id = event.subject.sandbox.as_ref().map(ToString::to_string).unwrap_or_default();
        match &event.kind {
            EventKind::SandboxCreated { .. } => assert!(there.insert(id), "{point}: made twice"),
            EventKind::SandboxDestroyed { .. } => assert!(there.remove(&id), "{point}: gone twice"),
            EventKind::ExecEnded { exec, .. } => {
                assert!(ended.insert(exec), "{point}: {exec} twice")
            }
            _ => {}
        }
    }
    assert_eq!(there, BTreeSet::from([witness.id.clone()]), "{point}: {events:?}");
}

/// The state of a sandbox once no verb is under way; `None` if it is gone.
fn settled(daemon: &Daemon, id: &str) -> Option<String> {
    until_some("what was under way is over", Patience::Short, || {
        let (status, view) =
            daemon.request("GET", &format!("/api/v1/sandboxes/{id}"), &Value::Null);
        let state = view["state"].as_str().unwrap_or_default();
        match status {
            404 => Some(None),
            _ if !view["operation"].is_null() => None,
            _ if ["creating", "destroying"].contains(&state) => None,
            _ => Some(Some(state.to_owned())),
        }
    })
}

fn assert_whole_or_gone(
    daemon: &Daemon,
    verb: Verb,
    subject: Option<&str>,
    acknowledged: Option<(u16, Value)>,
    witness: &Witness,
    point: &str,
) {
    let answered = acknowledged.is_some();
    match (verb, subject) {
        (Verb::Create, _) => {
            let others: Vec<String> =
                daemon.ids().into_iter().filter(|id| *id != witness.id).collect();
            assert!(others.len() <= 1, "{point}: one create made {others:?}");
            if let Some((_, view)) = acknowledged {
                assert_eq!(others, [view["id"].as_str().expect("an id")], "{point}: it was lost");
            }
            for id in &others {
                if settled(daemon, id).is_some() {
                    let cloned = "git -C ~/source rev-parse --git-dir >/dev/null && test \"$(ls -A ~)\" = source && echo kept";
                    assert_usable(daemon, id, cloned, point);
                }
            }
            // A client that lost the answer asks again, and there is still one.
            let left = others.into_iter().find(|id| settled(daemon, id).is_some());
            let (status, again) = create_once(daemon, point).expect("an answer");
            assert_eq!(status, 201, "{point}: {again}");
            let id = again["id"].as_str().expect("an id");
            assert!(left.is_none_or(|left| left == id), "{point}: another was made");
            assert_eq!(again["slot"], "shared");
        }
        (Verb::Exec, Some(id)) => {
            if let Some((_, answer)) = acknowledged {
                assert_eq!(answer["exit_code"], 3, "{point}: {answer}");
            }
            assert_eq!(settled(daemon, id).as_deref(), Some("running"), "{point}");
            assert_exec_ended_once(daemon, id, point);
            assert_usable(daemon, id, "cat ~/note", point);
        }
        (Verb::Stop, Some(id)) | (Verb::Start, Some(id)) => {
            let state = settled(daemon, id).unwrap_or_else(|| panic!("{point}: it was lost"));
            assert!(["running", "stopped"].contains(&&*state), "{point}: {state}");
            if answered {
                let expected = if verb == Verb::Stop { "stopped" } else { "running" };
                assert_eq!(state, expected, "{point}: what was acknowledged is lost");
            }
            assert_usable(daemon, id, "cat ~/note", point);
        }
        (Verb::Pause, Some(id)) | (Verb::Resume, Some(id)) => {
            let state = settled(daemon, id).unwrap_or_else(|| panic!("{point}: it was lost"));
            // The first point is after the intent, and what was recorded is finished.
            let expected = if verb == Verb::Pause { "paused" } else { "running" };
            assert_eq!(state, expected, "{point}");
            daemon.verb(id, "resume");
            assert_usable(daemon, id, "cat ~/note", point);
        }
        (Verb::Rename, Some(id)) => {
            assert_eq!(settled(daemon, id).as_deref(), Some("running"), "{point}");
            let name = daemon.get(id)["name"].as_str().expect("a name").to_owned();
            assert!(name == "new" || (!answered && name == "old"), "{point}: {name}");
            assert_eq!(daemon.get(&name)["id"].as_str(), Some(id), "{point}");
            let free = if name == "new" { "old" } else { "new" };
            daemon.create_with(&json!({ "name": free }));
        }
        (Verb::Amend, Some(id)) => {
            assert_eq!(settled(daemon, id).as_deref(), Some("running"), "{point}");
            let view = daemon.get(id);
            let terms = (view["labels"]["a"].as_str(), view["timeout_secs"].as_u64());
            let (old, new) = ((Some("old"), None), (Some("new"), Some(100_000)));
            assert!(terms == new || (!answered && terms == old), "{point}: {view}");
            assert_usable(daemon, id, "cat ~/note", point);
        }
        (Verb::Destroy, Some(id)) => match settled(daemon, id) {
            None => {}
            Some(_) => {
                assert!(!answered, "{point}: what was acknowledged is lost");
                assert_usable(daemon, id, "cat ~/note", point);
            }
        },
        (_, None) => panic!("{} needs a sandbox", verb.name()),
    }
}

/// An exec of the killed daemon has a correct end, and all of its output if it ran.
fn assert_exec_ended_once(daemon: &Daemon, id: &str, point: &str) {
    let list = format!("/api/v1/sandboxes/{id}/execs");
    let tried = |view: &&Value| view["argv"][2] == "echo out; sync; exit 3";
    let view = until_some("the exec has its end", Patience::Short, || {
        let listing = daemon.expect(200, "GET", &list, &Value::Null);
        let items = listing["items"].as_array().expect("items").clone();
        match items.iter().find(tried) {
            Some(view) if view["status"] == "running" => None,
            view => Some(view.cloned()),
        }
    });
    let Some(view) = view else {
        return assert_eq!(point, "exec.after_admission", "its journal is missing");
    };
    let exec = view["exec_id"].as_str().expect("an id");
    let events: Vec<Value> = daemon.output(id, exec, "follow=true").collect();
    let said = crate::support::joined(&events, "stdout", 0);
    match view["status"].as_str() {
        Some("exited") => {
            assert_eq!(
                (&view["exit_code"], said.as_slice()),
                (&json!(3), &b"out\n"[..]),
                "{point}"
            );
        }
        Some("lost") => assert_eq!(point, "exec.after_journal", "nobody had been asked: {view}"),
        _ => panic!("{point}: {view}"),
    }
    let ends = events.iter().filter(|event| event["type"] == view["status"]).count();
    assert_eq!((ends, events.last().map(|e| &e["type"])), (1, Some(&view["status"])), "{point}");
}

/// It runs, or can be started, and has its files.
fn assert_usable(daemon: &Daemon, id: &str, command: &str, point: &str) {
    if daemon.state(id) != "running" {
        daemon.verb(id, "start");
    }
    assert_eq!(daemon.sh(id, command).ok(), "kept", "{point}");
}

#[test]
fn every_failpoint_belongs_to_a_verb_that_is_tried() {
    let elsewhere = crate::templates::killed_at().chain(crate::time::killed_at());
    let elsewhere = elsewhere.chain(crate::diff::killed_at()).chain(crate::builds::killed_at());
    let elsewhere =
        elsewhere.chain(crate::codebases::killed_at()).chain(crate::network::killed_at());
    let elsewhere = elsewhere.chain(crate::race::killed_at());
    let tried: Vec<&str> =
        Verb::ALL.iter().flat_map(|verb| verb.points()).chain(elsewhere).collect();
    // Those of a storage are tested with the storage alone.
    let of_storage =
        |point: &&&str| ["btrfs.", "local.", "zfs."].iter().any(|s| point.starts_with(s));
    for point in ALL.iter().filter(|point| !of_storage(point)) {
        assert!(tried.contains(point), "nobody tries {point}");
    }
}

#[test]
fn create_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Create);
}

#[test]
fn exec_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Exec);
}

#[test]
fn stop_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Stop);
}

#[test]
fn start_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Start);
}

#[test]
fn pause_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Pause);
}

#[test]
fn resume_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Resume);
}

#[test]
fn amend_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Amend);
}

#[test]
fn rename_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Rename);
}

#[test]
fn destroy_survives_kill_9_at_every_step() {
    crate::skip_if!(obstacle());
    survives_every_failpoint(Verb::Destroy);
}
