//! Reverting files of a sandbox that does not run.

use serde_json::json;

use super::{at, snapshot};
use crate::support::{Daemon, Ground};
use crate::templates::images::{self, Image};
use crate::{on_btrfs_and_local, skip_if};

on_btrfs_and_local!(files_of_a_stopped_sandbox_of_an_image_are_reverted_and_it_stays_stopped);

/// On `local` the root of an image is an overlay, which only the sandbox itself may write to.
fn files_of_a_stopped_sandbox_of_an_image_are_reverted_and_it_stays_stopped(ground: &Ground) {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    let daemon = Daemon::start_with(&ground.setup());
    crate::templates::import(&daemon, &image.docker_archive(), "image:1");
    let id = daemon.create_with(&json!({ "template": "image:1" }));
    daemon.root_sh(&id, "echo one > /srv/own; echo mine > /srv/data/greeting").ok();
    snapshot(&daemon, &id, "first");
    let change = "busybox rm -r /srv/data; echo two > /srv/own; echo kept > /srv/other";
    daemon.root_sh(&id, change).ok();
    daemon.verb(&id, "stop");
    let wish = json!({ "snapshot": "first", "paths": ["/srv/own", "/srv/data"] });
    let answer = daemon.expect(200, "POST", &at(&id, "revert"), &wish);
    let reverted = answer["reverted"].as_array().expect("paths");
    assert!(reverted.contains(&json!("/srv/own")), "{answer:#}");
    assert_eq!(daemon.state(&id), "stopped");
    daemon.verb(&id, "start");
    let said = daemon.root_sh(&id, "cat /srv/own /srv/data/greeting /srv/other").ok();
    assert_eq!(said, "one\nmine\nkept");
    daemon.destroy(&id);
    daemon.assert_no_leaks();
}

/// It is started for it, so it may also be found half-started, running or half-stopped.
#[cfg(feature = "failpoints")]
#[test]
fn a_revert_of_a_stopped_sandbox_survives_kill_9_and_it_is_stopped_again() {
    use std::os::unix::process::ExitStatusExt;

    use crate::support::{Patience, until};

    skip_if!(images::obstacle());
    let (image, setup) = (Image::busybox(), Ground::Local.setup());
    let mut daemon = Daemon::start_with(&setup);
    crate::templates::import(&daemon, &image.docker_archive(), "image:1");
    let points = ["revert.after_intent", "start.after_launch", "revert.after_files"];
    for point in points.into_iter().chain(["stop.after_intent", "stop.after_processes"]) {
        let id = daemon.create_with(&json!({ "template": "image:1" }));
        daemon.root_sh(&id, "echo one > /srv/own").ok();
        snapshot(&daemon, &id, "first");
        daemon.root_sh(&id, "echo two > /srv/own").ok();
        daemon.verb(&id, "stop");
        daemon.kill_9();
        daemon.start_again(&setup.clone().env("SANDKEEP_FAILPOINT", point));
        let wish = json!({ "snapshot": "first", "paths": ["/srv/own"] });
        let answer = daemon.try_request("POST", &at(&id, "revert"), &wish);
        let status = daemon.wait_for_end();
        assert_eq!(status.signal(), Some(9), "{point} was never passed: {answer:?}");
        daemon.start_again(&setup);
        until("it is stopped again", Patience::Long, || {
            let view = daemon.get(&id);
            view["state"] == "stopped" && view["operation"].is_null()
        });
        // A later request waits for the one that was begun.
        let answer = daemon.expect(200, "POST", &at(&id, "revert"), &wish);
        assert_eq!(answer["reverted"], json!([]), "{point}: {answer:#}");
        daemon.verb(&id, "start");
        assert_eq!(daemon.root_sh(&id, "cat /srv/own").ok(), "one", "{point}");
        daemon.destroy(&id);
    }
    daemon.assert_no_leaks();
}
