//! How a shell ends, and what is reported then.

use std::sync::Arc;

use sandkeep_core::ShellId;
use sandkeep_guestlink::*;

use super::{BOTH, TestShell, shell_request};
use crate::harness::*;

#[tokio::test]
async fn exit_ends_command_and_shell_with_its_code() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let ran = shell.run("trap 'echo bye' EXIT; echo out; exit 3; echo not reached").await;
        assert_eq!(ran.out(), "out\nbye\n");
        assert_eq!(ran.fate(), (Outcome::Exited(3), ShellFate::Ended));
        assert_eq!(shell.state().await, ShellState::Ended);
        let late = shell.guest.client.exec_in_shell(shell.command("echo late")).await.err();
        assert!(matches!(late, Some(GuestError::ShellEnded { .. })), "{late:?}");
    }
}

#[tokio::test]
async fn a_command_that_kills_or_replaces_its_shell_says_how_it_ended() {
    for program in BOTH {
        for (command, outcome) in [
            ("echo x; kill -9 $$; echo no", Outcome::Signaled(9)),
            ("echo x; kill -TERM $$; sleep 5; echo no", Outcome::Signaled(15)),
            ("echo x; exec true", Outcome::Exited(0)),
            ("echo x; exec sh -c 'exit 9'", Outcome::Exited(9)),
            ("echo x; set -e; false; echo no", Outcome::Exited(1)),
        ] {
            let shell = TestShell::open(program).await;
            let ran = shell.run(command).await;
            assert_eq!(ran.out(), "x\n", "{program:?} {command}");
            assert_eq!(ran.fate(), (outcome, ShellFate::Ended), "{program:?} {command}");
        }
    }
}

#[tokio::test]
async fn commands_that_wait_when_their_shell_ends_are_told_so() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let gate = tempfile::tempdir().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(gate.path(), open).unwrap();
        let go = gate.path().join("go");
        let waits = format!("until [ -e {} ]; do :; done; exit 4", go.display());
        let mut first = shell.begin(&waits).await;
        let mut second = shell.begin("echo never").await;
        std::fs::write(&go, "").unwrap();
        assert_eq!(collect(&mut first).await.end.outcome, Outcome::Exited(4));
        let ran = collect(&mut second).await;
        assert_eq!(ran.fate(), (Outcome::Canceled, ShellFate::Ended), "{ran:?}");
        assert!(ran.end.error.unwrap().contains("open another"));
    }
}

#[tokio::test]
async fn closing_a_shell_ends_all_that_runs_in_it() {
    for program in BOTH {
        let Some(pool) = FreezerPool::new() else { return };
        let shell = TestShell::open_with(pool.clone(), program).await;
        shell.says("setsid sleep 1001 & sleep 1002 &").await;
        let mut running = shell.begin("echo on; sleep 1003").await;
        wait_for_output(&mut running, b"on\n").await;
        let mut waiting = shell.begin("echo never").await;
        shell.guest.client.close_shell(&shell.id).await.unwrap();
        assert_eq!(pool.tasks(), Vec::<String>::new());
        let from = Offsets { stdout: 3, stderr: 0 };
        let ran = collect_from(&mut running, from).await;
        assert_eq!(ran.fate(), (Outcome::Canceled, ShellFate::Ended));
        assert_eq!(collect(&mut waiting).await.end.outcome, Outcome::Canceled);
        assert_eq!(shell.guest.client.shells().await.unwrap(), []);
        let again = shell.guest.client.close_shell(&shell.id).await.err();
        assert!(matches!(again, Some(GuestError::ShellNotFound { .. })), "{again:?}");
        // Its leaf is free for others.
        drop((running, waiting));
        assert_eq!(shell.guest.sh("echo fine").await.out(), "fine\n");
    }
}

#[tokio::test]
async fn a_shell_that_cannot_be_had_is_refused_and_says_why() {
    let guest = TestGuest::start();
    let mut nowhere = shell_request(None);
    nowhere.cwd = Some("/no/such".to_owned());
    let mut nobody = shell_request(None);
    nobody.user = "nobody-of-this-name".to_owned();
    let mut missing = shell_request(Some(ShellProgram::Bash));
    missing.env = vec![("PATH".to_owned(), "/no/such".to_owned())];
    for (request, says) in
        [(nowhere, "/no/such"), (nobody, "nobody-of-this-name"), (missing, "bash")]
    {
        match guest.client.open_shell(request).await {
            Err(GuestError::Refused { reason }) => assert!(reason.contains(says), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(guest.client.shells().await.unwrap(), []);
    let unknown = guest.client.close_shell(&ShellId::random()).await.err();
    assert!(matches!(unknown, Some(GuestError::ShellNotFound { .. })), "{unknown:?}");
}

#[tokio::test]
async fn where_there_is_no_bash_any_shell_is_sh_but_a_bash_of_that_name_is_refused() {
    let guest = TestGuest::start();
    let bash = guest.client.open_shell(shell_request(None)).await.unwrap();
    assert_eq!(bash.program, ShellProgram::Bash);
    let only_sh = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink("/bin/sh", only_sh.path().join("sh")).unwrap();
    use std::os::unix::fs::PermissionsExt;
    let open_to_all = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(only_sh.path(), open_to_all).unwrap();
    let mut request = shell_request(None);
    request.env = vec![("PATH".to_owned(), only_sh.path().to_str().unwrap().to_owned())];
    assert_eq!(guest.client.open_shell(request.clone()).await.unwrap().program, ShellProgram::Sh);
    std::fs::remove_file(only_sh.path().join("sh")).unwrap();
    std::os::unix::fs::symlink("/bin/bash", only_sh.path().join("sh")).unwrap();
    request.id = ShellId::random();
    match guest.client.open_shell(request).await {
        Err(GuestError::Refused { reason }) => assert!(reason.contains("ask for bash"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_that_spoils_the_private_descriptors_ends_and_the_shell_goes_on() {
    for program in BOTH {
        for sabotage in [
            // Junk before the report, which it spoils.
            "for f in /proc/$$/fd/*; do case $(readlink $f) in pipe:*) printf junk >$f;; esac; done",
            // No descriptor is left to report on.
            "exec 10>&- 11>&- 12>&- 13>&- 14>&- 61>&- 2>&-",
        ] {
            let shell = TestShell::open(program).await;
            let mut execution = shell.begin(sabotage).await;
            collect(&mut execution).await;
            drop(execution);
            // Whatever became of it: the next command is refused, or runs, and does not hang.
            match shell.guest.client.exec_in_shell(shell.command("echo alive")).await {
                Ok(mut next) => assert_ne!(collect(&mut next).await.end.outcome, Outcome::Lost),
                Err(error) => assert!(matches!(error, GuestError::ShellEnded { .. }), "{error:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_shell_and_its_queue_outlive_the_daemon() {
    for program in BOTH {
        let Some(pool) = FreezerPool::new() else { return };
        let shell = TestShell::open_with(pool.clone(), program).await;
        shell.says("x=kept").await;
        let (first, second) = (shell.command("sleep 0.2; echo one"), shell.command("echo $x"));
        let ids = [first.id.clone(), second.id.clone()];
        drop(shell.guest.client.exec_in_shell(first).await.unwrap());
        drop(shell.guest.client.exec_in_shell(second).await.unwrap());

        let restarted = shell.guest.another_client(pool.clone());
        let shells = restarted.shells().await.unwrap();
        assert_eq!(shells.iter().map(|known| &known.id).collect::<Vec<_>>(), [&shell.id]);
        let mut outputs = Vec::new();
        for id in &ids {
            let mut execution = restarted.attach(id, Offsets::default()).await.unwrap();
            outputs.push(collect(&mut execution).await.out());
        }
        assert_eq!(outputs, ["one\n", "kept\n"]);
        let request = shell.command("echo still $x");
        let mut execution = restarted.exec_in_shell(request).await.unwrap();
        assert_eq!(collect(&mut execution).await.out(), "still kept\n");
        restarted.close_shell(&shell.id).await.unwrap();
        drop((execution, Arc::new(restarted)));
    }
}
