//! pause and resume: freeze all processes, and thaw them again.
//!
//! A command that a client waits for is never frozen unexpectedly: a pause waits for running commands, up to a limit,
//! and otherwise refuses and names them. Processes and idle shells are frozen with the sandbox. During the wait nothing
//! is recorded, and new commands still start, unless they are to be kept out. After the intent no more start, so a second
//! check finds those that started in between.

use std::time::Duration;

use tokio::time::Instant;

use super::request::Command;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use crate::view::View;
use sandkeep_core::{
    ExecId, Next, Operation, Principal, SandboxId, Trigger, Verb, failpoint, limits, with_causes,
};
use sandkeep_runtime::RuntimeError;
use sandkeep_traces::{step, within};

/// What happens to running commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlight {
    /// They may end within this time; a command that does not end in time makes the pause fail.
    Drain(Duration),
    /// The same, and new ones are refused meanwhile.
    DrainShut(Duration),
    /// They are frozen.
    Freeze,
}

impl Broker {
    /// Freezes every process of a sandbox; does nothing if it is paused already.
    pub async fn pause(
        &self,
        who: &Principal,
        id: &SandboxId,
        in_flight: InFlight,
    ) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        let pause = |reply| Command::Pause(in_flight, reply);
        handle.ask(&self.shared, Verb::Pause, pause).await?;
        Ok(handle.view())
    }

    /// Thaws a paused sandbox; does nothing if it is running.
    pub async fn resume(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        handle.ask(&self.shared, Verb::Resume, Command::Resume).await?;
        Ok(handle.view())
    }
}

impl Supervisor {
    pub(crate) async fn pause(&mut self, in_flight: InFlight) -> Result<(), Error> {
        let (status, next) = self.next(Trigger::Begin(Verb::Pause))?;
        if next == Next::Stay {
            return Ok(());
        }
        if !self.runtime.capabilities().pause {
            let runtime = self.runtime.name();
            return Err(RuntimeError::Unsupported { runtime, what: "pause" }.into());
        }
        let deadline = match in_flight {
            InFlight::Freeze => None,
            InFlight::Drain(limit) | InFlight::DrainShut(limit) => Some(Instant::now() + limit),
        };
        let _shut = match in_flight {
            InFlight::DrainShut(_) => Some(self.execs.activity.shut()),
            InFlight::Freeze | InFlight::Drain(_) => None,
        };
        loop {
            if let Some(deadline) = deadline {
                self.drained_by(deadline).await?;
            }
            self.record(status.clone()).await?;
            failpoint!("pause.after_intent");
            if deadline.is_none() || self.execs.activity.commands() == 0 {
                return self.finish_pause().await;
            }
            let why = "a command began".to_owned();
            let status = self.after(Trigger::Failed(Operation::Pause, why));
            self.settle(status).await;
        }
    }

    /// Returns when no command runs any more.
    async fn drained_by(&self, deadline: Instant) -> Result<(), Error> {
        let ended = self.execs.activity.commands_ended();
        tokio::select! {
            biased;
            () = ended => Ok(()),
            () = tokio::time::sleep_until(deadline) => Err(self.execs_in_flight(Verb::Pause)),
            () = self.destroy_awaited() => Err(self.execs_in_flight(Verb::Pause)),
        }
    }

    pub(super) fn execs_in_flight(&self, verb: Verb) -> Error {
        let running = self.execs.index.commands().into_iter().filter(|exec| exec.end().is_none());
        let mut execs: Vec<ExecId> = running.map(|exec| exec.id().clone()).collect();
        execs.truncate(limits::EXECS_NAMED_MAX);
        Error::ExecsInFlight { id: self.id().clone(), verb, execs }
    }

    /// Everything after the intent; reconcile also runs this for an interrupted pause.
    pub(crate) async fn finish_pause(&mut self) -> Result<(), Error> {
        let frozen = within(step!("runtime.freeze"), self.runtime.freeze(self.id())).await;
        failpoint!("pause.after_freeze");
        self.end_pause(Operation::Pause, frozen).await?;
        failpoint!("pause.after_outcome");
        Ok(())
    }

    pub(crate) async fn resume(&mut self) -> Result<(), Error> {
        let (status, next) = self.next(Trigger::Begin(Verb::Resume))?;
        if next == Next::Stay {
            return Ok(());
        }
        // The timeout restarts: a sandbox that was paused at its timeout could not be used otherwise.
        self.meta_mut().began = self.shared.now();
        self.activity.touch();
        self.record(status).await?;
        failpoint!("resume.after_intent");
        self.finish_resume().await?;
        self.set_alarm();
        Ok(())
    }

    pub(crate) async fn finish_resume(&mut self) -> Result<(), Error> {
        let thawed = within(step!("runtime.thaw"), self.runtime.thaw(self.id())).await;
        failpoint!("resume.after_thaw");
        self.end_pause(Operation::Resume, thawed).await?;
        failpoint!("resume.after_outcome");
        Ok(())
    }

    async fn end_pause(
        &mut self,
        operation: Operation,
        result: Result<(), RuntimeError>,
    ) -> Result<(), Error> {
        let event = match &result {
            Ok(()) => Trigger::Done(operation),
            Err(cause) => Trigger::Failed(operation, with_causes(cause)),
        };
        let status = self.after(event);
        self.settle(status).await;
        Ok(result?)
    }
}
