//! Sandboxes in time, on each storage: snapshots, turns, rollback, forks, and the log. Every file is as it was at that
//! moment, nothing kept is lost, and nothing else is changed.

#[cfg(feature = "failpoints")]
mod killed;
mod limits;
mod names;
mod runtimes;
mod stopped;

use serde_json::{Value, json};

use crate::crash::remove_registry;
use crate::skip_if;
use crate::support::{Daemon, Ground, Patience, Ran, binary, until};
use crate::templates::images::{self, Image};
use crate::{on_btrfs_and_local, on_each_storage};

#[cfg(feature = "failpoints")]
pub use killed::points as killed_at;

on_each_storage!(
    a_rollback_brings_every_file_back_and_keeps_all_else,
    a_rollback_leads_to_a_running_sandbox_unless_it_was_stopped,
    commands_that_run_hinder_a_rollback_and_are_named,
    forks_have_every_file_whatever_their_source_does,
    a_fork_of_an_image_has_an_identity_of_its_own,
    the_oldest_turns_give_way_and_names_are_unique,
    snapshots_outlive_the_daemon_and_its_registry,
);
on_btrfs_and_local!(of_forty_snapshots_of_a_writer_none_is_torn);

/// Files of several kinds, and one number that stands for the content of all of them.
const FILL: &str = "cd ~ && mkdir -p dir/deep && echo first > note && seq 20000 > dir/deep/numbers \
                    && ln -s note link && chmod 700 dir && touch empty";
const SUM: &str = "cd ~ && find . | sort | while read -r name; do stat -c '%n %F %a' \"$name\"; \
                   [ -f \"$name\" ] && sha256sum < \"$name\"; done | sha256sum";

fn at(id: &str, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{rest}")
}

fn turn(daemon: &Daemon, id: &str) -> Value {
    daemon.expect(201, "POST", &at(id, "turns"), &Value::Null)
}

fn snapshot(daemon: &Daemon, id: &str, name: &str) -> Value {
    daemon.expect(201, "POST", &at(id, "snapshots"), &json!({ "name": name }))
}

fn rollback(daemon: &Daemon, id: &str, snapshot: &str) -> Value {
    daemon.expect(200, "POST", &at(id, "rollback"), &json!({ "snapshot": snapshot }))
}

fn fork(daemon: &Daemon, id: &str, wish: &Value) -> Vec<String> {
    let answer = daemon.expect(201, "POST", &at(id, "fork"), wish);
    let made = answer["sandboxes"].as_array().unwrap_or_else(|| panic!("{answer:#}")).iter();
    made.map(|view| view["id"].as_str().expect("an id").to_owned()).collect()
}

fn names(daemon: &Daemon, id: &str) -> Vec<String> {
    let listing = daemon.expect(200, "GET", &at(id, "snapshots"), &Value::Null);
    let items = listing["items"].as_array().expect("items").iter();
    items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

fn sum(daemon: &Daemon, id: &str) -> String {
    daemon.sh(id, SUM).ok()
}

fn a_rollback_brings_every_file_back_and_keeps_all_else(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create_with(&json!({ "slot": "agent", "labels": { "a": "b" } }));
    daemon.sh(&id, FILL).ok();
    let first = sum(&daemon, &id);
    let sealed = turn(&daemon, &id);
    assert_eq!((&sealed["name"], &sealed["turn"]), (&json!("turn-0001"), &json!(1)));
    assert!(sealed["id"].as_str().is_some_and(|id| id.starts_with("sn")), "{sealed:#}");
    assert!(sealed["bytes"].is_u64() && sealed["created_at"].is_string(), "{sealed:#}");
    daemon.sh(&id, "cd ~ && echo second >> note && rm -r dir empty && echo new > other").ok();
    let second = sum(&daemon, &id);
    snapshot(&daemon, &id, "second");
    daemon.sh(&id, "rm -rf ~/*; sleep 100000 >/dev/null 2>&1 &").ok();

    let before = daemon.get(&id);
    assert_eq!((&before["turn_count"], &before["snapshot_count"]), (&json!(1), &json!(2)));
    let view = rollback(&daemon, &id, "turn-0001");
    for field in ["id", "owner", "slot", "labels", "state", "created_at", "snapshot_count"] {
        assert_eq!(view[field], before[field], "{field}");
    }
    assert_eq!(sum(&daemon, &id), first);
    assert_eq!(daemon.sh(&id, "pgrep -x sleep").exit_code, Some(1), "processes have ended");
    assert_eq!(names(&daemon, &id), ["turn-0001", "second"], "later ones stay");
    rollback(&daemon, &id, "second");
    assert_eq!(sum(&daemon, &id), second, "forward as well");

    daemon.expect(204, "DELETE", &at(&id, "snapshots/turn-0001"), &Value::Null);
    let gone = json!({ "snapshot": "turn-0001" });
    let refused = daemon.expect(404, "POST", &at(&id, "rollback"), &gone);
    assert_eq!(refused["code"], "snapshot_not_found");
    rollback(&daemon, &id, "second");
    assert_eq!(sum(&daemon, &id), second);
}

/// Paused processes cannot survive it, so a paused sandbox runs afterwards; a stopped one was stopped on purpose.
fn a_rollback_leads_to_a_running_sandbox_unless_it_was_stopped(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, "echo first > ~/note").ok();
    turn(&daemon, &id);
    daemon.sh(&id, "echo second > ~/note").ok();
    daemon.verb(&id, "pause");
    turn(&daemon, &id);
    assert_eq!(daemon.state(&id), "paused", "a snapshot changes no state");
    assert_eq!(rollback(&daemon, &id, "turn-0001")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "first");
    daemon.verb(&id, "stop");
    turn(&daemon, &id);
    assert_eq!(rollback(&daemon, &id, "turn-0002")["state"], "stopped");
    daemon.verb(&id, "start");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "second");
    assert_eq!(names(&daemon, &id), ["turn-0001", "turn-0002", "turn-0003"]);
}

fn commands_that_run_hinder_a_rollback_and_are_named(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    turn(&daemon, &id);
    let exec = daemon.begin(&id, &json!({ "argv": ["sleep", "1001"] }));
    let wish = json!({ "snapshot": "turn-0001" });
    let refused = daemon.expect(409, "POST", &at(&id, "rollback"), &wish);
    assert_eq!(refused["code"], "execs_in_flight");
    assert!(refused["detail"].to_string().contains(&exec), "{refused:#}");
    assert_eq!(daemon.exec_view(&id, &exec)["status"], "running");
    assert_eq!(turn(&daemon, &id)["turn"], 2, "a snapshot does not mind them");
    let wish = json!({ "snapshot": "turn-0001", "force": true });
    assert_eq!(daemon.expect(200, "POST", &at(&id, "rollback"), &wish)["state"], "running");
    until("the command has its end", Patience::Short, || {
        daemon.exec_view(&id, &exec)["status"] != "running"
    });
    assert_eq!(daemon.sh(&id, "echo fine").ok(), "fine");
}

fn forks_have_every_file_whatever_their_source_does(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let spec = json!({ "slot": "agent", "labels": { "a": "b" }, "env": { "TOKEN": "hush" } });
    let id = daemon.create_with(&spec);
    daemon.sh(&id, FILL).ok();
    let expected = sum(&daemon, &id);
    daemon.sh(&id, "sleep 100000 >/dev/null 2>&1 &").ok();
    let mut all = Vec::new();
    for state in ["running", "paused", "stopped"] {
        match state {
            "paused" => drop(daemon.verb(&id, "pause")),
            "stopped" => drop(daemon.verb(&id, "stop")),
            _ => {}
        }
        all.extend(fork(&daemon, &id, &json!({ "count": 2, "labels": { "from": state } })));
        assert_eq!(daemon.state(&id), state, "its source is as it was");
    }
    assert_eq!(names(&daemon, &id), [""; 0], "nothing is left of what they were made from");
    daemon.destroy(&id);
    for made in &all {
        assert_eq!(sum(&daemon, made), expected);
        assert_eq!(daemon.sh(made, "pgrep -x sleep").exit_code, Some(1), "no process is copied");
        assert_eq!(daemon.sh(made, "echo $TOKEN").ok(), "hush");
        let view = daemon.get(made);
        assert_eq!((&view["state"], &view["slot"]), (&json!("running"), &Value::Null));
        assert_eq!(view["labels"]["a"], "b");
    }
    daemon.sh(&all[0], "echo mine > ~/note").ok();
    assert_eq!(sum(&daemon, &all[1]), expected, "they have nothing in common");
}

fn a_fork_of_an_image_has_an_identity_of_its_own(ground: &Ground) {
    skip_if!(images::obstacle());
    let image = Image::busybox();
    let daemon = Daemon::start_with(&ground.setup());
    crate::templates::import(&daemon, &image.docker_archive(), "image:1");
    let id = daemon.create_with(&json!({ "template": "image:1" }));
    let fill = "echo 0123456789abcdef0123456789abcdef > /etc/machine-id; mkdir -p /var/lib/systemd; \
                echo seed > /var/lib/systemd/random-seed; echo kept > /etc/note";
    daemon.root_sh(&id, fill).ok();
    snapshot(&daemon, &id, "base");
    let look = "cat /etc/machine-id /etc/note; ls /var/lib/systemd";
    let both = fork(&daemon, &id, &json!({ "snapshot": "base", "count": 2 }));
    let seen = |id: &str| daemon.root_sh(id, look).ok();
    let (first, second) = (seen(&both[0]), seen(&both[1]));
    assert_ne!(first, second);
    for seen in [&first, &second] {
        assert!(!seen.contains("0123456789abcdef") && !seen.contains("random-seed"), "{seen}");
        assert!(seen.lines().next().is_some_and(|id| id.len() == 32), "{seen}");
        assert!(seen.contains("kept"), "{seen}");
    }
    rollback(&daemon, &id, "base");
    assert!(seen(&id).starts_with("0123456789abcdef"), "the snapshot is untouched");

    let source = json!({ "sandbox": id, "snapshot": "base" });
    daemon.root_sh(&id, "echo later > /etc/note").ok();
    let wish = json!({ "name": "at-base", "source": source });
    daemon.expect(201, "POST", "/api/v1/templates", &wish);
    let from = daemon.create_with(&json!({ "template": "at-base" }));
    assert_eq!(daemon.root_sh(&from, "cat /etc/note").ok(), "kept");
}

/// What the writer appends to one file it then appends to the other: at every moment the first has as many lines, or
/// one more.
fn of_forty_snapshots_of_a_writer_none_is_torn(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    let write = "cd ~; i=0; while :; do i=$((i+1)); echo $i >> a; echo $i >> b; done";
    daemon.begin(&id, &json!({ "argv": ["sh", "-c", write] }));
    until("it writes", Patience::Short, || daemon.sh(&id, "test -s ~/b").exit_code == Some(0));
    for _ in 0..40 {
        turn(&daemon, &id);
    }
    let check = "cd ~; a=$(wc -l < a); b=$(wc -l < b); d=$((a-b)); \
                 [ $d = 0 -o $d = 1 ] && [ $(tail -n1 a) = $a ] && [ $(tail -n1 b) = $b ] && echo $a";
    let mut last = 0;
    for name in names(&daemon, &id) {
        let made = fork(&daemon, &id, &json!({ "snapshot": name }));
        let lines: u64 = daemon.sh(&made[0], check).ok().parse().expect("a number");
        assert!(lines >= last, "{name} is older than the one before");
        last = lines;
        daemon.destroy(&made[0]);
    }
    assert!(last > 0);
}

#[test]
fn what_happens_at_once_happens_one_after_the_other() {
    let daemon = crate::daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo first > ~/note").ok();
    snapshot(&daemon, &id, "first");
    daemon.sh(&id, "echo second > ~/note").ok();
    snapshot(&daemon, &id, "second");
    let (daemon, id) = (&daemon, id.as_str());
    std::thread::scope(|scope| {
        let turns: Vec<_> = (0..8).map(|_| scope.spawn(move || turn(daemon, id))).collect();
        let execs: Vec<_> =
            (0..8).map(|_| scope.spawn(move || daemon.sh(id, "sync; echo ran").ok())).collect();
        assert!(execs.into_iter().all(|exec| exec.join().expect("an answer") == "ran"));
        let mut numbers: Vec<u64> = turns
            .into_iter()
            .map(|turn| turn.join().expect("an answer")["turn"].as_u64().expect("a number"))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
    });
    std::thread::scope(|scope| {
        let back = |name: &'static str| move || rollback(daemon, id, name);
        let both = ["first", "second"].map(|name| scope.spawn(back(name)));
        both.into_iter().for_each(|view| assert_eq!(view.join().expect("it")["state"], "running"));
    });
    let note = daemon.sh(id, "cat ~/note").ok();
    assert!(["first", "second"].contains(&note.as_str()), "{note}");
    std::thread::scope(|scope| {
        let forked =
            scope.spawn(move || daemon.request("POST", &at(id, "fork"), &json!({ "count": 3 })));
        daemon.destroy(id);
        let (status, answer) = forked.join().expect("an answer");
        assert!([201, 404, 409].contains(&status), "{status} {answer:#}");
        let made = answer["sandboxes"].as_array().map_or(0, Vec::len);
        assert_eq!(daemon.ids().len(), made, "all or none");
    });
}

fn the_oldest_turns_give_way_and_names_are_unique(ground: &Ground) {
    let setup = ground.setup();
    let mut daemon = Daemon::start_with(&setup.clone().env("SANDKEEP_TURN_PREFIX", "step"));
    let id = daemon.create_with(&json!({ "max_snapshots": 3 }));
    snapshot(&daemon, &id, "mine");
    for _ in 0..3 {
        turn(&daemon, &id);
    }
    assert_eq!(names(&daemon, &id), ["mine", "step-0002", "step-0003"]);
    let twice = daemon.expect(409, "POST", &at(&id, "snapshots"), &json!({ "name": "mine" }));
    assert_eq!(twice["code"], "snapshot_exists");
    for wrong in ["step-0009", "now", "../x", "a b"] {
        daemon.expect(400, "POST", &at(&id, "snapshots"), &json!({ "name": wrong }));
    }
    daemon.kill_9();
    daemon.start_again(&setup);
    assert_eq!(turn(&daemon, &id)["name"], "turn-0004", "a number is never used again");
    daemon.expect(204, "DELETE", &at(&id, "snapshots/turn-0004"), &Value::Null);
    daemon.expect(204, "DELETE", &at(&id, "snapshots/step-0003"), &Value::Null);
    assert_eq!(turn(&daemon, &id)["turn"], 5);
    for name in ["one", "two"] {
        snapshot(&daemon, &id, name);
    }
    let full = daemon.expect(409, "POST", &at(&id, "turns"), &Value::Null);
    assert_eq!(full["code"], "snapshots_full");
    daemon.expect(404, "GET", &at(&id, "snapshots/nowhere"), &Value::Null);
    daemon.expect(400, "POST", "/api/v1/sandboxes", &json!({ "max_snapshots": 101 }));
}

fn snapshots_outlive_the_daemon_and_its_registry(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, FILL).ok();
    let expected = sum(&daemon, &id);
    turn(&daemon, &id);
    snapshot(&daemon, &id, "mine");
    daemon.sh(&id, "rm -rf ~/*").ok();
    daemon.kill_9();
    remove_registry(&daemon);
    daemon.start_again(&ground.setup());
    assert_eq!(names(&daemon, &id), ["turn-0001", "mine"]);
    rollback(&daemon, &id, "mine");
    assert_eq!(sum(&daemon, &id), expected);
    assert_eq!(turn(&daemon, &id)["turn"], 2);
}

fn cli(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

fn said(daemon: &Daemon, arguments: &[&str]) -> String {
    let ran = cli(daemon, arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}\n{}", daemon.said());
    ran.stdout.trim_end().to_owned()
}

#[test]
fn the_command_line_goes_through_time() {
    let daemon = crate::daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo first > ~/note").ok();
    assert_eq!(said(&daemon, &["turn", &id, "-m", "wrote a note"]), "turn-0001");
    assert_eq!(said(&daemon, &["snapshot", &id, "--name", "mine"]), "mine");
    let unnamed = said(&daemon, &["snapshot", &id]);
    assert!(unnamed.starts_with("sn"), "{unnamed}");
    let listed = said(&daemon, &["snapshots", &id]);
    assert!(listed.contains("wrote a note") && listed.contains(&unnamed), "{listed}");
    assert_eq!(
        said(&daemon, &["snapshot", "rm", &id, "mine", &unnamed]),
        format!("mine\n{unnamed}")
    );
    daemon.sh(&id, "echo second > ~/note; exit 7");
    assert_eq!(said(&daemon, &["rollback", &id, "turn-0001"]), id);
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "first");
    let forks = said(&daemon, &["fork", &id, "-n", "2", "--label", "kind=fork"]);
    assert_eq!(forks.lines().count(), 2, "{forks}");
    daemon.verb(&id, "pause");
    daemon.verb(&id, "resume");
    let log = said(&daemon, &["log", &id]);
    for word in [
        "created",
        "turn-0001",
        "wrote a note",
        "exit 7",
        "rolled back",
        "forked",
        "paused",
        "resumed",
    ] {
        assert!(log.contains(word), "{word} is not in:\n{log}");
    }
    let fork = forks.lines().next().expect("a fork");
    assert!(said(&daemon, &["log", fork]).contains(&id), "a fork knows where it came from");
    let log: Value =
        serde_json::from_str(&said(&daemon, &["log", &id, "-n", "1", "--json"])).expect("JSON");
    assert_eq!(log["items"].as_array().map(Vec::len), Some(1), "{log:#}");
    let shown = said(&daemon, &["show", &id]);
    assert!(shown.contains("turns") && shown.contains("snapshots"), "{shown}");
    let template = said(
        &daemon,
        &["template", "from", &format!("{id}@turn-0001"), "--name", "then", "--json"],
    );
    assert!(template.contains("turn-0001"), "{template}");
    assert_eq!(cli(&daemon, &["rollback", &id, "nowhere"]).code, 1);
    assert_eq!(cli(&daemon, &["snapshot"]).code, 2);
}

#[test]
fn the_log_tells_of_files_that_were_changed_and_by_whom() {
    let daemon = crate::daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo one > f").ok();
    snapshot(&daemon, &id, "first");
    let tool = json!({ "path": "f", "content": "two" });
    daemon.expect(200, "POST", &at(&id, "tools/write_file"), &tool);
    daemon.expect(200, "POST", &at(&id, "tools/read_file"), &json!({ "path": "f" }));
    daemon.expect(201, "PUT", &at(&id, "files?path=g"), &json!("written"));
    let there = json!({ "from": "g", "to": "h" });
    daemon.expect(200, "POST", &at(&id, "files/move"), &there);
    daemon.expect(404, "DELETE", &at(&id, "files?path=missing"), &Value::Null);
    daemon.expect(204, "DELETE", &at(&id, "files?path=h"), &Value::Null);
    let wish = json!({ "snapshot": "first", "paths": ["f"] });
    daemon.expect(200, "POST", &at(&id, "revert"), &wish);
    let told = || {
        let log = daemon.expect(200, "GET", &at(&id, "log"), &Value::Null);
        let items = log["items"].as_array().expect("items").clone();
        items.into_iter().filter(|item| item["by"].is_string()).collect::<Vec<_>>()
    };
    let entries = told();
    let said: Vec<String> = entries
        .iter()
        .map(|item| {
            assert_eq!(item["by"], "local", "{item}");
            let text = |name: &str| item[name].as_str().unwrap_or("-").to_owned();
            let paths = item["paths"].to_string();
            let path = if item["paths"].is_array() { paths } else { text("path") };
            format!("{} {} {path} {}", text("event"), text("change"), text("tool"))
        })
        .collect();
    assert_eq!(
        said,
        [
            "file_changed written f write_file",
            "file_changed written g -",
            "file_changed moved g -",
            "file_changed deleted h -",
            "reverted - [\"/home/user/f\"] -",
        ]
    );
    let mut log = binary();
    log.env("SANDKEEP_URL", daemon.url()).args(["log", &id]);
    let shown: Ran = log.output().expect("the binary runs").into();
    assert!(shown.stdout.contains("written  f  with write_file  by local"), "{shown:?}");
    assert!(shown.stdout.contains("/home/user/f  to first  by local"), "{shown:?}");
}
