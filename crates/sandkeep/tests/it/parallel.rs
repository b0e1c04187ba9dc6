//! Many concurrent requests.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use serde_json::{Value, json};

use crate::crash::kill_9;
use crate::daemon;
use crate::support::{Daemon, Patience, Setup, until};

const MANY: usize = 50;

#[test]
fn fifty_sandboxes_made_used_and_destroyed_at_once_leave_nothing() {
    let daemon = daemon!();
    let all_there = Barrier::new(MANY);
    let one = |number: usize| {
        let id = daemon.create_with(&json!({ "labels": { "n": number.to_string() } }));
        all_there.wait();
        let command = format!("echo {number} > ~/n; cat ~/n; ps -e -o comm= | grep -c guest");
        assert_eq!(daemon.sh(&id, &command).ok(), format!("{number}\n1"));
        all_there.wait();
        assert_eq!(daemon.get(&id)["labels"]["n"], number.to_string());
        daemon.destroy(&id);
        id
    };
    let ids: BTreeSet<String> = std::thread::scope(|scope| {
        let one = &one;
        let threads: Vec<_> = (0..MANY).map(|number| scope.spawn(move || one(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(ids.len(), MANY, "ids are unique");
    assert_eq!(daemon.ids(), [""; 0]);
    daemon.assert_no_leaks();
}

#[test]
fn verbs_on_one_sandbox_at_once_are_put_in_order() {
    let daemon = daemon!();
    let id = daemon.create();
    let target = format!("/api/v1/sandboxes/{id}");
    std::thread::scope(|scope| {
        for round in 0..12 {
            let verb = if round % 2 == 0 { "stop" } else { "start" };
            let (daemon, target) = (&daemon, &target);
            scope.spawn(move || {
                let (status, answer) =
                    daemon.request("POST", &format!("{target}/{verb}"), &Value::Null);
                assert!([200, 409, 429, 503].contains(&status), "{verb}: {status} {answer}");
            });
        }
    });
    assert!(["running", "stopped"].contains(&&*daemon.state(&id)));
    daemon.assert_no_leaks();
    if daemon.state(&id) == "stopped" {
        daemon.verb(&id, "start");
    }
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
}

#[test]
fn a_sandbox_destroyed_while_commands_run_ends_them_all() {
    let daemon = daemon!();
    let id = daemon.create();
    let target = format!("/api/v1/sandboxes/{id}/execs");
    let body = json!({ "command": "echo up; sleep 100000" });
    std::thread::scope(|scope| {
        let execs: Vec<_> =
            (0..5).map(|_| scope.spawn(|| daemon.request("POST", &target, &body))).collect();
        until("all commands run", Patience::Short, || {
            daemon.sh(&id, "pgrep -cx sleep").stdout_text().trim() == "5"
        });
        daemon.destroy(&id);
        for exec in execs {
            let (status, answer) = exec.join().expect("no panic");
            let ended = answer["outcome"].as_str().unwrap_or_default();
            assert!(status != 200 || ["signaled", "lost", "canceled"].contains(&ended), "{answer}");
        }
    });
    daemon.assert_no_leaks();
}

#[test]
fn kill_9_under_load_loses_and_leaks_nothing() {
    kill_9_under_load(10);
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_kill_9_under_load_loses_and_leaks_nothing() {
    kill_9_under_load(250);
}

/// Kills the daemon at arbitrary moments while many clients use it, many times. The moments depend on the clients'
/// progress, so that they differ in every round.
fn kill_9_under_load(rounds: usize) {
    let mut daemon = daemon!();
    for round in 0..rounds {
        let [created, doomed, destroyed] = load_until_killed(&mut daemon, 3 + round % 11);
        daemon.start_again(&Setup::default());
        let ids: BTreeSet<String> = daemon.ids().into_iter().collect();
        for id in created.difference(&doomed) {
            assert!(ids.contains(id), "round {round}: {id} was acknowledged and is lost");
            if daemon.state(id) != "running" {
                daemon.verb(id, "start");
            }
            assert_eq!(daemon.sh(id, "echo alive").ok(), "alive", "round {round}");
        }
        assert!(ids.is_disjoint(&destroyed), "round {round}: a destroyed one is back");
        daemon.assert_no_leaks();
        for id in ids {
            daemon.destroy(&id);
        }
    }
}

/// The clients' requests and acknowledgements.
#[derive(Default)]
struct Book {
    created: Mutex<BTreeSet<String>>,
    /// May be gone: its end was asked for.
    doomed: Mutex<BTreeSet<String>>,
    /// Must be gone: its end was acknowledged.
    destroyed: Mutex<BTreeSet<String>>,
}

/// Clients create, use and destroy until `enough` sandboxes were made, then the daemon is killed.
fn load_until_killed(daemon: &mut Daemon, enough: usize) -> [BTreeSet<String>; 3] {
    let book = Book::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (book, over, daemon) = (&book, &over, &*daemon);
        for then in [Then::Keep, Then::Destroy, Then::Keep, Then::Destroy] {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && use_one(daemon, book, then).is_some() {}
            });
        }
        until("enough was made", Patience::Long, || {
            book.created.lock().expect("no panic").len() >= enough
        });
        kill_9(daemon.pid());
        over.store(true, Ordering::Relaxed);
    });
    daemon.wait_for_end();
    [book.created, book.doomed, book.destroyed].map(|set| set.into_inner().expect("no panic"))
}

/// `None` once the daemon does not answer any more.
fn use_one(daemon: &Daemon, book: &Book, then: Then) -> Option<()> {
    let (status, view) = daemon.try_request("POST", "/api/v1/sandboxes", &json!({})).ok()?;
    let id = view["id"].as_str().filter(|_| status == 201)?.to_owned();
    book.created.lock().expect("no panic").insert(id.clone());
    let target = format!("/api/v1/sandboxes/{id}");
    let body = json!({ "command": "echo x > ~/x; sleep 1000 >/dev/null 2>&1 &" });
    daemon.try_request("POST", &format!("{target}/execs"), &body).ok()?;
    match then {
        Then::Keep => Some(()),
        Then::Destroy => {
            book.doomed.lock().expect("no panic").insert(id.clone());
            let (status, _) = daemon.try_request("DELETE", &target, &Value::Null).ok()?;
            assert_eq!(status, 204);
            book.destroyed.lock().expect("no panic").insert(id);
            Some(())
        }
    }
}

#[derive(Clone, Copy)]
enum Then {
    Keep,
    Destroy,
}
