//! Commands in a terminal: what a person at a keyboard would see and can do.

use std::time::Duration;

use sandkeep_guestlink::*;

use crate::harness::*;

const SIZE: TerminalSize = TerminalSize { rows: 33, cols: 101 };

fn terminal(script: &str) -> ExecRequest {
    ExecRequest { stdin: Stdin::Piped, terminal: Some(SIZE), ..sh(script) }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64 / 8 + 1)
        .flat_map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(len)
        .collect()
}

#[tokio::test]
async fn all_three_streams_are_one_terminal_of_the_asked_size() {
    let guest = TestGuest::start();
    let script = "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM && echo err >&2";
    let ran = guest.run(terminal(script)).await;
    assert_eq!(ran.out(), "33 101\r\nxterm-256color\r\nerr\r\n");
    assert_eq!((ran.stderr.len(), ran.end.outcome), (0, Outcome::Exited(0)));
}

#[tokio::test]
async fn a_kind_of_terminal_that_was_named_is_kept() {
    let guest = TestGuest::start();
    let mut request = terminal("echo $TERM");
    request.env.push(("TERM".to_owned(), "vt100".to_owned()));
    assert_eq!(guest.run(request).await.out(), "vt100\r\n");
}

#[tokio::test]
async fn the_terminal_belongs_to_the_user_who_can_open_it_by_name() {
    let guest = TestGuest::start();
    let script = "stat -c %u $(tty); echo by name > $(tty); echo tty > /dev/tty; \
                  echo out > /dev/stdout; read line < $(tty); echo $line";
    let mut request = terminal(script);
    request.user = "1000:1000".to_owned();
    let mut execution = guest.client.exec(request).await.unwrap();
    execution.input().write(b"typed\n").await.unwrap();
    let said = collect(&mut execution).await.out();
    let said = said.replace("typed\r\n", "");
    assert_eq!(said, "1000\r\nby name\r\ntty\r\nout\r\n");
}

#[tokio::test]
async fn keys_reach_the_command_as_signals_and_as_bytes() {
    let guest = TestGuest::start();
    let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.01; done";
    let mut execution = guest.client.exec(terminal(script)).await.unwrap();
    wait_for_output(&mut execution, b"ready\r\n").await;
    execution.input().write(b"\x03").await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 7, stderr: 0 }).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("^Ccaught\r\n", Outcome::Exited(7)));

    let script = "stty raw -echo; printf ready; head -c 1 | od -An -tx1; exit 8";
    let mut execution = guest.client.exec(terminal(script)).await.unwrap();
    wait_for_output(&mut execution, b"ready").await;
    execution.input().write(b"\x03").await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 5, stderr: 0 }).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), (" 03\n", Outcome::Exited(8)));
}

#[tokio::test]
async fn a_new_size_is_told_to_the_command() {
    let guest = TestGuest::start();
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.01; done";
    let mut execution = guest.client.exec(terminal(script)).await.unwrap();
    wait_for_output(&mut execution, b"ready\r\n").await;
    execution.input().resize(TerminalSize { rows: 50, cols: 120 }).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 7, stderr: 0 }).await;
    assert_eq!(ran.out(), "50 120\r\n");
}

#[tokio::test]
async fn closing_the_input_ends_what_reads_lines_also_in_the_middle_of_one() {
    let guest = TestGuest::start();
    for (typed, said) in
        [("", "after\r\n"), ("line\n", "line\r\nline\r\nafter\r\n"), ("half", "halfhalfafter\r\n")]
    {
        let script = "cat; echo after; exit 9";
        let mut execution = guest.client.exec(terminal(script)).await.unwrap();
        execution.input().write(typed.as_bytes()).await.unwrap();
        execution.input().close().await.unwrap();
        let ran = collect(&mut execution).await;
        assert_eq!((ran.out().as_str(), ran.end.outcome), (said, Outcome::Exited(9)), "{typed:?}");
    }
}

#[tokio::test]
async fn nothing_of_a_flood_before_the_exit_is_lost() {
    let guest = TestGuest::start();
    let ran = guest.run(terminal("seq 1 100000; exit 3")).await;
    let expected: String = (1..=100_000).map(|n| format!("{n}\r\n")).collect();
    assert!(ran.out() == expected, "{} of {} bytes", ran.stdout.len(), expected.len());
    assert_eq!(ran.end.outcome, Outcome::Exited(3));
    for _ in 0..50 {
        let ran = guest.run(terminal("printf last; exit 4")).await;
        assert_eq!((ran.out().as_str(), ran.end.outcome), ("last", Outcome::Exited(4)));
    }
}

#[tokio::test]
async fn much_that_is_typed_arrives_whole() {
    let guest = TestGuest::start();
    let sent = pattern(1 << 20);
    let script = format!("stty raw -echo; printf ready; head -c {}", sent.len());
    let mut execution = guest.client.exec(terminal(&script)).await.unwrap();
    wait_for_output(&mut execution, b"ready").await;
    let (input, bytes) = (execution.input(), sent.clone());
    let writer = tokio::spawn(async move { input.write(&bytes).await });
    let ran = collect_from(&mut execution, Offsets { stdout: 5, stderr: 0 }).await;
    writer.await.unwrap().unwrap();
    assert!(ran.stdout == sent, "{} of {} bytes came back", ran.stdout.len(), sent.len());
}

#[tokio::test]
async fn a_command_may_close_its_terminal_and_open_it_again() {
    let guest = TestGuest::start();
    let script = "exec 0<&- 1>&- 2>&-; sleep 0.05; echo late > /dev/tty; exit 4";
    let ran = guest.run(terminal(script)).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("late\r\n", Outcome::Exited(4)));
}

#[tokio::test]
async fn what_is_left_behind_holds_up_nothing_and_goes_on_writing() {
    let guest = TestGuest::start();
    let script = "trap '' HUP; (while :; do head -c 100000 /dev/zero; done) & echo $!; exit 5";
    let ran = guest.run(terminal(script)).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(5));
    let pid = ran.out().split("\r\n").next().unwrap().to_owned();
    assert_eq!(
        guest.sh(&format!("kill -0 {pid} && kill -9 {pid}")).await.end.outcome,
        Outcome::Exited(0)
    );
}

#[tokio::test]
async fn the_foreground_is_hung_up_on_when_the_first_process_ends() {
    let guest = TestGuest::start();
    let ran = guest.run(terminal("sleep 1000 & echo $!; exit 0")).await;
    let pid = ran.out().trim().to_owned();
    let gone = async {
        while guest.sh(&format!("kill -0 {pid} 2>/dev/null")).await.end.outcome
            == Outcome::Exited(0)
        {}
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("SIGHUP has ended it");
}

#[tokio::test]
async fn whoever_attaches_goes_on_typing_and_reading_where_the_last_one_stopped() {
    let guest = TestGuest::start();
    let request = terminal("stty -echo; echo ready; read a; echo got $a; read b; echo and $b");
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\r\n").await;
    execution.input().write(b"one\n").await.unwrap();
    wait_for_output(&mut execution, b"got one\r\n").await;
    drop(execution);
    let from = Offsets { stdout: 7, stderr: 0 };
    let mut execution = guest.client.attach(&id, from).await.unwrap();
    execution.input().write(b"two\n").await.unwrap();
    let ran = collect_from(&mut execution, from).await;
    assert_eq!(ran.out(), "got one\r\nand two\r\n");
}

#[tokio::test]
async fn a_terminal_nobody_types_into_still_shows_everything() {
    let guest = TestGuest::start();
    let mut request = terminal("test -t 0 && echo shown");
    request.stdin = Stdin::Null;
    assert_eq!(guest.run(request).await.out(), "shown\r\n");
}

#[tokio::test]
async fn a_terminal_exec_can_time_out_and_be_canceled() {
    let guest = TestGuest::start();
    let mut request = terminal("trap '' HUP INT TERM; while :; do sleep 0.01; done");
    request.timeout = Some(Duration::from_millis(100));
    assert_eq!(guest.run(request).await.end.outcome, Outcome::TimedOut);
    let request = terminal("trap '' HUP; echo ready; while :; do sleep 0.01; done");
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\r\n").await;
    guest.client.cancel(&id).await.unwrap();
    let ran = collect_from(&mut execution, Offsets { stdout: 7, stderr: 0 }).await;
    assert_eq!(ran.end.outcome, Outcome::Canceled);
}

#[tokio::test]
async fn terminals_leave_no_descriptors_in_the_guest() {
    let guest = TestGuest::start();
    guest.run(terminal("true")).await;
    let before = guest.descriptors();
    for _ in 0..20 {
        guest.run(terminal("echo x")).await;
    }
    guest.client.ping().await.unwrap();
    // A connection that was just answered may still be open.
    assert!(guest.descriptors() <= before + 1, "{} instead of {before}", guest.descriptors());
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_so_in_a_terminal_too() {
    let guest = TestGuest::start();
    let mut request = terminal("");
    request.argv = vec!["no-such-command".to_owned()];
    let ran = guest.run(request).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(127));
    assert!(ran.end.error.is_some());
}
