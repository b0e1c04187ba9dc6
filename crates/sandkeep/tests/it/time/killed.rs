//! The daemon is killed at every step of snapshot, prune, rollback and fork, on each storage, and restarted. No
//! recorded snapshot has lost anything, started operations are finished or undone, and nothing is left over.

use std::os::unix::process::ExitStatusExt;

use sandkeep_core::failpoint::ALL;
use serde_json::{Value, json};

use super::{FILL, at, fork, names, rollback, snapshot, sum, turn};
use crate::on_each_storage;
use crate::support::{Daemon, Ground};

on_each_storage!(
    a_snapshot_survives_kill_9_at_every_step,
    a_rollback_survives_kill_9_at_every_step,
    forks_survive_kill_9_at_every_step,
);

const VERBS: [&str; 4] = ["snapshot.", "prune.", "rollback.", "fork."];

pub fn points() -> impl Iterator<Item = &'static str> {
    ALL.iter().copied().filter(|point| VERBS.iter().any(|verb| point.starts_with(verb)))
}

fn points_of(verb: &'static str) -> impl Iterator<Item = &'static str> {
    points().filter(move |point| point.strip_prefix(verb).is_some_and(|rest| rest.starts_with('.')))
}

/// A sandbox with two turns, of which only two may be, and what its files were at each.
struct Subject {
    id: String,
    then: [String; 2],
    now: String,
}

impl Subject {
    fn new(daemon: &Daemon) -> Self {
        let id = daemon.create_with(&json!({ "max_snapshots": 2 }));
        daemon.sh(&id, FILL).ok();
        let first = sum(daemon, &id);
        snapshot(daemon, &id, "first");
        daemon.sh(&id, "echo second >> ~/note; rm ~/empty").ok();
        let second = sum(daemon, &id);
        turn(daemon, &id);
        daemon.sh(&id, "echo third >> ~/note; seq 100 > ~/more").ok();
        let now = sum(daemon, &id);
        Self { id, then: [first, second], now }
    }

    /// What each snapshot that is there holds.
    fn assert_nothing_is_lost(&self, daemon: &Daemon, point: &str) {
        for name in names(daemon, &self.id) {
            let made = fork(daemon, &self.id, &json!({ "snapshot": name }));
            let expected = match name.as_str() {
                "first" => &self.then[0],
                "turn-0001" => &self.then[1],
                _ => &self.now,
            };
            assert_eq!(sum(daemon, &made[0]), *expected, "{point}: {name}");
            daemon.destroy(&made[0]);
        }
    }
}

/// Kills the daemon where it does what is asked for, and starts it again.
fn killed_at(
    daemon: &mut Daemon,
    ground: &Ground,
    point: &str,
    ask: impl Fn(&Daemon) -> std::io::Result<(u16, Value)>,
) -> Option<Value> {
    eprintln!("{}: killing at {point}", ground.name());
    daemon.kill_9();
    daemon.start_again(&ground.setup().env("SANDKEEP_FAILPOINT", point));
    let answer = ask(daemon);
    let status = daemon.wait_for_end();
    assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
    daemon.start_again(&ground.setup());
    daemon.assert_no_leaks();
    answer.ok().filter(|(status, _)| (200..300).contains(status)).map(|(_, answer)| answer)
}

fn assert_settled(daemon: &Daemon, id: &str, point: &str) {
    let view = daemon.get(id);
    assert_eq!((&view["state"], &view["operation"]), (&json!("running"), &Value::Null), "{point}");
    assert_eq!(daemon.sh(id, "echo awake").ok(), "awake", "{point}: it goes on");
}

fn ends_well(daemon: &Daemon, point: &str) {
    for id in daemon.ids() {
        daemon.destroy(&id);
    }
    daemon.assert_no_leaks();
    assert_eq!(daemon.ids(), [""; 0], "{point}");
}

fn a_snapshot_survives_kill_9_at_every_step(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    for point in points_of("snapshot").chain(points_of("prune")) {
        let subject = Subject::new(&daemon);
        let ask =
            |daemon: &Daemon| daemon.try_request("POST", &at(&subject.id, "turns"), &Value::Null);
        let answered = killed_at(&mut daemon, ground, point, ask);
        assert_settled(&daemon, &subject.id, point);
        assert_eq!(sum(&daemon, &subject.id), subject.now, "{point}");
        let kept = names(&daemon, &subject.id);
        assert!(kept.contains(&"first".to_owned()), "{point}: {kept:?}");
        if let Some(view) = answered {
            let name = view["name"].as_str().expect("a name").to_owned();
            assert!(kept.contains(&name), "{point}: what was acknowledged is lost");
        }
        subject.assert_nothing_is_lost(&daemon, point);
        let highest =
            kept.iter().filter_map(|name| name.strip_prefix("turn-")?.parse::<u64>().ok());
        let highest = highest.max().unwrap_or(1);
        let next = turn(&daemon, &subject.id)["turn"].as_u64().expect("a number");
        assert!(next > highest, "{point}: {next} after {kept:?}");
        assert!(names(&daemon, &subject.id).len() <= 2, "{point}");
        ends_well(&daemon, point);
    }
}

fn a_rollback_survives_kill_9_at_every_step(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    for point in points_of("rollback") {
        let subject = Subject::new(&daemon);
        let ask = |daemon: &Daemon| {
            let wish = json!({ "snapshot": "first" });
            daemon.try_request("POST", &at(&subject.id, "rollback"), &wish)
        };
        killed_at(&mut daemon, ground, point, ask);
        // The first point is after the intent, and what was recorded is finished.
        assert_settled(&daemon, &subject.id, point);
        assert_eq!(sum(&daemon, &subject.id), subject.then[0], "{point}");
        assert_eq!(names(&daemon, &subject.id), ["first", "turn-0001"], "{point}");
        subject.assert_nothing_is_lost(&daemon, point);
        rollback(&daemon, &subject.id, "turn-0001");
        assert_eq!(sum(&daemon, &subject.id), subject.then[1], "{point}");
        ends_well(&daemon, point);
    }
}

fn forks_survive_kill_9_at_every_step(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    for point in points_of("fork") {
        let subject = Subject::new(&daemon);
        let ask = |daemon: &Daemon| {
            let headers = [("Idempotency-Key", point)];
            daemon.request_with(&headers, "POST", &at(&subject.id, "fork"), &json!({ "count": 2 }))
        };
        let answered = killed_at(&mut daemon, ground, point, ask);
        assert_settled(&daemon, &subject.id, point);
        let made = daemon.ids().len() - 1;
        assert!(made == 2 || (made == 0 && answered.is_none()), "{point}: {made}");
        // A client that lost the answer asks again, and there are still two.
        let (status, again) = ask(&daemon).expect("an answer");
        assert_eq!((status, daemon.ids().len()), (201, 3), "{point}: {again:#}");
        for view in again["sandboxes"].as_array().expect("sandboxes") {
            let id = view["id"].as_str().expect("an id");
            assert_eq!(sum(&daemon, id), subject.now, "{point}");
        }
        assert_eq!(names(&daemon, &subject.id), ["first", "turn-0001"], "{point}");
        subject.assert_nothing_is_lost(&daemon, point);
        ends_well(&daemon, point);
    }
}
