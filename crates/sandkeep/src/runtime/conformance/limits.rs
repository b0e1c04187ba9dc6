//! Limits that the capabilities declare hold, and what breaks them hurts nobody else.

use std::time::Duration;

use super::lab::{Broken, Lab, command, hold, modest, run, same, script, soon};
use crate::guest::{ExecRequest, Outcome};
use crate::sandbox::Resources;

pub(super) async fn a_memory_bomb_is_killed_and_named(lab: &Lab<'_>) -> Result<(), Broken> {
    if !lab.runtime().capabilities().memory_limit {
        return Ok(());
    }
    let plan = lab.started_with(Resources { memory_mb: 64, ..modest() }).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    // Keeps the last line of an endless one.
    let said = run(&*guest, command(&["tail", "/dev/zero"])).await?;
    if !lab.runtime().capabilities().oom_per_exec {
        same("the outcome of the bomb", said.outcome(), Outcome::Lost)?;
        return soon("the end of the sandbox", lab.runtime().wait(&plan.id)).await.map(drop);
    }
    same("the outcome of the bomb", said.outcome(), Outcome::OomKilled)?;
    let said = soon("the next exec", run(&*guest, command(&["echo", "fine"]))).await??;
    same("stdout after it", said.stdout.as_str(), "fine\n")
}

pub(super) async fn a_fork_bomb_stays_inside(lab: &Lab<'_>) -> Result<(), Broken> {
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
        // The guest itself is not counted against the workload.
        hold!(stats.pids <= pids + 4, "{} processes are over the limit of {pids}", stats.pids);
        Ok::<(), Broken>(())
    };
    let (exploded, beside) = tokio::join!(explode, beside);
    let outcome = exploded?.outcome();
    hold!(outcome != Outcome::Exited(0), "a fork bomb ended well");
    beside
}
