//! Declared limits are enforced, and exceeding one harms nobody else.

use std::time::Duration;

use super::lab::{Failure, Lab, Said, command, ensure, modest, run, same, script, soon};
use sandkeep_core::Resources;
use sandkeep_guestlink::{ExecLimits, ExecRequest, Guest, Outcome};

pub(super) async fn a_memory_bomb_is_killed_and_named(lab: &Lab<'_>) -> Result<(), Failure> {
    if !lab.runtime().capabilities().memory_limit {
        return Ok(());
    }
    let plan = lab.started_with(Resources { memory_mb: 64, ..modest() }).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    // Keeps the last line of an endless one in memory.
    let said = run(&*guest, command(&["tail", "/dev/zero"])).await?;
    if !lab.runtime().capabilities().oom_per_exec {
        same("the outcome of the bomb", said.outcome(), Outcome::Lost)?;
        return soon("the end of the sandbox", lab.runtime().wait(&plan.id)).await.map(drop);
    }
    same("the outcome of the bomb", said.outcome(), Outcome::OomKilled)?;
    let said = soon("the next exec", run(&*guest, command(&["echo", "fine"]))).await??;
    same("stdout after it", said.stdout.as_str(), "fine\n")
}

pub(super) async fn a_fork_bomb_stays_inside(lab: &Lab<'_>) -> Result<(), Failure> {
    if !lab.runtime().capabilities().pids_limit {
        return Ok(());
    }
    let pids = 32;
    let plan = lab.started_with(Resources { pids, ..modest() }).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let timeout = Some(Duration::from_secs(2));
    let bomb = script("bomb() { bomb | bomb & }; bomb; sleep 100000");
    let neighbour = lab.guest().await?;
    let explode = run(&*guest, ExecRequest { timeout, ..bomb });
    let beside = async {
        let said =
            soon("a neighbour's exec", run(&*neighbour, command(&["echo", "calm"]))).await??;
        same("a neighbour's stdout", said.stdout.as_str(), "calm\n")?;
        let stats = lab.runtime().stats(&plan.id).await?;
        // The guest itself does not count against the workload.
        ensure!(stats.pids <= pids + 4, "{} processes are over the limit of {pids}", stats.pids);
        Ok::<(), Failure>(())
    };
    let (exploded, beside) = tokio::join!(explode, beside);
    let outcome = exploded?.outcome();
    ensure!(outcome != Outcome::Exited(0), "a fork bomb ended well");
    beside
}

/// Runs a command with limits of its own; `None` if the runtime cannot enforce such a limit, and refuses it.
async fn run_within(
    guest: &dyn Guest,
    limits: ExecLimits,
    held: bool,
    request: ExecRequest,
) -> Result<Option<Said>, Failure> {
    let request = ExecRequest { limits, ..request };
    if held {
        return soon("the end of a limited exec", run(guest, request)).await?.map(Some);
    }
    ensure!(guest.exec(request).await.is_err(), "a limit was taken that does not hold");
    let said = soon("the next exec", run(guest, command(&["echo", "fine"]))).await??;
    same("stdout after a refusal", said.stdout.as_str(), "fine\n")?;
    Ok(None)
}

pub(super) async fn a_command_has_its_own_memory_limit_or_is_refused(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let can = lab.runtime().capabilities();
    let guest = lab.guest().await?;
    let limits = ExecLimits { memory_mb: Some(32), ..ExecLimits::default() };
    let bomb = command(&["tail", "/dev/zero"]);
    let held = can.exec_limits && can.memory_limit;
    let Some(said) = run_within(&*guest, limits, held, bomb).await? else { return Ok(()) };
    same("the outcome above its own limit", said.outcome(), Outcome::OomKilled)?;
    // Uses as much as the other may not, and less than the sandbox may.
    let keeps = script("head -c 48000000 /dev/zero | tail | wc -c");
    let said = soon("the next exec", run(&*guest, keeps)).await??;
    same("what another keeps", said.stdout.trim(), "48000000")
}

pub(super) async fn a_command_has_its_own_limit_of_processes_or_is_refused(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let can = lab.runtime().capabilities();
    let guest = lab.guest().await?;
    let limits = ExecLimits { pids: Some(6), ..ExecLimits::default() };
    // Ten concurrent processes, each of which waits for the one before it.
    let many = || script("true | cat | cat | cat | cat | cat | cat | cat | cat | cat && echo all");
    let held = can.exec_limits && can.pids_limit;
    let Some(said) = run_within(&*guest, limits, held, many()).await? else { return Ok(()) };
    ensure!(said.outcome() != Outcome::Exited(0), "ten processes ran where six may: {said:?}");
    let said = soon("the next exec", run(&*guest, many())).await??;
    same("what another may", said.stdout.as_str(), "all\n")
}
