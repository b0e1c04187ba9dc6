//! Between commands: the order of the queue, and background jobs.

use sandkeep_guestlink::*;

use super::{BOTH, TestShell};
use crate::harness::*;

#[tokio::test]
async fn concurrent_commands_queue_in_order() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let mut executions = Vec::new();
        for number in 0..20 {
            executions.push(shell.begin(&format!("n=${{n}}{number},; echo $n")).await);
        }
        let mut expected = String::new();
        for (number, execution) in executions.iter_mut().enumerate() {
            expected.push_str(&format!("{number},"));
            assert_eq!(collect(execution).await.out(), format!("{expected}\n"));
        }
    }
}

#[tokio::test]
async fn a_full_queue_refuses_and_the_time_of_a_command_counts_from_its_start() {
    let shell = TestShell::open(ShellProgram::Sh).await;
    let dir = shell.says("d=$(mktemp -d); mkfifo $d/go; printf $d").await;
    let mut running = shell.begin("echo on; read x <$d/go").await;
    wait_for_output(&mut running, b"on\n").await;
    let timed = ShellExecRequest {
        timeout: Some(std::time::Duration::from_millis(900)),
        ..shell.command("echo in time")
    };
    let mut timed = shell.guest.client.exec_in_shell(timed).await.unwrap();
    let mut waiting = Vec::new();
    let full = loop {
        match shell.guest.client.exec_in_shell(shell.command("true")).await {
            Ok(execution) => waiting.push(execution),
            Err(error) => break error,
        }
    };
    assert!(matches!(full, GuestError::ShellQueueFull { limit: 64, .. }), "{full:?}");
    assert_eq!(waiting.len(), 63, "and the timed one");
    // It has waited for longer than it may run.
    let go = sh(&format!("sleep 1; echo >{dir}/go"));
    shell.guest.run(ExecRequest { user: "1234:5678".to_owned(), ..go }).await;
    collect_from(&mut running, Offsets { stdout: 3, stderr: 0 }).await;
    let ran = collect(&mut timed).await;
    assert_eq!((ran.out().as_str(), ran.end.outcome), ("in time\n", Outcome::Exited(0)));
    for mut execution in waiting {
        assert_eq!(collect(&mut execution).await.end.outcome, Outcome::Exited(0));
    }
    shell.says("rm -r $d").await;
}

#[tokio::test]
async fn background_jobs_live_on_between_commands() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        shell.says("d=$(mktemp -d); mkfifo $d/go; (read x <$d/go; exit 5) & job=$!").await;
        assert_eq!(shell.says("echo now >$d/go; wait $job; echo $?; rm -r $d").await, "5\n");
    }
}

#[tokio::test]
async fn what_a_background_job_says_between_commands_comes_with_the_next() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        shell
            .says("d=$(mktemp -d); mkfifo $d/go; (read x <$d/go; echo from behind) & job=$!")
            .await;
        let ran = shell.run("echo now >$d/go; wait $job; rm -r $d").await;
        assert_eq!(ran.out(), "from behind\n");
    }
}

#[tokio::test]
async fn a_background_job_that_floods_is_never_held_up_and_what_is_lost_is_counted() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let directory = tempfile::tempdir().unwrap();
        use std::os::unix::fs::PermissionsExt;
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open_to_all).unwrap();
        let done = directory.path().join("done");
        let done = done.to_str().unwrap();
        let first = shell.run(&format!("(head -c 1000000 /dev/zero; touch {done}) &")).await;
        // A separate exec sees the end of the flood while the shell is idle.
        let look = format!("while ! [ -e {done} ]; do sleep 0.01; done");
        assert_eq!(shell.guest.sh(&look).await.end.outcome, Outcome::Exited(0));
        let next = shell.run("echo end").await;
        let skipped = next.end.shell.unwrap().skipped;
        let seen = first.stdout.len() + next.stdout.len() - "end\n".len();
        assert_eq!(seen as u64 + skipped.stdout, 1_000_000, "{program:?}");
        assert!(next.out().ends_with("end\n"));
        assert_eq!(skipped.stderr, 0);
    }
}

#[tokio::test]
async fn a_command_goes_on_when_nobody_listens_and_its_output_waits() {
    for program in BOTH {
        let shell = TestShell::open(program).await;
        let request = shell.command("head -c 2000000 /dev/zero | tr '\\0' y; echo done >&2");
        let id = request.id.clone();
        drop(shell.guest.client.exec_in_shell(request).await.unwrap());
        let mut next = shell.begin("echo next").await;
        let mut joined = shell.guest.client.attach(&id, Offsets::default()).await.unwrap();
        let ran = collect(&mut joined).await;
        assert_eq!((ran.stdout.len(), ran.err()), (2_000_000, "done\n".to_owned()));
        assert_eq!(collect(&mut next).await.out(), "next\n");
    }
}
