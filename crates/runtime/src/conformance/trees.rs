//! Whole process trees: only where commands are real processes.

use std::time::Duration;

use super::lab::{Failure, Lab, ensure, hear, listen, run, same, script, soon};
use sandkeep_guestlink::{ExecEvent, ExecRequest, Execution, Guest, GuestError, Outcome};

/// Children, grandchildren, a child of a dead parent, and one in a session of its own.
const TREE: &str = "sleep 100001 & (sleep 100002 & sleep 100003 &) ; \
                    sh -c 'setsid sleep 100004 & exit' ; echo grown; sleep 100005";

/// Counts the remaining processes of the tree, using the sandbox's own /proc. The pattern does not match the shell that
/// counts.
const COUNT: &str = "n=0; for p in /proc/[0-9]*/cmdline; do \
                     case $(tr '\\0' ' ' < $p 2>/dev/null) in 'sleep 10000'*) n=$((n+1)) ;; esac; \
                     done; echo $n";

async fn left(guest: &dyn Guest) -> Result<String, Failure> {
    Ok(run(guest, script(COUNT)).await?.stdout.trim_end().to_owned())
}

/// The last process of the tree may not have executed its program yet when the first reports that the tree is complete.
async fn all_live(guest: &dyn Guest) -> Result<(), Failure> {
    live(guest, "5").await
}

/// Waits until this many are alive. A shell's child is a shell for a moment, and not counted.
async fn live(guest: &dyn Guest, count: &str) -> Result<(), Failure> {
    soon(&format!("that {count} live"), async {
        while left(guest).await? != count {
            tokio::task::yield_now().await;
        }
        Ok(())
    })
    .await?
}

async fn end_of(execution: &mut Execution) -> Result<Outcome, Failure> {
    loop {
        match soon("the end", execution.next()).await? {
            Some(ExecEvent::Ended(end)) => return Ok(end.outcome),
            Some(ExecEvent::Started | ExecEvent::Output { .. } | ExecEvent::Gap { .. }) => {}
            None => return Err(Failure("it ended without an end".to_owned())),
        }
    }
}

pub(super) async fn timeout_kills_the_whole_tree(lab: &Lab<'_>) -> Result<(), Failure> {
    if !lab.runtime().capabilities().isolation {
        return Ok(());
    }
    let guest = lab.guest().await?;
    let timeout = Some(Duration::from_secs(3));
    let mut execution = guest.exec(ExecRequest { timeout, ..script(TREE) }).await?;
    hear(&mut execution, "grown\n").await?;
    all_live(&*guest).await?;
    same("the outcome", end_of(&mut execution).await?, Outcome::TimedOut)?;
    same("the living after", left(&*guest).await?.as_str(), "0")
}

pub(super) async fn cancel_kills_the_whole_tree(lab: &Lab<'_>) -> Result<(), Failure> {
    if !lab.runtime().capabilities().isolation {
        return Ok(());
    }
    let guest = lab.guest().await?;
    let request = script(TREE);
    let id = request.id.clone();
    let mut execution = guest.exec(request).await?;
    hear(&mut execution, "grown\n").await?;
    all_live(&*guest).await?;
    guest.cancel(&id).await?;
    while soon("the end", execution.next()).await?.is_some() {}
    same("the living after", left(&*guest).await?.as_str(), "0")
}

/// A process that handles SIGTERM ends with its own exit code; others are killed. Both for the whole tree.
pub(super) async fn end_takes_the_whole_tree(lab: &Lab<'_>) -> Result<(), Failure> {
    if !lab.runtime().capabilities().isolation {
        return Ok(());
    }
    let guest = lab.guest().await?;
    let obeys = format!("trap 'exit 7' TERM; (trap '' TERM; {TREE}) & while :; do wait; done");
    let stubborn = format!("trap '' TERM; {TREE}");
    for (tree, outcome) in [(obeys, Outcome::Exited(7)), (stubborn, Outcome::Canceled)] {
        let request = script(&tree);
        let id = request.id.clone();
        let mut execution = guest.exec(request).await?;
        hear(&mut execution, "grown\n").await?;
        all_live(&*guest).await?;
        guest.end(&id, Duration::from_millis(100)).await?;
        same("the outcome", end_of(&mut execution).await?, outcome)?;
        same("the living after", left(&*guest).await?.as_str(), "0")?;
        let again = guest.end(&id, Duration::ZERO).await;
        let refused = matches!(again, Err(GuestError::Refused { .. }));
        ensure!(refused, "the end of an ended exec answers {again:?}");
    }
    Ok(())
}

pub(super) async fn a_background_process_does_not_hold_the_exec(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    if !lab.runtime().capabilities().isolation {
        return Ok(());
    }
    let guest = lab.guest().await?;
    // It keeps the pipes open; the exec ends with its first process all the same.
    let execution = guest.exec(script("sleep 100001 & echo mother")).await?;
    let said = soon("the end", listen(execution)).await??;
    same("stdout", said.stdout.as_str(), "mother\n")?;
    same("the outcome", said.outcome(), Outcome::Exited(0))?;
    live(&*guest, "1").await
}
