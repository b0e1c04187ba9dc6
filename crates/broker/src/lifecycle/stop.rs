//! stop: end all processes; the volume is kept.

use std::time::Duration;

use super::request::Command;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use crate::view::View;
use sandkeep_core::{
    Next, Operation, Principal, SandboxId, Trigger, Verb, failpoint, limits, with_causes,
};
use sandkeep_runtime::RuntimeError;
use sandkeep_traces::{step, within};

impl Broker {
    /// Ends all processes of a sandbox; does nothing if it is stopped.
    pub async fn stop(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        handle.ask(&self.shared, Verb::Stop, Command::Stop).await?;
        Ok(handle.view())
    }
}

impl Supervisor {
    pub(crate) async fn stop(&mut self) -> Result<(), Error> {
        let (status, next) = self.next(Trigger::Begin(Verb::Stop))?;
        if next == Next::Stay {
            return Ok(());
        }
        self.record(status).await?;
        failpoint!("stop.after_intent");
        self.finish_stop().await
    }

    /// Everything after the intent; reconcile also runs this for an interrupted stop.
    pub(crate) async fn finish_stop(&mut self) -> Result<(), Error> {
        self.expect_death();
        self.before_its_processes_end().await;
        let result = self.end_processes().await;
        self.end_server_or_warn().await;
        failpoint!("stop.after_processes");
        let event = match &result {
            Ok(()) => Trigger::Done(Operation::Stop),
            Err(cause) => Trigger::Failed(Operation::Stop, with_causes(cause)),
        };
        let status = self.after(event);
        self.settle(status).await;
        failpoint!("stop.after_outcome");
        Ok(result?)
    }

    /// The grace period is for a sandbox that will be used again: a waiting destroy cuts it short.
    async fn end_processes(&self) -> Result<(), RuntimeError> {
        tokio::select! {
            result = within(
                step!("runtime.stop"),
                self.runtime.stop(self.id(), limits::STOP_GRACE),
            ) => result,
            () = self.destroy_awaited() => {
                within(step!("runtime.stop"), self.runtime.stop(self.id(), Duration::ZERO)).await
            }
        }
    }
}
