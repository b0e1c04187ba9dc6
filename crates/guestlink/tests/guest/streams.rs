//! Input and output: nothing is lost, duplicated or mixed, and nothing deadlocks.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use sandkeep_guestlink::*;

use crate::harness::*;

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Bytes in which every piece differs from every other.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64 / 8 + 1)
        .flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(len)
        .collect()
}

fn piped(argv: &[&str]) -> ExecRequest {
    let mut request = command(argv);
    request.stdin = Stdin::Piped;
    request
}

#[tokio::test]
async fn ten_megabytes_go_through_cat_unchanged() {
    let guest = TestGuest::start();
    let sent = Arc::new(pattern(10 << 20));
    let mut execution = guest.client.exec(piped(&["cat"])).await.unwrap();
    let (input, bytes) = (execution.input(), sent.clone());
    let writer = tokio::spawn(async move {
        input.write(&bytes).await.unwrap();
        input.close().await.unwrap();
    });
    let ran = collect(&mut execution).await;
    writer.await.unwrap();
    assert_eq!(ran.stdout.len(), sent.len());
    assert_eq!(hash(&ran.stdout), hash(&sent));
    assert_eq!(ran.end.outcome, Outcome::Exited(0));
}

#[tokio::test]
async fn a_slow_reader_holds_up_the_writer_and_loses_nothing() {
    let guest = TestGuest::start();
    let sent = Arc::new(pattern(2 << 20));
    let mut execution = guest.client.exec(piped(&["cat"])).await.unwrap();
    let (input, bytes) = (execution.input(), sent.clone());
    let writer = tokio::spawn(async move {
        input.write(&bytes).await.unwrap();
        input.close().await.unwrap();
    });
    let mut got = Vec::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    loop {
        // Reads at the pace of a clock: everything before it fills up in between.
        ticks.tick().await;
        match execution.next().await.unwrap() {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { data, .. } => got.extend_from_slice(&data),
            ExecEvent::Ended(end) => {
                assert_eq!(end.outcome, Outcome::Exited(0));
                break;
            }
        }
    }
    writer.await.unwrap();
    assert_eq!(hash(&got), hash(&sent));
}

#[tokio::test]
async fn a_command_that_reads_slowly_holds_up_the_writer_and_loses_nothing() {
    let guest = TestGuest::start();
    let sent = pattern(1 << 20);
    let script = "for i in 1 2 3 4 5 6 7 8; do dd bs=131072 count=1 iflag=fullblock 2>/dev/null; sleep 0.02; done; cat";
    let mut execution = guest.client.exec(piped(&["/bin/sh", "-c", script])).await.unwrap();
    let input = execution.input();
    let bytes = sent.clone();
    let writer = tokio::spawn(async move {
        input.write(&bytes).await.unwrap();
        input.close().await.unwrap();
    });
    let ran = collect(&mut execution).await;
    writer.await.unwrap();
    assert_eq!(hash(&ran.stdout), hash(&sent));
}

#[tokio::test]
async fn a_writer_does_not_hang_on_a_command_that_closed_its_stdin() {
    let guest = TestGuest::start();
    let script = "exec 0<&-; sleep 0.1; echo done";
    let mut execution = guest.client.exec(piped(&["/bin/sh", "-c", script])).await.unwrap();
    let input = execution.input();
    let writer = tokio::spawn(async move {
        // Ends with an error when the command does, at the latest.
        let bytes = [0; 64 * 1024];
        while input.write(&bytes).await.is_ok() {}
    });
    let ran = collect(&mut execution).await;
    tokio::time::timeout(PATIENCE, writer).await.unwrap().unwrap();
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("done\n", Outcome::Exited(0)));
    let late = execution.input().write(b"late").await;
    assert_eq!(late.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn stdin_that_is_not_piped_is_empty_and_cannot_be_written() {
    let guest = TestGuest::start();
    let mut execution = guest.client.exec(command(&["cat"])).await.unwrap();
    let written = execution.input().write(b"x").await;
    assert_eq!(written.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    let ran = collect(&mut execution).await;
    assert_eq!((ran.stdout.len(), ran.end.outcome), (0, Outcome::Exited(0)));
}

#[tokio::test]
async fn attaching_again_goes_on_at_the_byte_where_the_last_one_stopped() {
    let guest = TestGuest::start();
    let sent = pattern(3 << 20);
    let file = guest.home.path().join("data");
    std::fs::write(&file, &sent).unwrap();
    let request = command(&["cat", file.to_str().unwrap()]);
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    let mut got = Vec::new();
    let mut attached = 0;
    loop {
        match execution.next().await.unwrap() {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { offset, data, .. } => {
                assert_eq!(offset, got.len() as u64);
                got.extend_from_slice(&data);
                // Breaks off every so often, in the middle of what the guest has sent.
                if got.len() > (attached + 1) * 200_000 {
                    attached += 1;
                    drop(execution);
                    let from = Offsets { stdout: got.len() as u64, stderr: 0 };
                    execution = guest.client.attach(&id, from).await.unwrap();
                }
            }
            ExecEvent::Ended(end) => {
                assert_eq!(end.outcome, Outcome::Exited(0));
                break;
            }
        }
    }
    assert!(attached > 10, "attached {attached} times");
    assert_eq!(hash(&got), hash(&sent));
}

#[tokio::test]
async fn a_detached_command_blocks_at_its_window_and_loses_nothing() {
    let guest = TestGuest::start();
    let sent = pattern(2 << 20);
    let data = guest.home.path().join("data");
    std::fs::write(&data, &sent).unwrap();
    let done = guest.home.path().join("done");
    let script = format!("cat {}; echo > {}", data.display(), done.display());
    let request = sh(&script);
    let id = request.id.clone();
    drop(guest.client.exec(request).await.unwrap());
    // Enough other work for the guest that it has read all that it would read.
    for _ in 0..20 {
        guest.sh("true").await;
    }
    assert!(!done.exists(), "two megabytes do not fit a window and a pipe");
    let known = guest.client.execs().await.unwrap();
    assert_eq!(known, [KnownExec { id: id.clone(), running: true, origin: Origin::Here }]);

    let mut execution = guest.client.attach(&id, Offsets::default()).await.unwrap();
    let ran = collect(&mut execution).await;
    assert_eq!(hash(&ran.stdout), hash(&sent));
    assert!(done.exists());
    drop(execution);
    assert_eq!(guest.client.execs().await.unwrap(), [], "what was collected is forgotten");
}

#[tokio::test]
async fn an_end_that_nobody_took_is_told_to_the_next() {
    let guest = TestGuest::start();
    let request = sh("echo hello; exit 5");
    let id = request.id.clone();
    drop(guest.client.exec(request).await.unwrap());
    for _ in 0..2 {
        let mut execution = guest.client.attach(&id, Offsets::default()).await.unwrap();
        loop {
            match execution.next().await.unwrap() {
                ExecEvent::Started | ExecEvent::Gap { .. } => {}
                ExecEvent::Output { data, .. } => {
                    assert_eq!(&data[..], b"hello\n");
                    break;
                }
                ExecEvent::Ended(end) => panic!("{end:?} before the output"),
            }
        }
    }
    let mut execution = guest.client.attach(&id, Offsets { stdout: 6, stderr: 0 }).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 6, stderr: 0 }).await;
    assert_eq!((ran.stdout.len(), ran.end.outcome), (0, Outcome::Exited(5)));
}

#[tokio::test]
async fn stdin_goes_on_where_it_stopped_when_somebody_attaches() {
    let guest = TestGuest::start();
    let request = piped(&["cat"]);
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    execution.input().write(b"first ").await.unwrap();
    wait_for_output(&mut execution, b"first ").await;
    drop(execution);
    let from = Offsets { stdout: 6, stderr: 0 };
    let mut execution = guest.client.attach(&id, from).await.unwrap();
    execution.input().write(b"second").await.unwrap();
    execution.input().close().await.unwrap();
    assert_eq!(collect_from(&mut execution, from).await.out(), "second");
}

#[tokio::test]
async fn the_newest_watcher_wins() {
    let guest = TestGuest::start();
    let request = piped(&["cat"]);
    let id = request.id.clone();
    let mut old = guest.client.exec(request).await.unwrap();
    let mut new = guest.client.attach(&id, Offsets::default()).await.unwrap();
    let cut = collect(&mut old).await;
    assert_eq!(cut.end.outcome, Outcome::Lost);
    assert!(cut.end.error.is_some());
    drop(old);
    new.input().write(b"still here").await.unwrap();
    new.input().close().await.unwrap();
    assert_eq!(collect(&mut new).await.out(), "still here");
}

#[tokio::test]
async fn a_dropped_call_of_next_loses_no_event() {
    let guest = TestGuest::start();
    let sent = pattern(1 << 20);
    let file = guest.home.path().join("data");
    std::fs::write(&file, &sent).unwrap();
    let mut execution = guest.client.exec(command(&["cat", file.to_str().unwrap()])).await.unwrap();
    let mut got = Vec::new();
    loop {
        let event = tokio::select! {
            biased;
            event = execution.next() => event,
            () = tokio::task::yield_now() => continue,
        };
        match event.unwrap() {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { data, .. } => got.extend_from_slice(&data),
            ExecEvent::Ended(_) => break,
        }
    }
    assert_eq!(hash(&got), hash(&sent));
}

#[tokio::test]
async fn a_background_process_lives_on_and_can_write_for_ever() {
    let guest = TestGuest::start();
    let log = guest.home.path().join("log");
    // It writes far more than a pipe holds, after its exec is over; SIGPIPE or a full pipe would
    // keep it from its last line.
    let script = format!(
        "(while [ ! -e {0}.go ]; do sleep 0.01; done; head -c 1000000 /dev/zero && echo survived > {0}) & echo started",
        log.display()
    );
    let ran = guest.sh(&script).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("started\n", Outcome::Exited(0)));
    assert_eq!(guest.client.execs().await.unwrap(), []);
    std::fs::write(format!("{}.go", log.display()), "").unwrap();
    let waiting = async {
        while std::fs::read(&log).unwrap_or_default() != b"survived\n" {
            guest.client.ping().await.unwrap();
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("the background process finishes");
}

#[tokio::test]
async fn an_exec_ends_although_its_background_process_never_stops_writing() {
    let guest = TestGuest::start();
    let ran = guest.sh("(while :; do echo noise; done) & echo started; exit 4").await;
    assert!(ran.out().contains("started\n"));
    assert_eq!(ran.end.outcome, Outcome::Exited(4));
    guest.client.ping().await.unwrap();
}

#[tokio::test]
async fn a_pipe_set_to_packets_loses_nothing_and_the_exec_ends() {
    if !std::path::Path::new("/usr/bin/perl").exists() {
        eprintln!("SKIP: there is no perl to set O_DIRECT with");
        return;
    }
    let guest = TestGuest::start();
    // Odd sizes, so that packets end nowhere near the end of the window.
    let script = r#"use Fcntl; fcntl(STDOUT, F_SETFL, O_WRONLY | 040000) or die "O_DIRECT: $!";
        syswrite(STDOUT, chr(97 + $_ % 26) x 3001) for 0 .. 299;"#;
    let ran = guest.run(command(&["/usr/bin/perl", "-e", script])).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(0), "{:?}", ran.end);
    let sent: Vec<u8> = (0..300u32).flat_map(|n| [b'a' + (n % 26) as u8; 3001]).collect();
    assert_eq!((ran.stdout.len(), hash(&ran.stdout)), (sent.len(), hash(&sent)));
}
