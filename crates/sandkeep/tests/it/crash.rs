//! The daemon, the launcher or a guest dies, or files of the data directory are lost or damaged.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::daemon;
use crate::support::{
    Daemon, Patience, Setup, children_named, doctor, kill_sandbox, processes_in_cgroup, until,
    until_some, wait_gone,
};

pub fn kill_9(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).expect("not zero");
    kill_process(pid, Signal::KILL).expect("it lives");
}

/// A sandbox with a file and a background process, whose id inside is returned as well.
fn with_process(daemon: &Daemon) -> (String, String) {
    let id = daemon.create_with(&json!({ "labels": { "kept": "yes" } }));
    let pid = daemon.sh(&id, "echo kept > ~/note; sleep 100000 >/dev/null 2>&1 & echo $!").ok();
    (id, pid)
}

fn assert_untouched(daemon: &Daemon, (id, pid): &(String, String)) {
    assert_eq!(daemon.state(id), "running");
    assert_eq!(daemon.sh(id, "cat ~/note").ok(), "kept");
    assert_eq!(daemon.sh(id, &format!("cat /proc/{pid}/comm")).ok(), "sleep");
}

/// What a sandbox is, without when it was last used, which a crash may tell too early, and how much it holds, which the
/// filesystem tells when it has written it.
fn described(daemon: &Daemon, id: &str) -> Value {
    let mut view = daemon.get(id);
    assert!(view["last_activity_at"].take().is_string(), "{view}");
    for space in ["space_used_bytes", "space_used"] {
        assert!(view[space].take().is_u64(), "{view}");
    }
    view
}

#[test]
fn processes_go_on_while_the_daemon_is_away_and_after() {
    let mut daemon = daemon!();
    let sandbox = with_process(&daemon);
    let before = described(&daemon, &sandbox.0);
    let inside = processes_in_cgroup(&format!("{}/{}", daemon.instance(), sandbox.0));
    assert_eq!(inside.len(), 2, "the guest and the sleep");
    daemon.kill_9();
    let still = processes_in_cgroup(&format!("{}/{}", daemon.instance(), sandbox.0));
    assert_eq!(inside, still);
    daemon.start_again(&Setup::default());
    assert_eq!(described(&daemon, &sandbox.0), before);
    assert_untouched(&daemon, &sandbox);
    daemon.assert_no_leaks();
}

#[test]
fn an_exec_under_way_when_the_daemon_dies_still_comes_to_its_end() {
    let mut daemon = daemon!();
    let id = daemon.create();
    // More output than fits any window: it can only end if the next daemon takes it.
    let command = "echo on; while ! [ -e /tmp/go ]; do sleep 0.05; done; \
                   yes | head -c 3000000; yes | head -c 3000000 >&2; echo done > /tmp/done";
    let mut events = daemon.events(&id, &json!({ "command": command }));
    assert_eq!(events.next().expect("an event")["type"], "started");
    assert_eq!(events.next().expect("an event")["data"], "on\n");
    daemon.kill_9();
    assert_eq!(
        events.next(),
        None,
        "the stream breaks off, and tells no end that it does not know"
    );
    daemon.start_again(&Setup::default());
    daemon.sh(&id, "touch /tmp/go").ok();
    until("the exec has come to its end", Patience::Short, || {
        daemon.sh(&id, "cat /tmp/done 2>/dev/null").stdout_text() == "done\n"
    });
    until("nothing of it is left", Patience::Short, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() == 1
    });
}

#[test]
fn a_timeout_holds_while_the_daemon_is_away() {
    let mut daemon = daemon!();
    let id = daemon.create();
    let body = json!({ "command": "sleep 100000 & sleep 100000", "timeout_ms": 1_500 });
    let mut events = daemon.events(&id, &body);
    assert_eq!(events.next().expect("an event")["type"], "started");
    until("the command runs", Patience::Short, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() >= 3
    });
    daemon.kill_9();
    until("the tree is killed by the guest alone", Patience::Short, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() == 1
    });
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
}

#[test]
fn a_killed_launcher_is_replaced_and_sandboxes_do_not_notice() {
    let daemon = daemon!();
    let sandbox = with_process(&daemon);
    let launchers = || children_named(daemon.pid(), "sandkeep-launcher");
    let first = launchers();
    assert_eq!(first.len(), 1, "{first:?}");
    kill_9(first[0]);
    wait_gone(first[0]);
    let created = until_some("a sandbox can be made again", Patience::Short, || {
        let (status, view) = daemon.request("POST", "/api/v1/sandboxes", &json!({}));
        (status == 201).then(|| view["id"].as_str().expect("an id").to_owned())
    });
    assert_eq!(daemon.sh(&created, "echo new").ok(), "new");
    let second = launchers();
    assert!(second.len() == 1 && second != first, "{first:?} {second:?}");
    assert_untouched(&daemon, &sandbox);
    let running = daemon.ids().into_iter().filter(|id| daemon.state(id) == "running").count();
    assert_eq!(running, 2, "a create that failed leaves nothing that runs");
}

#[test]
fn a_guest_killed_from_outside_is_noticed_and_said() {
    let daemon = daemon!();
    let (id, _) = with_process(&daemon);
    let neighbour = with_process(&daemon);
    let inside = processes_in_cgroup(&format!("{}/{id}", daemon.instance()));
    let is_guest = |pid: &&u32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "sandkeep-guest")
    };
    kill_9(*inside.iter().find(is_guest).expect("a guest"));
    let view = until_some("its death is noticed", Patience::Short, || {
        let view = daemon.get(&id);
        (view["state"] != "running").then_some(view)
    });
    assert!(["stopped", "failed"].contains(&view["state"].as_str().unwrap_or("")), "{view}");
    assert!(view["reason"].as_str().is_some_and(|why| why.contains("killed")), "{view}");
    for pid in inside {
        wait_gone(pid);
    }
    daemon.assert_no_leaks();
    assert_untouched(&daemon, &neighbour);
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
}

#[test]
fn a_guest_that_died_while_the_daemon_was_away_is_noticed_at_the_start() {
    let mut daemon = daemon!();
    let (id, _) = with_process(&daemon);
    kill_sandbox(&mut daemon, &id);
    daemon.start_again(&Setup::default());
    let view = until_some("it is no longer called running", Patience::Short, || {
        let view = daemon.get(&id);
        (view["state"] != "running").then_some(view)
    });
    assert!(view["reason"].is_string(), "{view}");
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
}

pub fn remove_registry(daemon: &Daemon) {
    for suffix in ["", "-wal", "-shm"] {
        let path = daemon.data_dir().join(format!("registry.sqlite3{suffix}"));
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{path:?}"),
        }
    }
}

#[test]
fn without_its_registry_a_daemon_adopts_what_is_there() {
    let mut daemon = daemon!();
    let running = with_process(&daemon);
    let stopped = daemon.create();
    daemon.verb(&stopped, "stop");
    let (before, before_stopped) = (daemon.get(&running.0), daemon.get(&stopped));
    daemon.kill_9();
    remove_registry(&daemon);
    daemon.start_again(&Setup::default());
    for (view, before) in [(daemon.get(&running.0), before), (daemon.get(&stopped), before_stopped)]
    {
        for field in
            ["id", "owner", "labels", "resources", "privilege", "template", "runtime", "state"]
        {
            assert_eq!(view[field], before[field], "{field}");
        }
    }
    assert_untouched(&daemon, &running);
    daemon.assert_no_leaks();
}

#[test]
fn a_spoilt_home_is_set_aside_and_adopted_again_once_repaired() {
    let mut daemon = daemon!();
    let healthy = with_process(&daemon);
    let (spoilt, _) = with_process(&daemon);
    daemon.kill_9();
    let meta = daemon.home(&spoilt).join("meta.json");
    let good = fs::read(&meta).expect("meta.json");
    fs::write(&meta, b"{ \"id\": \"sb").expect("root writes anywhere");
    remove_registry(&daemon);
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.ids(), [healthy.0.as_str()]);
    assert_untouched(&daemon, &healthy);
    let aside = set_aside(&daemon, &spoilt).expect("it is in quarantine");
    let (_, said) = doctor(&daemon.data_dir());
    assert!(said.to_string().contains(&spoilt), "doctor does not show it: {said:#}");

    assert!(daemon.stop().success());
    fs::write(aside.join("meta.json"), good).expect("root writes anywhere");
    fs::rename(&aside, daemon.home(&spoilt)).expect("the place is free");
    daemon.start_again(&Setup::default());
    if daemon.state(&spoilt) != "running" {
        daemon.verb(&spoilt, "start");
    }
    assert_eq!(daemon.sh(&spoilt, "cat ~/note").ok(), "kept", "its files were never touched");
    assert_untouched(&daemon, &healthy);
}

#[test]
fn a_spoilt_meta_is_written_anew_from_the_registry() {
    let mut daemon = daemon!();
    let sandbox = with_process(&daemon);
    let before = described(&daemon, &sandbox.0);
    daemon.kill_9();
    let meta = daemon.home(&sandbox.0).join("meta.json");
    fs::write(&meta, b"").expect("root writes anywhere");
    daemon.start_again(&Setup::default());
    assert_eq!(described(&daemon, &sandbox.0), before);
    assert_untouched(&daemon, &sandbox);

    // Now the file alone must be enough again.
    daemon.kill_9();
    remove_registry(&daemon);
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.get(&sandbox.0)["labels"], before["labels"]);
    assert_untouched(&daemon, &sandbox);
}

#[test]
fn after_a_reboot_of_the_host_sandboxes_are_stopped_and_whole() {
    let mut daemon = daemon!();
    let (id, _) = with_process(&daemon);
    kill_sandbox(&mut daemon, &id);
    let path = daemon.home(&id).join("meta.json");
    let mut meta: Value =
        serde_json::from_slice(&fs::read(&path).expect("meta.json")).expect("JSON");
    meta["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
    fs::write(&path, meta.to_string()).expect("root writes anywhere");
    daemon.start_again(&Setup::default());
    let view = daemon.get(&id);
    assert_eq!(view["state"], "stopped", "{view}");
    assert!(view["reason"].as_str().is_some_and(|r| r.contains("host_rebooted")), "{view}");
    assert_eq!(daemon.verb(&id, "start")["state"], "running");
    assert_eq!(daemon.sh(&id, "cat ~/note").ok(), "kept");
}

fn set_aside(daemon: &Daemon, id: &str) -> Option<std::path::PathBuf> {
    let entries = fs::read_dir(daemon.data_dir().join("quarantine")).ok()?;
    let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    paths.find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(id)))
}

#[test]
fn what_was_acknowledged_just_before_a_crash_is_there_after_it() {
    let mut daemon = daemon!();
    let created = daemon.create_with(&json!({ "labels": { "n": "1" } }));
    let destroyed = daemon.create();
    let stopped = daemon.create();
    daemon.verb(&stopped, "stop");
    daemon.destroy(&destroyed);
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.get(&created)["labels"]["n"], "1");
    assert_eq!(daemon.state(&created), "running");
    assert_eq!(daemon.state(&stopped), "stopped");
    daemon.expect(404, "GET", &format!("/api/v1/sandboxes/{destroyed}"), &Value::Null);
}
