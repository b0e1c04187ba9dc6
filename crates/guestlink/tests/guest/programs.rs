//! Programs that the guest keeps for the host: executed by descriptor, from no directory, and inaccessible to others.

use sandkeep_guestlink::*;
use toolbox::{Decoder, Entry, Frame, Operation, Request, encode};

use crate::harness::*;

/// One run of the toolbox.
fn toolbox(user: &str) -> ExecRequest {
    ExecRequest { user: user.to_owned(), stdin: Stdin::Piped, ..command(&["sandkeep-toolbox"]) }
}

/// The guest's private memory when idle: stack, heap and a few pages of its data. Temporary memory is returned, because
/// every sandbox has a guest.
const IDLE_MAX_KIB: u64 = 64;

/// How many descriptors the guest has when nothing of any exec is left.
async fn idle_descriptors(guest: &TestGuest) -> usize {
    let mut last = 0;
    let settled = async {
        loop {
            let left = guest.client.execs().await.unwrap();
            // Until it sleeps it may have the connection of this very request.
            while !guest.is_asleep() {
                tokio::task::yield_now().await;
            }
            let now = guest.descriptors();
            if left.is_empty() && now == last {
                return now;
            }
            last = now;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("the guest comes to rest")
}

async fn stat(client: &GuestClient, request: ExecRequest, path: &str) -> Entry {
    let mut execution = client.exec_toolbox(request).await.unwrap();
    let operation = Operation::Stat { path: path.into() };
    let mut asked = Vec::new();
    encode(&Frame::Head(serde_json::to_vec(&Request::new(operation)).unwrap()), &mut asked);
    encode(&Frame::End, &mut asked);
    execution.input().write(&asked).await.unwrap();
    execution.input().close().await.unwrap();
    let ran = collect(&mut execution).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(0), "{ran:?}");
    let mut decoder = Decoder::new();
    decoder.feed(&ran.stdout);
    let Some(Frame::Head(json)) = decoder.next_frame().unwrap() else { panic!("{ran:?}") };
    assert_eq!(decoder.next_frame(), Ok(Some(Frame::End)));
    serde_json::from_slice(&json).unwrap()
}

#[tokio::test]
async fn a_program_that_no_file_holds_runs_as_any_user() {
    let guest = TestGuest::start();
    for user in ["0", "1000"] {
        let found = stat(&guest.client, toolbox(user), "/etc/passwd").await;
        assert_eq!((found.uid, found.mode), (0, 0o644));
    }
}

#[tokio::test]
async fn it_is_given_once_and_costs_the_guest_no_memory_and_one_descriptor() {
    let guest = TestGuest::start();
    guest.sh("true").await;
    let before = idle_descriptors(&guest).await;
    for _ in 0..20 {
        stat(&guest.client, toolbox("0"), "/").await;
    }
    assert_eq!(idle_descriptors(&guest).await, before + 1, "it keeps the program and nothing else");
    // What it is made of counts nowhere in the guest: it is 2 MB and more.
    let kib = guest.anonymous_kib();
    assert!(kib <= IDLE_MAX_KIB, "{kib} KiB");
}

#[tokio::test]
async fn what_went_through_the_guest_leaves_it_as_small_as_it_was() {
    let guest = TestGuest::start();
    for _ in 0..4 {
        let request = ExecRequest { stdin: Stdin::Piped, ..sh("cat | tail -c 1") };
        let mut execution = guest.client.exec(request).await.unwrap();
        let input = execution.input();
        let sending = tokio::spawn(async move {
            input.write(&vec![b'x'; 1 << 20]).await.unwrap();
            input.close().await.unwrap();
        });
        assert_eq!(collect(&mut execution).await.out(), "x");
        sending.await.unwrap();
        drop(execution);
        stat(&guest.client, toolbox("0"), "/").await;
    }
    idle_descriptors(&guest).await;
    let kib = guest.anonymous_kib();
    assert!(kib <= IDLE_MAX_KIB, "{kib} KiB");
}

#[tokio::test]
async fn a_daemon_that_comes_later_finds_it_there() {
    let guest = TestGuest::start();
    stat(&guest.client, toolbox("0"), "/").await;
    let before = idle_descriptors(&guest).await;
    let later = guest.another_client(std::sync::Arc::new(NoLeaves));
    stat(&later, toolbox("0"), "/").await;
    assert_eq!(idle_descriptors(&guest).await, before);
}

#[tokio::test]
async fn whoever_runs_it_can_not_change_it_for_others() {
    let guest = TestGuest::start();
    let mut running = guest.client.exec_toolbox(toolbox("1000")).await.unwrap();
    // It waits for its request, as the user who asks: by all that this user could try.
    let script = "for exe in /proc/[0-9]*/exe; do case $(readlink $exe) in *toolbox*) \
        { echo x > $exe; } 2>/dev/null && echo written; chmod 777 $exe 2>/dev/null && echo changed; \
        python3 -c 'import os, sys; os.setxattr(sys.argv[1], \"user.x\", b\"y\")' $exe 2>/dev/null && echo marked; echo seen;; esac; done";
    let tried = guest.run(ExecRequest { user: "1000".to_owned(), ..sh(script) }).await;
    assert_eq!(tried.out(), "seen\n");
    running.input().close().await.unwrap();
    collect(&mut running).await;
    stat(&guest.client, toolbox("0"), "/").await;
}
