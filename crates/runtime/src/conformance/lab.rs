//! Helpers of the promises.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Bench;
use crate::{FoundSandbox, Plan, Runtime};
pub(super) use sandkeep_core::promises::{Failure, ensure};
use sandkeep_core::{ExecId, Privilege, Resources, SandboxId};
use sandkeep_guestlink::{
    ExecEnd, ExecEvent, ExecLimits, ExecRequest, Execution, Guest, Outcome, OutputStream, Stdin,
};

/// Reports expected and actual value unless they are equal.
pub(super) fn same<T: PartialEq + fmt::Debug>(
    what: &str,
    found: T,
    expected: T,
) -> Result<(), Failure> {
    ensure!(found == expected, "{what} is {found:?}, not {expected:?}");
    Ok(())
}

/// The meaning of "at once": a runtime that needs longer hangs.
pub(super) const SOON: Duration = Duration::from_secs(10);

pub(super) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure(format!("{what} did not happen within {} s", SOON.as_secs()));
    tokio::time::timeout(SOON, future).await.map_err(late)
}

pub(super) fn modest() -> Resources {
    Resources { memory_mb: 128, cpus: 1.0, pids: 64, disk_mb: None, disk_total_mb: None }
}

/// Creates sandboxes and tracks all of them.
pub(super) struct Lab<'a> {
    pub bench: &'a dyn Bench,
    plans: Mutex<Vec<(Whose, Plan)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Neighbours,
}

impl<'a> Lab<'a> {
    pub fn new(bench: &'a dyn Bench) -> Self {
        Self { bench, plans: Mutex::default() }
    }

    pub fn runtime(&self) -> Arc<dyn Runtime> {
        self.bench.runtime()
    }

    fn remember(&self, whose: Whose, plan: &Plan) {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.push((whose, plan.clone()));
    }

    pub async fn plan(&self, resources: Resources) -> Plan {
        let plan = self.bench.plan(resources).await;
        self.remember(Whose::Ours, &plan);
        plan
    }

    /// A sandbox of another instance, running.
    pub async fn neighbours(&self) -> Result<Plan, Failure> {
        let plan = self.bench.neighbour_plan(modest()).await;
        self.remember(Whose::Neighbours, &plan);
        self.bench.neighbour().create(&plan).await?;
        self.bench.neighbour().start(&plan).await?;
        Ok(plan)
    }

    pub async fn created(&self) -> Result<Plan, Failure> {
        let plan = self.plan(modest()).await;
        self.runtime().create(&plan).await?;
        Ok(plan)
    }

    pub async fn started(&self) -> Result<Plan, Failure> {
        self.started_with(modest()).await
    }

    pub async fn started_with(&self, resources: Resources) -> Result<Plan, Failure> {
        let plan = self.plan(resources).await;
        self.runtime().create(&plan).await?;
        self.runtime().start(&plan).await?;
        Ok(plan)
    }

    /// The guest of a new running sandbox.
    pub async fn guest(&self) -> Result<Arc<dyn Guest>, Failure> {
        let plan = self.started().await?;
        Ok(self.runtime().connect(&plan.id).await?)
    }

    pub async fn found(&self, id: &SandboxId) -> Result<Option<FoundSandbox>, Failure> {
        let all = self.runtime().list().await?;
        Ok(all.into_iter().find(|found| found.id == *id))
    }

    /// Removes everything; that this works is part of every promise.
    pub async fn clean_up(&self) -> Result<(), Failure> {
        let plans = std::mem::take(&mut *self.plans.lock().unwrap_or_else(PoisonError::into_inner));
        let mut cleaned = Ok(());
        for (whose, plan) in plans {
            let runtime = match whose {
                Whose::Ours => self.bench.runtime(),
                Whose::Neighbours => self.bench.neighbour(),
            };
            let destroyed = soon("destroy", runtime.destroy(&plan.id)).await;
            cleaned = cleaned.and(destroyed.and_then(|result| Ok(result?)));
            self.bench.discard(&plan).await;
        }
        cleaned
    }
}

/// An ordinary command.
pub(super) fn command(argv: &[&str]) -> ExecRequest {
    let env = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];
    ExecRequest {
        id: ExecId::random(),
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        cwd: None,
        user: "user".to_owned(),
        stdin: Stdin::Null,
        terminal: None,
        timeout: None,
        privilege: Privilege::None,
        limits: ExecLimits::default(),
    }
}

pub(super) fn script(text: &str) -> ExecRequest {
    command(&["sh", "-c", text])
}

/// All output of an exec.
#[derive(Debug)]
pub(super) struct Said {
    pub stdout: String,
    pub stderr: String,
    pub end: ExecEnd,
}

impl Said {
    pub fn outcome(&self) -> Outcome {
        self.end.outcome
    }
}

pub(super) async fn run(guest: &dyn Guest, request: ExecRequest) -> Result<Said, Failure> {
    listen(guest.exec(request).await?).await
}

/// Reads events to the end, and checks their order: started, output, one end, nothing.
pub(super) async fn listen(mut execution: Execution) -> Result<Said, Failure> {
    let first = soon("the first event", execution.next()).await?;
    same("the first event", first, Some(ExecEvent::Started))?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let end = loop {
        match execution.next().await {
            Some(ExecEvent::Output { stream: OutputStream::Stdout, data, .. }) => {
                stdout.extend(data);
            }
            Some(ExecEvent::Output { stream: OutputStream::Stderr, data, .. }) => {
                stderr.extend(data);
            }
            Some(ExecEvent::Ended(end)) => break end,
            Some(ExecEvent::Started) => return Err(Failure("it started twice".to_owned())),
            Some(gap @ ExecEvent::Gap { .. }) => return Err(Failure(format!("{gap:?}"))),
            None => return Err(Failure("the events end without an end".to_owned())),
        }
    };
    same("what follows the end", execution.next().await, None)?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Said { stdout: text(stdout), stderr: text(stderr), end })
}

/// Reads events until this text has arrived on stdout.
pub(super) async fn hear(execution: &mut Execution, expected: &str) -> Result<(), Failure> {
    hear_one_of(execution, &[expected]).await
}

/// Reads events until one of these texts, of equal length, has arrived on stdout.
pub(super) async fn hear_one_of(
    execution: &mut Execution,
    expected: &[&str],
) -> Result<(), Failure> {
    let mut heard = Vec::new();
    while heard.len() < expected[0].len() {
        match soon("output", execution.next()).await? {
            Some(ExecEvent::Started) => {}
            Some(ExecEvent::Output { stream: OutputStream::Stdout, data, .. }) => {
                heard.extend(data);
            }
            other => return Err(Failure(format!("instead of output came {other:?}"))),
        }
    }
    let heard = String::from_utf8_lossy(&heard).into_owned();
    ensure!(expected.contains(&heard.as_str()), "stdout is {heard:?}, none of {expected:?}");
    Ok(())
}
