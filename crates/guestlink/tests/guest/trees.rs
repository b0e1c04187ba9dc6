//! Timeouts and cancels kill every process of an exec, however it hides.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandkeep_guestlink::*;

use crate::harness::*;

/// A child, a grandchild in a session of its own, and a daemon that has left every parent and session behind; then a
/// report, and waiting.
const FAMILY: &str = "sleep 1001 & setsid sh -c 'sleep 1002 & sleep 1002' & \
    (setsid setsid sh -c '(sleep 1003 &) ; exec sleep 1003' &) ; \
    while [ $(ps ax | grep -c '[s]leep 100[123]') -lt 5 ]; do sleep 0.01; done; echo ready; wait; sleep 1004";

/// Each generation ends soon after it has created the next, so there is never a moment to catch it.
const STORM: &str = "f() { (f &) ; (f &) ; } ; n=0; while [ $n -lt 20 ]; do (while :; do (true &) ; done) & n=$((n+1)); done; wait";

fn with_timeout(script: &str, timeout: Duration) -> ExecRequest {
    let mut request = sh(script);
    request.timeout = Some(timeout);
    request
}

/// The family's output until its timeout. A timeout before all of it exists proves nothing: then it gets more time.
async fn timed_out_family(guest: &TestGuest) -> Collected {
    let mut timeout = Duration::from_millis(700);
    loop {
        let ran = guest.run(with_timeout(FAMILY, timeout)).await;
        assert_eq!(ran.end.outcome, Outcome::TimedOut);
        assert!(ran.end.duration < timeout + Duration::from_millis(4300), "{:?}", ran.end);
        assert_eq!(sleepers(guest).await, "0");
        if !ran.out().is_empty() || timeout > PATIENCE {
            return ran;
        }
        timeout *= 2;
    }
}

const SLEEPERS: &str = "ps ax | grep -c '[s]leep 100'";

async fn sleepers(guest: &TestGuest) -> String {
    guest.sh(SLEEPERS).await.out().trim().to_owned()
}

#[tokio::test]
async fn a_timeout_kills_the_whole_tree_in_a_v1_leaf() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    assert_eq!(timed_out_family(&guest).await.out(), "ready\n");
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
    // Everything was started before the signal arrives: a forked shell that is not yet another program handles the
    // signal with its own trap, and forgets it.
    let child = "trap 'echo heard; exit' TERM; sleep 1001 & \
        while read -r name </proc/$!/comm && [ $name != sleep ]; do :; done; \
        echo child; while :; do wait; done";
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
        // Its last words come a little before its end: a cancel may be faster.
        let canceled = cut == "by a cancel" && ran.end.outcome == Outcome::Canceled;
        assert!(canceled || ran.end.outcome == Outcome::Exited(3), "{cut}: {:?}", ran.end);
        assert_eq!(pool.tasks(), Vec::<String>::new(), "{cut}");
    }
}

#[tokio::test]
async fn a_fork_storm_in_a_v1_leaf_is_killed() {
    let Some(pool) = FreezerPool::new() else { return };
    let guest = TestGuest::start_with(pool.clone());
    let ran = guest.run(with_timeout(STORM, Duration::from_millis(300))).await;
    assert_eq!(ran.end.outcome, Outcome::TimedOut);
    assert_eq!(pool.tasks(), Vec::<String>::new());
}

#[tokio::test]
async fn without_a_leaf_a_daemon_that_has_left_all_behind_is_killed() {
    let guest = TestGuest::start();
    let other = sleeper(&guest, "exec sleep 2001").await;
    assert_eq!(timed_out_family(&guest).await.out(), "ready\n");
    assert_eq!(guest.sh("ps ax | grep -c '[s]leep 2001'").await.out(), "1\n", "another's lives");
    guest.client.cancel(&other).await.unwrap();
}

#[tokio::test]
async fn without_a_leaf_a_fork_storm_is_killed() {
    let guest = TestGuest::start();
    let stopped = sleeper(&guest, "kill -STOP $$; sleep 2002").await;
    let ran = guest.run(with_timeout(STORM, Duration::from_millis(300))).await;
    assert_eq!(ran.end.outcome, Outcome::TimedOut);
    // A process that was stopped by its own wish is still stopped; everything else goes on.
    let left = guest.sh("ps ax -o stat=,comm=,args= | grep '[k]ill -STOP' | cut -c1").await;
    assert_eq!(left.out(), "T\n");
    let storm = guest.sh("ps ax | grep -c '[w]hile [$]n'").await;
    assert_eq!(storm.out(), "0\n", "{storm:?}");
    guest.client.cancel(&stopped).await.unwrap();
}

#[tokio::test]
async fn without_a_leaf_what_a_command_leaves_behind_lives_on_and_is_reaped() {
    let guest = TestGuest::start();
    let ran = guest.sh("setsid sh -c 'sleep 1001; :' >/dev/null 2>&1 & exit 3").await;
    assert_eq!(ran.end.outcome, Outcome::Exited(3));
    until_output(&guest, SLEEPERS, "2\n").await;
    guest.sh("pkill -f 'sleep 1001'").await;
    until_output(&guest, "ps ax -o comm= | grep -c keeper; ps ax -o stat= | grep -c Z", "1\n0\n")
        .await;
}

#[tokio::test]
async fn who_kills_the_keeper_of_a_tree_kills_the_tree() {
    let guest = TestGuest::start();
    let other = sleeper(&guest, "exec sleep 2001").await;
    let mut request = sh(FAMILY);
    let id = request.id.clone();
    request.env.push(("MARK".to_owned(), "1".to_owned()));
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    // The parent of the command's shell.
    let kill =
        "kill -9 $(ps ax -o ppid=,args= | awk '/[s]leep 1004/ && /echo ready/ { print $1; exit }')";
    guest.sh(kill).await;
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!(ran.end.outcome, Outcome::Signaled(9));
    until_output(&guest, SLEEPERS, "0\n").await;
    assert_eq!(guest.sh("ps ax | grep -c '[s]leep 2001'").await.out(), "1\n", "another's lives");
    let again = guest.client.cancel(&id).await;
    assert!(matches!(again, Err(GuestError::Refused { .. })), "{again:?}");
    guest.client.cancel(&other).await.unwrap();
}

#[tokio::test]
async fn a_keeper_that_is_stopped_tells_the_end_all_the_same() {
    let guest = TestGuest::start();
    for _ in 0..20 {
        let ran = guest.sh("kill -STOP $PPID; exit 7").await;
        assert_eq!(ran.end.outcome, Outcome::Exited(7));
    }
}

#[tokio::test]
async fn a_keeper_holds_nothing_of_other_commands_open() {
    let guest = TestGuest::start();
    let mut request = command(&["cat"]);
    request.stdin = Stdin::Piped;
    let mut cat = guest.client.exec(request).await.unwrap();
    // Nobody can look at what it holds, only how much that is: its line to the guest, once it waits.
    let held = guest.sh("while [ $(ls /proc/$PPID/fd | wc -l) -gt 1 ]; do :; done").await;
    assert_eq!(held.end.outcome, Outcome::Exited(0));
    cat.input().close().await.unwrap();
    assert_eq!(collect(&mut cat).await.end.outcome, Outcome::Exited(0));
}

/// Starts a command that goes on, and waits until it does.
async fn sleeper(guest: &TestGuest, script: &str) -> sandkeep_core::ExecId {
    let request = sh(&format!("echo ready; {script}"));
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    id
}

async fn until_output(guest: &TestGuest, script: &str, expected: &str) {
    let waiting = async { while guest.sh(script).await.out() != expected {} };
    tokio::time::timeout(PATIENCE, waiting).await.expect(script);
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
