//! The environment of a command, and how its end is reported.

use std::time::Duration;

use sandkeep_core::{ExecId, Privilege};
use sandkeep_guestlink::{Guest, GuestError, Outcome};

use crate::harness::*;

#[tokio::test]
async fn stdout_and_stderr_are_separate_and_the_exit_code_is_exact() {
    let guest = TestGuest::start();
    let ran = guest.sh("echo out; echo err >&2; exit 7").await;
    assert_eq!((ran.stdout.as_slice(), ran.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(ran.end.outcome, Outcome::Exited(7));
    assert_eq!(ran.end.error, None);
}

#[tokio::test]
async fn a_command_killed_by_a_signal_says_which() {
    let guest = TestGuest::start();
    assert_eq!(guest.sh("kill -9 $$").await.end.outcome, Outcome::Signaled(9));
    assert_eq!(guest.sh("kill -PIPE $$").await.end.outcome, Outcome::Signaled(13));
}

#[tokio::test]
async fn what_cannot_be_started_ends_like_in_a_shell_and_says_why() {
    let guest = TestGuest::start();
    let no_such_cwd = {
        let mut request = command(&["true"]);
        request.cwd = Some("/no/such".to_owned());
        request
    };
    let no_such_user = {
        let mut request = command(&["true"]);
        request.user = "nobody-of-this-name".to_owned();
        request
    };
    for (request, code, says) in [
        (command(&["no-such-command"]), 127, "PATH"),
        (command(&["/no/such/file"]), 127, "/no/such/file"),
        (command(&["/etc/passwd"]), 126, "ermission denied"),
        (command(&["/"]), 126, "ermission denied"),
        (no_such_cwd, 126, "/no/such"),
        (no_such_user, 126, "nobody-of-this-name"),
        (command(&["a\0b"]), 126, "NUL"),
    ] {
        let ran = guest.run(request).await;
        assert_eq!(ran.end.outcome, Outcome::Exited(code), "{ran:?}");
        assert!(ran.end.error.as_ref().unwrap().contains(says), "{ran:?}");
    }
    // A file that is executable and no program.
    let script = guest.home.path().join("script");
    std::fs::write(&script, "echo without an interpreter line").unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = guest.run(command(&[script.to_str().unwrap()])).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(126), "{ran:?}");
}

#[tokio::test]
async fn the_environment_is_what_was_sent_and_the_three_names() {
    let guest = TestGuest::start();
    let mut request = command(&["env"]);
    request.env.push(("USER".to_owned(), "me".to_owned()));
    let ran = guest.run(request).await;
    let mut lines: Vec<_> = ran.out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["HOME=/root", "LOGNAME=root", "PATH=/usr/bin:/bin", "USER=me"]);
}

#[tokio::test]
async fn a_command_runs_as_its_user_with_nothing_left_of_root() {
    let guest = TestGuest::start();
    let mut request = sh(
        "id -u; id -g; id -G; pwd; grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs)' /proc/self/status",
    );
    request.user = "1234:5678".to_owned();
    request.cwd = None;
    let ran = guest.run(request).await;
    let words: Vec<_> = ran.out().split_whitespace().map(str::to_owned).collect();
    assert_eq!(&words[..4], ["1234", "5678", "5678", "/"], "{ran:?}");
    assert_eq!(ran.out().matches("0000000000000000").count(), 4, "{}", ran.out());
    assert!(ran.out().contains("NoNewPrivs:\t1"));
}

#[tokio::test]
async fn root_without_privilege_has_no_capabilities_and_cannot_get_them_back() {
    let guest = TestGuest::start();
    let script = "grep CapEff /proc/self/status; chown 5:5 /tmp 2>&1 || echo denied";
    let ran = guest.sh(script).await;
    assert!(ran.out().contains("CapEff:\t0000000000000000"), "{}", ran.out());
    assert!(ran.out().contains("denied"), "{}", ran.out());
    let mut request = sh("grep CapEff /proc/self/status");
    request.privilege = Privilege::Root;
    let ran = guest.run(request).await;
    assert!(!ran.out().contains("CapEff:\t0000000000000000"), "{}", ran.out());
}

#[tokio::test]
async fn a_command_inherits_no_descriptor_no_blocked_signal_and_a_sane_umask() {
    let guest = TestGuest::start();
    let script = "ls /proc/self/fd; grep -E '^Sig(Blk|Ign)' /proc/self/status; umask; ulimit -n";
    let ran = guest.sh(script).await;
    // 3 is the directory that ls itself reads.
    let expected = "0\n1\n2\n3\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n0022\n";
    assert!(ran.out().starts_with(expected), "{}", ran.out());
}

#[tokio::test]
async fn the_guest_cannot_be_traced_or_looked_into() {
    let guest = TestGuest::start();
    let mut request = sh("cat /proc/1/comm; ls /proc/1/fd || cat /proc/1/environ || echo hidden");
    request.user = "1000:1000".to_owned();
    let ran = guest.run(request).await;
    assert_eq!(ran.out(), "sandkeep-guest\nhidden\n");
}

#[tokio::test]
async fn a_signal_reaches_the_first_process() {
    let guest = TestGuest::start();
    let request = sh("trap 'echo got it; exit 3' USR1; echo ready; while :; do sleep 0.01; done");
    let id = request.id.clone();
    let mut execution = guest.client.exec(request).await.unwrap();
    wait_for_output(&mut execution, b"ready\n").await;
    guest.client.signal(&id, 10).await.unwrap();
    let from = sandkeep_guestlink::Offsets { stdout: 6, stderr: 0 };
    let ran = collect_from(&mut execution, from).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("got it\n", Outcome::Exited(3)));
    let gone = guest.client.signal(&id, 10).await;
    assert!(matches!(gone, Err(GuestError::Refused { .. })), "{gone:?}");
}

#[tokio::test]
async fn an_unknown_exec_is_refused_by_name() {
    let guest = TestGuest::start();
    let id = ExecId::random();
    for answer in [guest.client.signal(&id, 9).await, guest.client.cancel(&id).await] {
        match answer {
            Err(GuestError::Refused { reason }) => assert!(reason.contains(id.as_str())),
            other => panic!("{other:?}"),
        }
    }
    let attached = guest.client.attach(&id, Default::default()).await;
    assert!(matches!(attached, Err(GuestError::Refused { .. })));
}

#[tokio::test]
async fn an_id_is_used_once() {
    let guest = TestGuest::start();
    let request = sh("sleep 1000");
    let _execution = guest.client.exec(request.clone()).await.unwrap();
    let second = guest.client.exec(request).await;
    assert!(matches!(second, Err(GuestError::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_execs_run_at_once() {
    let guest = std::sync::Arc::new(TestGuest::start());
    let mut running = tokio::task::JoinSet::new();
    for number in 0..200 {
        let guest = guest.clone();
        running.spawn(async move {
            let mut request =
                sh(&format!("cat; echo {number}; echo {number} >&2; exit {}", number % 100));
            request.stdin = sandkeep_guestlink::Stdin::Piped;
            let mut execution = guest.client.exec(request).await.unwrap();
            execution.input().write(b"in ").await.unwrap();
            execution.input().close().await.unwrap();
            let ran = collect(&mut execution).await;
            assert_eq!(ran.out(), format!("in {number}\n"));
            assert_eq!(ran.stderr, format!("{number}\n").as_bytes());
            assert_eq!(ran.end.outcome, Outcome::Exited(number % 100));
        });
    }
    while let Some(result) = running.join_next().await {
        result.unwrap();
    }
    assert_eq!(guest.client.execs().await.unwrap(), []);
}

#[tokio::test]
async fn the_duration_is_that_of_the_command() {
    let guest = TestGuest::start();
    let ran = guest.sh("sleep 0.2").await;
    assert!(ran.end.duration >= Duration::from_millis(200), "{:?}", ran.end);
    assert!(ran.end.duration < Duration::from_secs(10), "{:?}", ran.end);
}
