//! A daemon whose volumes are datasets of a real pool, on a file system that cannot be id-mapped.

use serde_json::json;

use crate::support::{Daemon, Pool, Setup, doctor, zfs};

/// A pool of one's own, or a skip.
macro_rules! pool {
    () => {
        match Pool::make() {
            Ok(pool) => pool,
            Err(reason) => {
                eprintln!("SKIP {}: {reason}", crate::test_name!());
                return;
            }
        }
    };
}

fn setup(pool: &Pool) -> Setup {
    Setup::default().env("SANDKEEP_STORAGE", &format!("zfs:{}", pool.name))
}

/// All that is of this daemon in the pool.
fn own(daemon: &Daemon) -> String {
    let claim =
        std::fs::read_to_string(daemon.data_dir().join("storage/zfs/pool")).expect("a file");
    let own = claim.lines().next().and_then(|line| line.strip_prefix("dataset "));
    own.expect("a dataset").to_owned()
}

/// What the doctor says of a dataset that nobody owns.
fn leaked(daemon: &Daemon) -> Vec<(String, String)> {
    let (clean, told) = doctor(&daemon.data_dir());
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let found = told["found"].as_array().expect("a list").iter();
    let nobodys = found.filter(|found| found["owner"].is_null());
    let nobodys: Vec<_> =
        nobodys.map(|found| (text(&found["name"]), text(&found["detail"]))).collect();
    assert_eq!(clean, nobodys.is_empty(), "{told:#}");
    nobodys
}

#[test]
fn sandboxes_on_a_pool_live_through_a_crash_and_leave_nothing() {
    let pool = pool!();
    let setup = setup(&pool);
    let mut daemon = Daemon::start_with(&setup);
    let id = daemon.create_with(&json!({"resources": {"disk_mb": 16}}));
    assert_eq!(daemon.sh(&id, "echo kept > file; cat file; id -u").ok(), "kept\n1000");
    assert_eq!(daemon.sh(&id, "stat -c %u:%g / /home/user file").ok(), "0:0\n1000:1000\n1000:1000");
    assert_eq!(daemon.root_sh(&id, "touch /tmp/roots; stat -c %u /tmp/roots").ok(), "0");
    let full = daemon.sh(&id, "head -c 64M /dev/urandom > large");
    assert_ne!(full.exit_code, Some(0), "a quota of 16 MiB took 64");
    daemon.sh(&id, "rm -f large").ok();

    daemon.kill_9();
    daemon.start_again(&setup);
    assert_eq!(daemon.sh(&id, "cat file").ok(), "kept", "after a crash");
    daemon.verb(&id, "stop");
    daemon.verb(&id, "start");
    assert_eq!(daemon.sh(&id, "cat file").ok(), "kept", "after a start");
    daemon.assert_no_leaks();

    let others = ["bwrap", "crun", "runc"].map(|runtime| {
        let other = daemon.create_with(&json!({"runtime": runtime}));
        assert_eq!(daemon.sh(&other, "echo x > f; cat f; id -u").ok(), "x\n1000", "{runtime}");
        other
    });
    daemon.assert_no_leaks();
    for id in others.iter().chain([&id]) {
        daemon.destroy(id);
    }
    assert!(daemon.stop().success());
    let (clean, told) = doctor(&daemon.data_dir());
    assert!(clean, "{told}");
    assert_eq!(pool.contents(), Vec::<String>::new(), "the pool is as it was");
}

/// Forks are clones of the same origin as their sandbox, and outlive it.
#[test]
fn a_sandbox_whose_forks_run_is_rolled_back_and_destroyed() {
    let pool = pool!();
    let mut daemon = Daemon::start_with(&setup(&pool));
    let id = daemon.create();
    let at = |rest: &str| format!("/api/v1/sandboxes/{id}/{rest}");
    daemon.sh(&id, "echo first > note").ok();
    daemon.expect(201, "POST", &at("snapshots"), &json!({ "name": "first" }));
    daemon.sh(&id, "echo second > note").ok();
    let forked = daemon.expect(201, "POST", &at("fork"), &json!({ "snapshot": "first" }));
    let fork = forked["sandboxes"][0]["id"].as_str().expect("an id").to_owned();
    daemon.sh(&fork, "sleep 100000 < note >/dev/null 2>&1 & echo mine > own").ok();
    daemon.expect(200, "POST", &at("rollback"), &json!({ "snapshot": "first" }));
    assert_eq!(daemon.sh(&id, "cat note").ok(), "first");
    assert_eq!(
        daemon.sh(&fork, "cat note own; pgrep -x sleep > /dev/null && echo runs").ok(),
        "first\nmine\nruns"
    );
    daemon.destroy(&id);
    assert_eq!(
        daemon.sh(&fork, "cat note own; pgrep -x sleep > /dev/null && echo runs").ok(),
        "first\nmine\nruns"
    );
    daemon.verb(&fork, "stop");
    daemon.verb(&fork, "start");
    assert_eq!(daemon.sh(&fork, "cat note own").ok(), "first\nmine", "after a start");
    daemon.destroy(&fork);
    assert!(daemon.stop().success());
    assert_eq!(pool.contents(), Vec::<String>::new(), "the pool is as it was");
}

#[test]
fn the_doctor_finds_datasets_that_are_nobodys() {
    let pool = pool!();
    let daemon = Daemon::start_with(&setup(&pool));
    let id = daemon.create();
    let own = own(&daemon);
    assert_eq!(leaked(&daemon), [], "all is somebody's");
    let volume = format!("{own}/volumes/{id}");
    let strays = [
        (format!("{own}/volumes/stray"), "nothing has such a name"),
        (format!("{own}/layers/removed"), "it was removed, and nothing stands on it"),
        (format!("{volume}/tree.former"), "it is not the tree, and has no snapshots"),
    ];
    for (stray, _) in &strays {
        zfs(&["create", "-o", "canmount=off", stray]);
    }
    zfs(&["set", "sandkeep:dead=on", &strays[1].0]);
    let mut found = leaked(&daemon);
    let mut expected: Vec<_> =
        strays.iter().map(|(name, why)| (name.clone(), (*why).to_owned())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    for (stray, _) in &strays {
        zfs(&["destroy", stray]);
    }
    assert_eq!(leaked(&daemon), []);
}
