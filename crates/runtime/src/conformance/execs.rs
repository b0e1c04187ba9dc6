//! Execs, shells, stdin.

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::lab::{Failure, Lab, Said, command, ensure, hear, listen, run, same, script, soon};
use sandkeep_guestlink::{
    ExecEvent, ExecRequest, GuestError, Offsets, Outcome, OutputStream, Stdin,
};

/// Far longer than any promise may take, so that only an explicit action can end it.
const FOREVER: &str = "100000";

pub(super) async fn exec_gives_the_exit_code(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    for code in [0, 1, 3, 255] {
        let said = run(&*guest, script(&format!("exit {code}"))).await?;
        same("the outcome", said.outcome(), Outcome::Exited(code))?;
        same("the error", said.end.error, None)?;
    }
    Ok(())
}

pub(super) async fn exec_tells_the_pid_that_the_command_sees_or_none(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let execution = guest.exec(script("echo $$")).await?;
    let Some(pid) = execution.pid() else { return Ok(()) };
    let said = listen(execution).await?;
    same("its own pid", said.stdout, format!("{pid}\n"))
}

pub(super) async fn exec_keeps_stdout_and_stderr_apart(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let said = run(&*guest, script("echo out; echo err >&2; echo more")).await?;
    same("stdout", said.stdout.as_str(), "out\nmore\n")?;
    same("stderr", said.stderr.as_str(), "err\n")
}

pub(super) async fn exec_offsets_have_no_gaps(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let mut execution = guest.exec(script("echo a; echo b >&2; echo c; echo d >&2")).await?;
    let mut expected = Offsets::default();
    while let Some(event) = soon("an event", execution.next()).await? {
        let ExecEvent::Output { stream, offset, data } = event else { continue };
        let next = match stream {
            OutputStream::Stdout => &mut expected.stdout,
            OutputStream::Stderr => &mut expected.stderr,
        };
        same("the offset", offset, *next)?;
        *next += data.len() as u64;
    }
    same("the bytes", expected, Offsets { stdout: 4, stderr: 4 })
}

pub(super) async fn exec_feeds_stdin(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let execution = guest.exec(ExecRequest { stdin: Stdin::Piped, ..command(&["cat"]) }).await?;
    let input = execution.input();
    // More than any pipe or window holds, so that it only passes if both sides keep moving.
    let text = "all of it\n".repeat(100_000);
    let feed = async {
        for piece in text.as_bytes().chunks(10_000) {
            input.write(piece).await?;
        }
        input.close().await?;
        Ok::<(), Failure>(())
    };
    let (fed, said) = tokio::join!(feed, listen(execution));
    fed?;
    let said: Said = said?;
    ensure!(said.stdout == text, "{} of {} bytes came back", said.stdout.len(), text.len());
    same("the outcome", said.outcome(), Outcome::Exited(0))
}

pub(super) async fn exec_without_stdin_sees_its_end(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let said = soon("the end of cat", run(&*guest, command(&["cat"]))).await??;
    same("stdout", said.stdout.as_str(), "")?;
    same("the outcome", said.outcome(), Outcome::Exited(0))
}

pub(super) async fn exec_has_the_environment_it_was_given_and_no_other(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let mut request = command(&["env"]);
    request.env.push(("ODD".to_owned(), " =x= ".to_owned()));
    let given: Vec<String> =
        request.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let said = run(&*guest, request).await?;
    let lines: Vec<&str> = said.stdout.lines().collect();
    for line in &given {
        ensure!(lines.contains(&line.as_str()), "{line:?} is missing: {lines:?}");
    }
    // The guest adds the user's variables, and nothing else.
    let may_add =
        |line: &str| ["HOME=", "USER=", "LOGNAME="].iter().any(|name| line.starts_with(name));
    for line in lines {
        ensure!(given.iter().any(|given| given == line) || may_add(line), "{line:?} was not given");
    }
    Ok(())
}

pub(super) async fn exec_runs_where_it_was_told_to(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    same("the default", run(&*guest, command(&["pwd"])).await?.stdout.as_str(), "/home/user\n")?;
    let request = ExecRequest { cwd: Some("/tmp".to_owned()), ..command(&["pwd"]) };
    same("cwd", run(&*guest, request).await?.stdout.as_str(), "/tmp\n")
}

pub(super) async fn exec_runs_as_whom_it_was_told_to(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let any_user = lab.runtime().capabilities().any_user;
    for (user, uid) in [("user", "1000\n"), ("root", "0\n"), ("1000", "1000\n"), ("0:0", "0\n")] {
        let request = ExecRequest { user: user.to_owned(), ..command(&["id", "-u"]) };
        let said = run(&*guest, request).await?;
        if any_user || uid == "1000\n" {
            same(&format!("the uid of {user}"), said.stdout.as_str(), uid)?
        } else {
            same(&format!("the end as {user}"), said.outcome(), Outcome::Exited(126))?
        }
    }
    Ok(())
}

pub(super) async fn exec_that_takes_too_long_is_timed_out(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let timeout = Duration::from_millis(200);
    let request = ExecRequest { timeout: Some(timeout), ..command(&["sleep", FOREVER]) };
    let began = Instant::now();
    let said = soon("the timeout", run(&*guest, request)).await??;
    same("the outcome", said.outcome(), Outcome::TimedOut)?;
    // A test's paused clock does not move `Instant`; then there is nothing to compare.
    let took = began.elapsed();
    ensure!(took >= timeout || said.end.duration <= took, "it was timed out after {took:?}");
    Ok(())
}

pub(super) async fn exec_can_be_canceled(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let request = command(&["sleep", FOREVER]);
    let id = request.id.clone();
    let execution = guest.exec(request).await?;
    guest.cancel(&id).await?;
    let said = soon("the end", listen(execution)).await??;
    same("the outcome", said.outcome(), Outcome::Canceled)?;
    let unknown = guest.cancel(&command(&["true"]).id).await;
    let refused = matches!(unknown, Err(GuestError::Refused { .. }));
    ensure!(refused, "cancel of an unknown exec answers {unknown:?}");
    Ok(())
}

pub(super) async fn exec_can_be_signaled(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    for signal in [15, 9] {
        let request = command(&["sleep", FOREVER]);
        let id = request.id.clone();
        let execution = guest.exec(request).await?;
        guest.signal(&id, signal).await?;
        let said = soon("the end", listen(execution)).await??;
        same("the outcome", said.outcome(), Outcome::Signaled(signal))?;
    }
    Ok(())
}

pub(super) async fn exec_can_be_ended(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let request = command(&["sleep", FOREVER]);
    let id = request.id.clone();
    let execution = guest.exec(request).await?;
    guest.end(&id, Duration::from_secs(3600)).await?;
    let said = soon("the end", listen(execution)).await??;
    same("the outcome", said.outcome(), Outcome::Signaled(15))?;
    let unknown = guest.end(&command(&["true"]).id, Duration::ZERO).await;
    let refused = matches!(unknown, Err(GuestError::Refused { .. }));
    ensure!(refused, "the end of an unknown exec answers {unknown:?}");
    Ok(())
}

pub(super) async fn exec_of_no_such_command_is_127(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    for argv in [["no-such-command"], ["/no/such/file"]] {
        let said = run(&*guest, command(&argv)).await?;
        same("the outcome", said.outcome(), Outcome::Exited(127))?;
        ensure!(said.end.error.is_some(), "it does not say why");
    }
    Ok(())
}

pub(super) async fn exec_of_what_cannot_be_executed_is_126(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let said = run(&*guest, command(&["/etc/passwd"])).await?;
    same("the outcome", said.outcome(), Outcome::Exited(126))?;
    ensure!(said.end.error.is_some(), "it does not say why");
    Ok(())
}

pub(super) async fn execs_run_side_by_side(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    // A command that waits for its input must not block others.
    let slow = guest.exec(ExecRequest { stdin: Stdin::Piped, ..command(&["cat"]) }).await?;
    let many = (0..20).map(|turn| {
        let guest = &guest;
        async move {
            let said = run(&**guest, script(&format!("echo {turn}; exit {turn}"))).await?;
            same("stdout", said.stdout, format!("{turn}\n"))?;
            same("the outcome", said.end.outcome, Outcome::Exited(turn))
        }
    });
    soon("the end of all", try_join_all(many)).await??;
    slow.input().close().await?;
    same("the outcome", listen(slow).await?.outcome(), Outcome::Exited(0))?;
    // The guest releases an end once it has been acknowledged.
    soon("that all are forgotten", async {
        while !guest.execs().await?.is_empty() {
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await?
}

pub(super) async fn exec_left_alone_can_be_joined_at_an_offset(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let request = script(&format!("echo one; echo two; sleep {FOREVER}"));
    let id = request.id.clone();
    let mut first = guest.exec(request).await?;
    hear(&mut first, "one\ntwo\n").await?;
    drop(first);
    let known = guest.execs().await?;
    ensure!(known.iter().any(|exec| exec.id == id && exec.running), "it is not known: {known:?}");
    let mut second = guest.attach(&id, Offsets { stdout: 4, stderr: 0 }).await?;
    hear(&mut second, "two\n").await?;
    // The last one to attach receives the events.
    let mut third = guest.attach(&id, Offsets { stdout: 4, stderr: 0 }).await?;
    let cut_off = loop {
        match soon("the end of the second", second.next()).await? {
            Some(ExecEvent::Ended(end)) => break end,
            Some(ExecEvent::Started | ExecEvent::Output { .. } | ExecEvent::Gap { .. }) => {}
            None => return Err(Failure("the second ended without an end".to_owned())),
        }
    };
    same("the outcome for who was cut off", cut_off.outcome, Outcome::Lost)?;
    hear(&mut third, "two\n").await?;
    guest.cancel(&id).await?;
    loop {
        if let Some(ExecEvent::Ended(end)) = soon("the end", third.next()).await? {
            return same("the outcome", end.outcome, Outcome::Canceled);
        }
    }
}

/// Output that was not acknowledged is delivered again, byte for byte, and the end once to each listener, including one
/// that attaches after the command has ended.
pub(super) async fn exec_that_ended_unwatched_tells_all_to_who_comes_later(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    let request = script("echo out; echo err >&2; exit 9");
    let id = request.id.clone();
    drop(guest.exec(request).await?);
    soon("the end of it", async {
        while guest.execs().await?.iter().any(|exec| exec.id == id && exec.running) {
            tokio::task::yield_now().await;
        }
        Ok::<(), Failure>(())
    })
    .await??;
    let said = listen(guest.attach(&id, Offsets::default()).await?).await?;
    same("stdout", said.stdout.as_str(), "out\n")?;
    same("stderr", said.stderr.as_str(), "err\n")?;
    same("the outcome", said.outcome(), Outcome::Exited(9))?;
    // Once the end was taken, it is delivered to nobody else.
    soon("that it is forgotten", async {
        while guest.execs().await?.iter().any(|exec| exec.id == id) {
            tokio::task::yield_now().await;
        }
        Ok::<(), Failure>(())
    })
    .await??;
    let late = guest.attach(&id, Offsets::default()).await;
    let refused = matches!(late, Err(GuestError::Refused { .. }));
    ensure!(refused, "a forgotten exec can be joined: {:?}", late.err());
    Ok(())
}

/// A client that attaches again learns how much of stdin has arrived, continues there, and nothing is lost or
/// duplicated.
pub(super) async fn exec_stdin_goes_on_where_it_was_after_joining_again(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    // The mock's commands lose their stdin with the client that started them.
    if !lab.runtime().capabilities().isolation {
        return Ok(());
    }
    let guest = lab.guest().await?;
    let request = ExecRequest { stdin: Stdin::Piped, ..command(&["cat"]) };
    let id = request.id.clone();
    let mut first = guest.exec(request).await?;
    first.input().write(b"one\n").await?;
    hear(&mut first, "one\n").await?;
    drop(first);
    let second = guest.attach(&id, Offsets { stdout: 4, stderr: 0 }).await?;
    let input = second.input();
    same("the position", input.position(), Some(4))?;
    input.write(b"two\n").await?;
    input.close().await?;
    let said = soon("the end", listen(second)).await??;
    same("stdout", said.stdout.as_str(), "two\n")?;
    same("the outcome", said.outcome(), Outcome::Exited(0))
}

pub(super) async fn exec_ends_with_its_sandbox(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let execution = guest.exec(command(&["sleep", FOREVER])).await?;
    lab.runtime().destroy(&plan.id).await?;
    let said = soon("the end", listen(execution)).await??;
    let outcome = said.outcome();
    let honest = matches!(outcome, Outcome::Lost | Outcome::Signaled(_));
    ensure!(honest, "a command whose sandbox was destroyed is said to have {outcome:?}");
    ensure!(guest.ping().await.is_err() || lab.found(&plan.id).await?.is_none(), "it lives on");
    Ok(())
}
