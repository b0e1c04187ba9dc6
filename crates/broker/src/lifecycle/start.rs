//! start: launch again on the existing volume.

use std::time::Duration;

use super::request::Command;
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use crate::view::View;
use sandkeep_core::{
    Next, Operation, Principal, SandboxId, State, Trigger, Verb, failpoint, with_causes,
};
use sandkeep_traces::{step, within};

impl Broker {
    /// Launches a stopped or failed sandbox; does nothing if it is running.
    pub async fn start(&self, who: &Principal, id: &SandboxId) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        handle.ask(&self.shared, Verb::Start, Command::Start).await?;
        Ok(handle.view())
    }
}

impl Supervisor {
    pub(crate) async fn start(&mut self) -> Result<(), Error> {
        if self.next(Trigger::Begin(Verb::Start))?.1 == Next::Stay {
            return Ok(());
        }
        self.wake().await?;
        self.start_up().await
    }

    /// Starts the guest without the template's start command.
    pub(super) async fn wake(&mut self) -> Result<(), Error> {
        let (status, _) = self.next(Trigger::Begin(Verb::Start))?;
        // A second request to a broken runtime gets the same answer, and not another failure.
        self.runtime.look_again().await;
        self.shared.usable_runtime(self.meta.spec.runtime())?;
        let before = self.status().state();
        self.meta_mut().boot_id = self.shared.data.boot_id().to_owned();
        // The timeout restarts: a sandbox that was stopped at its timeout could not be used otherwise.
        self.meta_mut().began = self.shared.now();
        self.activity.touch();
        self.expect_network();
        self.record(status).await?;
        failpoint!("start.after_intent");
        let launched = async {
            if before == State::Failed {
                // After any failure, no part of it may still be running.
                within(step!("runtime.stop"), self.runtime.stop(self.id(), Duration::ZERO)).await?;
            }
            self.prepare_launch().await?;
            let root = self.volume.root().await?;
            self.launch(root).await
        };
        match launched.await {
            Ok(()) => {
                let status = self.after(Trigger::Done(Operation::Start));
                self.settle(status).await;
                self.set_alarm();
                failpoint!("start.after_outcome");
                Ok(())
            }
            Err(cause) => {
                self.expect_death();
                self.end_server_or_warn().await;
                let failure = Trigger::Failed(Operation::Start, with_causes(&cause));
                let status = self.after(failure);
                self.settle(status).await;
                Err(cause)
            }
        }
    }
}
