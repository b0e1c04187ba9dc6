//! Timeouts and cancels kill every process of an exec, however it hides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandkeep::guest::*;

use crate::harness::*;

/// A child, a grandchild in a session of its own, and a daemon that has left every parent and
/// session behind; then says so and waits.
const FAMILY: &str = "sleep 1001 & setsid sh -c 'sleep 1002 & sleep 1002' & \
    (setsid setsid sh -c '(sleep 1003 &) ; exec sleep 1003' &) ; \
    while [ $(ps ax | grep -c '[s]leep 100[123]') -lt 5 ]; do sleep 0.01; done; echo ready; wait; sleep 1004";

fn with_timeout(script: &str, timeout: Duration) -> ExecRequest {
    let mut request = sh(script);
    request.timeout = Some(timeout);
    request
}

async fn sleepers(guest: &TestGuest) -> String {
    guest.sh("ps ax | grep -c '[s]leep 100'").await.out().trim().to_owned()
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree_in_a_v1_leaf() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let ran = guest.run(with_timeout(FAMILY, Duration::from_millis(700))).await;
    assert_eq!((ran.out().as_str(), &ran.end.outcome), ("ready\n", &Outcome::TimedOut));
    assert!(ran.end.duration < Duration::from_secs(5), "{:?}", ran.end);
    assert_eq!(sleepers(&guest).await, "0");
    assert_eq!(pool.tasks(), Vec::<String>::new());
}

#[tokio::test]
async fn a_cancel_kills_the_whole_tree_in_a_v1_leaf() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let request = sh(FAMILY);
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    guest.client.cancel(&id).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!(ran.end.outcome, Outcome::Canceled);
    assert_eq!(pool.tasks(), Vec::<String>::new());
    let again = guest.client.cancel(&id).await;
    assert!(matches!(again, Err(GuestError::Refused { .. })), "{again:?}");
}

#[tokio::test]
async fn an_end_waits_for_all_that_obey_and_hears_their_last_words() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let child = "trap 'echo heard; exit' TERM; echo child; while :; do sleep 1001 & wait; done";
    let script = "trap 'exit 3' TERM; sh -c \"$1\" & while :; do wait; done";
    let request = command(&["/bin/sh", "-c", script, "sh", child]);
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"child\n").await;
    guest.client.end(&id, PATIENCE).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("heard\n", Outcome::Exited(3)));
    assert_eq!(pool.tasks(), Vec::<String>::new());
}

#[tokio::test]
async fn an_end_goes_on_without_the_daemon_and_a_cancel_cuts_it_short() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let script = "trap 'echo bye; exit 3' TERM; (trap '' TERM; sleep 1001 & echo ready; wait; sleep 1001) & while :; do wait; done";
    for cut in ["by the grace", "by a cancel"] {
        let request = sh(script);
        let id = request.id.clone();
        let mut execution = guest.client.exec(request).await.unwrap();
        wait_for_output(&mut execution, b"ready\n").await;
        let grace = if cut == "by the grace" { Duration::from_millis(100) } else { PATIENCE };
        guest.client.end(&id, grace).await.unwrap();
        wait_for_output(&mut execution, b"bye\n").await;
        // Nobody is there while it ends.
        drop(execution);
        if cut == "by a cancel" {
            guest.client.cancel(&id).await.unwrap();
        }
        let said = Offsets { stdout: 10, stderr: 0 };
        let mut execution = guest.client.attach(&id, said).await.unwrap();
        let ran = collect_from(&mut execution, said).await;
        assert_eq!(ran.end.outcome, Outcome::Exited(3), "{cut}");
        assert_eq!(pool.tasks(), Vec::<String>::new(), "{cut}");
    }
}

#[tokio::test]
async fn a_fork_storm_in_a_v1_leaf_is_killed() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    // Each generation ends soon after it has made the next: there is never a moment to catch it.
    let storm = "f() { (f &) ; (f &) ; } ; n=0; while [ $n -lt 20 ]; do (while :; do (true &) ; done) & n=$((n+1)); done; wait";
    let ran = guest.run(with_timeout(storm, Duration::from_millis(300))).await;
    assert_eq!(ran.end.outcome, Outcome::TimedOut);
    assert_eq!(pool.tasks(), Vec::<String>::new());
}

#[tokio::test]
async fn without_a_leaf_descendants_and_the_session_are_killed() {
    let guest = TestGuest::start();
    let script = "sleep 1001 & setsid sleep 1002 & (sleep 1003 &) ; sleep 1004";
    let ran = guest.run(with_timeout(script, Duration::from_millis(300))).await;
    assert_eq!(ran.end.outcome, Outcome::TimedOut);
    assert_eq!(sleepers(&guest).await, "0");
}

#[tokio::test]
async fn a_timeout_leaves_other_execs_alone() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let mut other = {
        let mut request = command(&["cat"]);
        request.stdin = Stdin::Piped;
        guest.client.exec(request).await.unwrap()
    };
    let ran = guest.run(with_timeout("sleep 1001", Duration::from_millis(50))).await;
    assert_eq!(ran.end.outcome, Outcome::TimedOut);
    other.input().write(b"alive").await.unwrap();
    other.input().close().await.unwrap();
    assert_eq!(collect(&mut other).await.out(), "alive");
}

#[tokio::test]
async fn a_command_is_in_its_leaf_before_its_first_instruction() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool);
    let ran = guest.run(command(&["cat", "/proc/self/cgroup"])).await;
    assert!(ran.out().contains(":freezer:/sandkeep-test-"), "{}", ran.out());
}

#[tokio::test]
async fn a_nonzero_end_with_an_oom_kill_in_the_leaf_is_out_of_memory() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    pool.oom_kills.store(1, Ordering::Relaxed);
    assert_eq!(guest.sh("kill -9 $$").await.end.outcome, Outcome::OomKilled);
    assert_eq!(guest.sh("exit 0").await.end.outcome, Outcome::Exited(0));
    pool.oom_kills.store(0, Ordering::Relaxed);
    assert_eq!(guest.sh("kill -9 $$").await.end.outcome, Outcome::Signaled(9));
}

#[tokio::test]
async fn a_leaf_stays_in_use_while_its_exec_is_detached_and_is_adopted_after_a_restart() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let request = sh("sleep 1001");
    let id = request.id.clone();
    let leaves = Arc::strong_count(&pool);
    drop(guest.client.exec(request).await.unwrap());
    assert_eq!(Arc::strong_count(&pool), leaves + 1, "the detached exec holds its leaf");

    // The daemon that comes after knows neither the exec nor the leaf.
    let restarted = guest.another_client(pool.clone());
    let mut execution = restarted.attach(&id, Offsets::default()).await.unwrap();
    let held = Arc::strong_count(&pool);
    restarted.cancel(&id).await.unwrap();
    assert_eq!(collect(&mut execution).await.end.outcome, Outcome::Canceled);
    drop(execution);
    assert_eq!(Arc::strong_count(&pool), held - 1, "the end gives the leaf back");
}
