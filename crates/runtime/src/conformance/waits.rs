//! wait, freeze, thaw.

use std::sync::Arc;
use std::time::Duration;

use super::lab::{Failure, Lab, command, ensure, run, same, script, soon};
use crate::{Death, Plan, RuntimeError};
use sandkeep_core::SandboxId;
use sandkeep_guestlink::{Execution, Outcome};

/// How long a frozen command must be silent.
const SILENCE: Duration = Duration::from_millis(500);

/// A wait that is pending before anything happens.
fn waiting(lab: &Lab<'_>, plan: &Plan) -> tokio::task::JoinHandle<Death> {
    let (runtime, id) = (lab.runtime(), plan.id.clone());
    tokio::spawn(async move { runtime.wait(&id).await })
}

async fn resolves(waiting: tokio::task::JoinHandle<Death>) -> Result<Death, Failure> {
    let death = soon("the end of wait", waiting).await?;
    let death = death.map_err(|error| Failure(format!("wait panicked: {error}")))?;
    ensure!(!death.reason.is_empty(), "wait gives no reason");
    Ok(death)
}

/// Wait must not resolve while the sandbox lives.
async fn still_waits(
    waiting: &tokio::task::JoinHandle<Death>,
    lab: &Lab<'_>,
    plan: &Plan,
) -> Result<(), Failure> {
    let guest = lab.runtime().connect(&plan.id).await?;
    run(&*guest, command(&["true"])).await?;
    ensure!(!waiting.is_finished(), "wait resolved while the sandbox ran");
    Ok(())
}

pub(super) async fn wait_resolves_on_stop(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    let waiting = waiting(lab, &plan);
    still_waits(&waiting, lab, &plan).await?;
    lab.runtime().stop(&plan.id, Duration::from_secs(1)).await?;
    resolves(waiting).await.map(|_| ())
}

pub(super) async fn wait_resolves_on_destroy(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    let waiting = waiting(lab, &plan);
    still_waits(&waiting, lab, &plan).await?;
    lab.runtime().destroy(&plan.id).await?;
    resolves(waiting).await.map(|_| ())
}

pub(super) async fn wait_resolves_when_killed_from_outside(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    let waiting = waiting(lab, &plan);
    still_waits(&waiting, lab, &plan).await?;
    lab.bench.kill_from_outside(&plan.id).await;
    let death = resolves(waiting).await?;
    ensure!(death.reason.contains("kill"), "the reason does not say so: {:?}", death.reason);
    same("running", lab.found(&plan.id).await?.map(|found| found.running), Some(false))?;
    // Its death does not prevent another start.
    lab.runtime().start(&plan).await?;
    let guest = lab.runtime().connect(&plan.id).await?;
    same("the outcome", run(&*guest, command(&["true"])).await?.outcome(), Outcome::Exited(0))
}

pub(super) async fn wait_resolves_at_once_where_nothing_runs(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.created().await?;
    resolves(waiting(lab, &plan)).await?;
    lab.runtime().start(&plan).await?;
    lab.runtime().stop(&plan.id, Duration::from_secs(1)).await?;
    resolves(waiting(lab, &plan)).await?;
    let runtime = lab.runtime();
    soon("the end of wait for nothing", runtime.wait(&SandboxId::random())).await.map(|_| ())
}

pub(super) async fn pause_freezes_or_is_refused(lab: &Lab<'_>) -> Result<(), Failure> {
    let plan = lab.started().await?;
    let runtime = lab.runtime();
    let guest = runtime.connect(&plan.id).await?;
    if !runtime.capabilities().pause {
        for refused in [runtime.freeze(&plan.id).await, runtime.thaw(&plan.id).await] {
            let unsupported = matches!(refused, Err(RuntimeError::Unsupported { .. }));
            ensure!(unsupported, "a runtime without pause answers {refused:?}");
        }
        let outcome = run(&*guest, command(&["true"])).await?.outcome();
        return same("the outcome after a refusal", outcome, Outcome::Exited(0));
    }
    let mut clock = guest.exec(script("while :; do echo tick; sleep 0.02; done")).await?;
    ticks(&mut clock).await?;
    runtime.freeze(&plan.id).await?;
    until_silent(&mut clock).await?;
    let waiting = {
        let (runtime, id) = (Arc::clone(&runtime), plan.id.clone());
        tokio::spawn(async move { runtime.wait(&id).await })
    };
    runtime.thaw(&plan.id).await?;
    for _ in 0..3 {
        ticks(&mut clock).await?;
    }
    ensure!(!waiting.is_finished(), "wait took a frozen sandbox for dead");
    // A frozen sandbox can be destroyed, too.
    runtime.freeze(&plan.id).await?;
    soon("destroy of a frozen sandbox", runtime.destroy(&plan.id)).await??;
    resolves(waiting).await.map(|_| ())
}

async fn ticks(clock: &mut Execution) -> Result<(), Failure> {
    let event = soon("a tick", clock.next()).await?;
    ensure!(event.is_some(), "the clock ended");
    Ok(())
}

/// Output that was in transit during the freeze may still arrive; after that, none may.
async fn until_silent(clock: &mut Execution) -> Result<(), Failure> {
    soon("silence", async {
        while let Ok(event) = tokio::time::timeout(SILENCE, clock.next()).await {
            ensure!(event.is_some(), "the clock ended");
        }
        Ok(())
    })
    .await?
}
