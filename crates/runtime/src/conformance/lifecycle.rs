//! create, start, stop, destroy, list, stats, connect.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::lab::{Failure, Lab, command, ensure, run, same, soon};
use crate::{Files, RuntimeError};
use sandkeep_core::SandboxId;
use sandkeep_guestlink::Outcome;

pub(super) async fn a_created_sandbox_is_listed_and_does_not_run(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let plan = lab.created().await?;
    let found = lab.found(&plan.id).await?;
    same("running", found.map(|found| found.running), Some(false))
}

pub(super) async fn create_may_be_repeated(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.created().await?;
    lab.runtime().create(&plan).await?;
    lab.runtime().start(&plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    same(
        "the outcome of true",
        run(&*guest, command(&["true"])).await?.outcome(),
        Outcome::Exited(0),
    )
}

pub(super) async fn what_is_reserved_is_used_or_removed(lab: &Lab<'_>) -> Result<(), Failure> {
    let (used, given_up) =
        (lab.plan(super::lab::modest()).await, lab.plan(super::lab::modest()).await);
    for plan in [&used, &given_up] {
        for _ in 0..2 {
            lab.runtime().reserve(&plan.id, &plan.resources).await?;
        }
    }
    lab.runtime().destroy(&given_up.id).await?;
    ensure!(lab.found(&given_up.id).await?.is_none(), "what was reserved is still listed");
    lab.runtime().create(&used).await?;
    lab.runtime().start(&used).await?;
    let guest = lab.runtime().connect(&used.id).await?;
    let ran = run(&*guest, command(&["true"])).await?;
    same("the outcome of true", ran.outcome(), Outcome::Exited(0))?;
    // What was destroyed can be created, too.
    lab.runtime().create(&given_up).await?;
    Ok(lab.runtime().start(&given_up).await?)
}

pub(super) async fn a_started_sandbox_runs_and_answers(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    same("running", lab.found(&plan.id).await?.map(|found| found.running), Some(true))?;
    let guest = lab.runtime().connect(&plan.id).await?;
    soon("an answer to ping", guest.ping()).await??;
    same("its execs", guest.execs().await?, Vec::new())
}

/// The host name is the sandbox id: machine names are unique, and one that appears in a log identifies its sandbox.
pub(super) async fn each_sandbox_is_called_by_its_id(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    for _ in 0..2 {
        let guest = lab.runtime().connect(&plan.id).await?;
        let said = run(&*guest, command(&["uname", "-n"])).await?;
        same("its host name", said.stdout.trim_end(), plan.id.as_str())?;
        lab.runtime().stop(&plan.id, Duration::from_secs(1)).await?;
        lab.runtime().start(&plan).await?;
    }
    Ok(())
}

pub(super) async fn stop_ends_everything_and_may_be_repeated(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    for _ in 0..2 {
        lab.runtime().stop(&plan.id, Duration::from_secs(1)).await?;
        same("running", lab.found(&plan.id).await?.map(|found| found.running), Some(false))?;
    }
    // A sandbox that never existed does not run either.
    Ok(lab.runtime().stop(&SandboxId::random(), Duration::ZERO).await?)
}

pub(super) async fn a_stopped_sandbox_starts_again(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    for _ in 0..3 {
        lab.runtime().stop(&plan.id, Duration::from_secs(1)).await?;
        lab.runtime().start(&plan).await?;
        let guest = lab.runtime().connect(&plan.id).await?;
        let said = run(&*guest, command(&["echo", "again"])).await?;
        same("stdout", said.stdout.as_str(), "again\n")?;
    }
    Ok(())
}

/// Like a rollback: the name stays, and refers to another directory.
pub(super) async fn a_volume_that_was_swapped_comes_back_with_the_guest(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    if lab.runtime().files() == Files::Remote {
        return Ok(());
    }
    let plan = lab.started().await?;
    lab.runtime().stop(&plan.id, Duration::ZERO).await?;
    let own = plan.stored()?.root.own_dir();
    let aside = own.with_extension("aside");
    std::fs::rename(own, &aside)?;
    let copied = std::process::Command::new("cp").arg("-a").args([&aside, own]).status()?;
    ensure!(copied.success(), "cannot copy the volume: {copied}");
    std::fs::write(own.join("swapped"), "new\n")?;
    std::fs::remove_dir_all(&aside)?;
    lab.runtime().create(&plan).await?;
    lab.runtime().start(&plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    let said = run(&*guest, command(&["cat", "/swapped"])).await?;
    same("what it sees", said.stdout.as_str(), "new\n")
}

pub(super) async fn destroy_leaves_nothing_and_may_be_repeated(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let plan = lab.started().await?;
    for _ in 0..2 {
        lab.runtime().destroy(&plan.id).await?;
        ensure!(lab.found(&plan.id).await?.is_none(), "a destroyed sandbox is still listed");
        let inside = lab.runtime().connect(&plan.id).await;
        ensure!(inside.is_err(), "a destroyed sandbox still has a way inside");
    }
    Ok(lab.runtime().destroy(&SandboxId::random()).await?)
}

pub(super) async fn destroy_takes_what_is_half_made(lab: &Lab<'_>) -> Result<(), Failure> {
    let created = lab.created().await?;
    lab.runtime().destroy(&created.id).await?;
    ensure!(lab.found(&created.id).await?.is_none(), "a sandbox never started is still listed");
    // A create that was interrupted at any point, including the earliest.
    let planned = lab.plan(super::lab::modest()).await;
    let cut = lab.runtime();
    let _ = tokio::time::timeout(Duration::ZERO, cut.create(&planned)).await;
    lab.runtime().destroy(&planned.id).await?;
    ensure!(lab.found(&planned.id).await?.is_none(), "a sandbox half made is still listed");
    Ok(())
}

pub(super) async fn only_a_running_sandbox_has_a_way_inside(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.created().await?;
    match lab.runtime().connect(&plan.id).await.err() {
        Some(RuntimeError::NotRunning { .. }) => {}
        other => return Err(Failure(format!("connect before start answers {other:?}"))),
    }
    match lab.runtime().connect(&SandboxId::random()).await.err() {
        Some(RuntimeError::NotFound { .. } | RuntimeError::NotRunning { .. }) => Ok(()),
        other => Err(Failure(format!("connect to nothing answers {other:?}"))),
    }
}

pub(super) async fn list_gives_back_the_full_labels(lab: &Lab<'_>) -> Result<(), Failure> {
    for plan in [lab.created().await?, lab.started().await?] {
        let found = lab.found(&plan.id).await?.map(|found| found.labels);
        same("the labels", found, Some(plan.labels))?;
    }
    Ok(())
}

pub(super) async fn another_instance_is_not_listed(lab: &Lab<'_>) -> Result<(), Failure> {
    let theirs = lab.neighbours().await?;
    ensure!(lab.found(&theirs.id).await?.is_none(), "another instance's sandbox is listed");
    let listed = lab.bench.neighbour().list().await?;
    ensure!(listed.iter().any(|found| found.id == theirs.id), "its own instance does not list it");
    Ok(())
}

pub(super) async fn twenty_at_once_do_not_disturb_each_other(lab: &Lab<'_>) -> Result<(), Failure> {
    let lives = (0..20).map(|_| async {
        let plan = lab.started().await?;
        let guest = lab.runtime().connect(&plan.id).await?;
        let said = run(&*guest, command(&["echo", plan.id.as_str()])).await?;
        same("stdout", said.stdout, format!("{}\n", plan.id))?;
        lab.runtime().destroy(&plan.id).await?;
        ensure!(lab.found(&plan.id).await?.is_none(), "a destroyed sandbox is still listed");
        Ok(())
    });
    try_join_all(lives).await.map(|_| ())
}

pub(super) async fn stats_are_those_of_a_known_sandbox(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    // The guest must answer first: before that it cannot be told from other processes.
    lab.runtime().connect(&plan.id).await?.ping().await?;
    let stats = lab.runtime().stats(&plan.id).await?;
    if lab.runtime().capabilities().pids_limit {
        ensure!(stats.pids >= 1, "a running sandbox has no process: {stats:?}");
    }
    let unknown = lab.runtime().stats(&SandboxId::random()).await;
    ensure!(unknown.is_err(), "there are stats of a sandbox that never was: {unknown:?}");
    Ok(())
}
