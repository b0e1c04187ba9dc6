//! What is brought back in a sandbox that does not run.

use serde_json::json;

use super::{STORAGES, at, on, snapshot};
use crate::skip_if;
use crate::support::Daemon;
use crate::templates::images::{self, Image};

/// On `local` the root of an image is an overlay, which only the sandbox itself may write to.
#[test]
fn files_of_a_stopped_sandbox_of_an_image_are_reverted_and_it_stays_stopped() {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
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
        assert!(reverted.contains(&json!("/srv/own")), "{storage}: {answer:#}");
        assert_eq!(daemon.state(&id), "stopped", "{storage}");
        daemon.verb(&id, "start");
        let said = daemon.root_sh(&id, "cat /srv/own /srv/data/greeting /srv/other").ok();
        assert_eq!(said, "one\nmine\nkept", "{storage}");
        daemon.destroy(&id);
        daemon.assert_no_leaks();
    }
}
