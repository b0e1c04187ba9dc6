//! The daemon is killed at every step of a revert, and restarted: the revert is finished.

use std::os::unix::process::ExitStatusExt;

use sandkeep_core::failpoint::ALL;
use serde_json::json;

use super::{CHANGE, FILL, at, diff, snapshot, told};
use crate::on_each_storage;
use crate::support::{Daemon, Ground, Patience, until};

on_each_storage!(a_revert_survives_kill_9_at_every_step);

pub fn points() -> impl Iterator<Item = &'static str> {
    ALL.iter().copied().filter(|point| point.starts_with("revert."))
}

fn a_revert_survives_kill_9_at_every_step(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    for point in points() {
        let id = daemon.create();
        daemon.sh(&id, FILL).ok();
        snapshot(&daemon, &id, "first");
        daemon.sh(&id, CHANGE).ok();
        daemon.kill_9();
        daemon.start_again(&ground.setup().env("SANDKEEP_FAILPOINT", point));
        let wish = json!({ "snapshot": "first", "paths": ["/home/user/dir", "/home/user/new"] });
        let answer = daemon.try_request("POST", &at(&id, "revert"), &wish);
        let status = daemon.wait_for_end();
        assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
        daemon.start_again(&ground.setup());
        until("what was begun is finished", Patience::Short, || {
            told(&diff(&daemon, &id, "from=first")) == ["renamed /home/user/new-name"]
        });
        assert_eq!(daemon.sh(&id, "cat ~/dir/gone").ok(), "two", "{point}");
        daemon.destroy(&id);
        daemon.assert_no_leaks();
    }
}
