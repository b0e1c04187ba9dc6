//! Timeout and cancel: the command ends and nothing more of it runs; the shell survives if it can.

use std::time::Duration;

use sandkeep_guestlink::*;

use super::{BOTH, TestShell};
use crate::harness::*;

const SOON: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_timeout_interrupts_whatever_runs_and_keeps_the_shell() {
    for program in BOTH {
        let Some(pool) = FreezerPool::new() else { return };
        let shell = TestShell::open_with(pool.clone(), program).await;
        shell.says("x=kept; cd /tmp").await;
        for command in [
            "sleep 1001; echo NOT",
            "while :; do :; done; echo NOT",
            "while :; do sleep 0.01; done; echo NOT",
            "f() { sleep 1001; echo NOT; }; g() { while :; do f; echo NOT; done; }; g; echo NOT",
            "eval 'sleep 1001; echo NOT'; echo NOT\necho NOT",
            "sleep 1001 | cat; echo NOT",
            "v=$(sleep 1001); echo NOT",
            "(sleep 1001; echo NOT); echo NOT",
            "(trap '' TERM INT; setsid sleep 1001 & wait); echo NOT",
            "sleep 1001 & wait; echo NOT",
            "if sleep 1001; then echo NOT; else echo NOT; fi; echo NOT",
            "sleep 1001 || echo NOT; sleep 1001 && echo NOT; ! sleep 1001; echo NOT",
        ] {
            let ran = shell.run_for(command, SOON).await;
            assert_eq!(ran.fate(), (Outcome::TimedOut, ShellFate::Kept), "{program:?} {command}");
            assert_eq!(ran.out(), "", "{program:?} {command}");
            assert_eq!(shell.says("echo $x; pwd").await, "kept\n/tmp\n", "after {command}");
        }
        assert_eq!(pool.tasks().len(), 1, "only the shell is left");
        shell.guest.client.close_shell(&shell.id).await.unwrap();
    }
}

#[tokio::test]
async fn an_interrupt_spares_the_background_jobs_of_earlier_commands() {
    for program in BOTH {
        let Some(pool) = FreezerPool::new() else { return };
        let shell = TestShell::open_with(pool.clone(), program).await;
        shell.says("sleep 1001 & echo $! >/dev/null").await;
        let ran = shell.run_for("sleep 1002 & sleep 1003", SOON).await;
        assert_eq!(ran.fate(), (Outcome::TimedOut, ShellFate::Kept));
        assert_eq!(shell.says("ps ax -o args | grep '^sleep'").await, "sleep 1001\n");
        assert_eq!(shell.says("kill %1 && wait; echo gone").await, "gone\n");
        shell.guest.client.close_shell(&shell.id).await.unwrap();
    }
}

#[tokio::test]
async fn a_shell_that_cannot_be_interrupted_is_replaced_and_says_so() {
    for program in BOTH {
        let Some(pool) = FreezerPool::new() else { return };
        let shell = TestShell::open_with(pool.clone(), program).await;
        shell.says("x=lost; sleep 1001 &").await;
        let stubborn = "trap '' 57; while :; do :; done";
        let ran = shell.run_for(stubborn, SOON).await;
        assert_eq!(ran.fate(), (Outcome::TimedOut, ShellFate::Replaced), "{program:?}");
        assert_eq!(shell.says("echo \"<$x>\"; pwd").await, "<>\n/\n");
        assert_eq!(pool.tasks().len(), 1, "nothing of the old one is left");
        let ran = shell.run_for("exec sleep 1002", SOON).await;
        assert_eq!(ran.fate(), (Outcome::TimedOut, ShellFate::Replaced), "{program:?}");
        assert_eq!(shell.says("echo again").await, "again\n");
        shell.guest.client.close_shell(&shell.id).await.unwrap();
    }
}

#[tokio::test]
async fn cancel_ends_the_command_and_keeps_the_shell() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        shell.says("x=kept").await;
        let request = shell.command("echo on; sleep 1001; echo NOT");
        let id = request.id.clone();
        let mut execution = shell.guest.client.exec_in_shell(request).await.unwrap();
        wait_for_output(&mut execution, b"on\n").await;
        let queued = shell.command("echo queued");
        let queued_id = queued.id.clone();
        let mut waiting = shell.guest.client.exec_in_shell(queued).await.unwrap();
        shell.guest.client.cancel(&queued_id).await.unwrap();
        let ran = collect(&mut waiting).await;
        assert_eq!((ran.out(), ran.end.outcome), (String::new(), Outcome::Canceled));
        shell.guest.client.cancel(&id).await.unwrap();
        let ran = collect_from(&mut execution, Offsets { stdout: 3, stderr: 0 }).await;
        assert_eq!((ran.out(), ran.fate()), (String::new(), (Outcome::Canceled, ShellFate::Kept)));
        assert_eq!(shell.says("echo $x").await, "kept\n");
        assert!(shell.guest.client.cancel(&id).await.is_err());
    }
}

#[tokio::test]
async fn a_signal_goes_to_what_the_command_has_started() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let request = shell.command("echo on; sleep 1001; echo $?");
        let id = request.id.clone();
        let mut execution = shell.guest.client.exec_in_shell(request).await.unwrap();
        wait_for_output(&mut execution, b"on\n").await;
        // It says so before its child is there.
        let signaling = async {
            loop {
                let _ = shell.guest.client.signal(&id, 15).await;
                tokio::task::yield_now().await;
            }
        };
        let from = Offsets { stdout: 3, stderr: 0 };
        let ran = tokio::select! {
            ran = collect_from(&mut execution, from) => ran,
            () = signaling => unreachable!("it goes on until the command has ended"),
        };
        assert_eq!((ran.out().as_str(), ran.fate().1), ("143\n", ShellFate::Kept));
    }
}
