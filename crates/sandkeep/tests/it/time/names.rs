//! A sandbox's own name: its id, wherever a program reads it.

use serde_json::json;

use super::{fork, rollback, turn};
use crate::support::{Daemon, Ground};
use crate::templates::images::{self, Image};
use crate::{on_btrfs_and_local, skip_if};

on_btrfs_and_local!(
    each_sandbox_is_called_by_its_id_and_a_fork_by_its_own,
    the_files_of_an_image_name_the_sandbox_that_has_them,
);

const ASK: &str = "uname -n && cat /etc/hostname && hostname -f && getent hosts \"$(hostname)\"";

fn assert_named(daemon: &Daemon, id: &str, what: &str) {
    let said = daemon.sh(id, ASK).ok();
    let words: Vec<_> = said.split_whitespace().collect();
    assert_eq!(words, [id, id, id, "127.0.1.1", id], "{what}");
}

fn each_sandbox_is_called_by_its_id_and_a_fork_by_its_own(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    assert_named(&daemon, &id, "a new one");
    turn(&daemon, &id);
    rollback(&daemon, &id, "turn-0001");
    assert_named(&daemon, &id, "after a rollback");
    for fork in fork(&daemon, &id, &json!({ "snapshot": "turn-0001", "count": 2 })) {
        assert_named(&daemon, &fork, "a fork");
    }
    assert_named(&daemon, &id, "the source of forks");
}

fn the_files_of_an_image_name_the_sandbox_that_has_them(ground: &Ground) {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    let daemon = Daemon::start_with(&ground.setup());
    crate::templates::import(&daemon, &image.docker_archive(), "image:1");
    let id = daemon.create_with(&json!({ "template": "image:1" }));
    turn(&daemon, &id);
    let wish = json!({ "name": "left", "source": { "sandbox": id, "snapshot": "turn-0001" } });
    daemon.expect(201, "POST", "/api/v1/templates", &wish);
    let forked = fork(&daemon, &id, &json!({ "snapshot": "turn-0001" })).remove(0);
    let made = daemon.create_with(&json!({ "template": "left" }));
    for (what, id) in [("the first", &id), ("a fork", &forked), ("one of what it left", &made)] {
        let said = daemon.root_sh(id, "cat /proc/sys/kernel/hostname /etc/hostname /etc/hosts");
        let said = said.ok();
        let names: Vec<_> = said.split_whitespace().filter(|word| word.len() == id.len()).collect();
        assert_eq!(names, [id, id, id], "{what} says {said}");
    }
}
