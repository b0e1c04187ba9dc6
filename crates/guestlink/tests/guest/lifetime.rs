//! How a sandbox ends, and the consequences for execs.

use std::sync::Arc;
use std::time::Duration;

use sandkeep_guestlink::*;

use crate::harness::*;

#[tokio::test]
async fn terminate_asks_first_and_tells_when_all_are_gone() {
    let mut guest = TestGuest::start();
    let request = sh("trap 'echo bye; exit 9' TERM; echo ready; while :; do sleep 0.01; done");
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    guest.client.terminate(PATIENCE).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("bye\n", Outcome::Exited(9)));
    assert!(guest.wait().success());
    assert!(matches!(guest.client.ping().await, Err(GuestError::Unreachable(_))));
}

#[tokio::test]
async fn terminate_kills_what_does_not_listen() {
    let mut guest = TestGuest::start();
    let request = sh(
        "trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo ready; while :; do sleep 0.01; done",
    );
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    guest.client.terminate(Duration::from_millis(100)).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!(ran.end.outcome, Outcome::Signaled(9));
    assert!(guest.wait().success());
}

#[tokio::test]
async fn the_end_of_the_lifeline_ends_the_sandbox() {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let mut guest = TestGuest::start_on(Arc::new(NoLeaves), read);
    let mut execution = guest.client.exec(sh("sleep 1000")).await.unwrap();
    drop(write);
    let ran = collect(&mut execution).await;
    assert_eq!(ran.end.outcome, Outcome::Lost);
    guest.wait();
}

#[tokio::test]
async fn an_exec_of_a_dying_sandbox_is_lost_and_says_so_once() {
    let guest = TestGuest::start();
    let mut request = sh("kill -9 1; sleep 0.1; echo not dead");
    request.privilege = sandkeep_core::Privilege::Root;
    let ran = guest.run(request).await;
    assert_eq!(ran.out(), "not dead\n", "nothing inside can kill its PID 1");
    let mut execution = guest.client.exec(sh("sleep 1000")).await.unwrap();
    drop(guest);
    let ran = collect(&mut execution).await;
    assert_eq!(ran.end.outcome, Outcome::Lost);
    assert!(ran.end.error.is_some());
}

#[tokio::test]
async fn orphans_are_reaped() {
    let guest = TestGuest::start();
    guest.sh("for i in 1 2 3 4 5 6 7 8 9; do (true &) ; done").await;
    let waiting = async { while guest.sh("ps axo stat= | grep -c '^Z'").await.out() != "0\n" {} };
    tokio::time::timeout(PATIENCE, waiting).await.expect("no zombie stays");
}

#[tokio::test]
async fn an_idle_guest_uses_little_memory_also_after_work() {
    let guest = TestGuest::start();
    guest.client.ping().await.unwrap();
    let fresh = guest.anonymous_kib();
    let mut request = sh("head -c 3000000 /dev/zero; cat >/dev/null");
    request.stdin = Stdin::Piped;
    let mut execution = guest.client.exec(request).await.unwrap();
    execution.input().write(&vec![7; 60_000]).await.unwrap();
    execution.input().close().await.unwrap();
    collect(&mut execution).await;
    drop(execution);
    guest.client.ping().await.unwrap();
    let worked = guest.anonymous_kib();
    println!("private memory: {fresh} KiB fresh, {worked} KiB after work");
    assert!(fresh <= 64 && worked <= 64, "{fresh} KiB fresh, {worked} KiB after work");
}
