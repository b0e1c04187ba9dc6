//! The daemon is killed at every step of a race, and restarted: no fork is left, and the sandbox is what it was, or has
//! the winner's files as a turn.

use std::os::unix::process::ExitStatusExt;

use sandkeep_core::failpoint::ALL;
use serde_json::json;

use super::{at, names};
use crate::on_each_storage;
use crate::support::{Daemon, Ground, Patience, until};

on_each_storage!(a_race_survives_kill_9_at_every_step);

pub fn points() -> impl Iterator<Item = &'static str> {
    ALL.iter().copied().filter(|point| point.starts_with("race."))
}

/// From here on the winner is kept, whatever happens.
const DECIDED: &str = "race.after_keeping";

fn a_race_survives_kill_9_at_every_step(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    let mut decided = false;
    for point in points() {
        eprintln!("{}: killing at {point}", ground.name());
        decided |= point == DECIDED;
        let id = daemon.create();
        daemon.sh(&id, "cd ~ && echo old > f && echo gone > g").ok();
        daemon.kill_9();
        daemon.start_again(&ground.setup().env("SANDKEEP_FAILPOINT", point));
        let wish = json!({ "count": 2, "command": "cd ~ && echo $SANDKEEP_RACER > f && rm g && echo n > new",
                           "judge": "cat ~/f" });
        let answer = daemon.try_request("POST", &at(&id, "race"), &wish);
        let status = daemon.wait_for_end();
        assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
        daemon.start_again(&ground.setup());
        until("the forks are gone", Patience::Short, || daemon.ids() == [id.as_str()]);
        let files = daemon.sh(&id, "cd ~ && cat f && ls").ok();
        if decided {
            assert_eq!(files, "2\nf\nnew", "{point}");
            assert_eq!(names(&daemon, &id), ["turn-0001", "turn-0002"], "{point}");
        } else {
            assert_eq!(files, "old\nf\ng", "{point}")
        }
        daemon.destroy(&id);
        daemon.assert_no_leaks();
    }
}
