//! start: launch again on the volume that is there.

use std::time::Duration;

use crate::broker::supervisor::Supervisor;
use crate::error::{Error, with_causes};
use crate::failpoint;
use crate::home::Phase;
use crate::sandbox::{Event, Next, Operation, State, Verb};

/// In which boot of the host the sandbox last started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Boot {
    Same,
    Another,
}

impl Supervisor {
    pub(in crate::broker) async fn start(&mut self) -> Result<(), Error> {
        let (status, next) = self.next(Event::Begin(Verb::Start))?;
        if next == Next::Stay {
            return Ok(());
        }
        // Who looks at a broken runtime twice gets the same answer, not a second failure.
        self.shared.usable_runtime(self.meta.spec.runtime())?;
        let before = self.status().state();
        let boot = self.enter_this_boot();
        self.record(status).await?;
        failpoint!("start.after_intent");
        match self.launch(before, boot).await {
            Ok(()) => {
                let status = self.after(Event::Done(Operation::Start));
                self.settle(status).await;
                failpoint!("start.after_outcome");
                Ok(())
            }
            Err(cause) => {
                self.expect_death();
                let failure = Event::Failed(Operation::Start, with_causes(&cause));
                let status = self.after(failure);
                self.settle(status).await;
                Err(cause)
            }
        }
    }

    async fn launch(&mut self, before: State, boot: Boot) -> Result<(), Error> {
        if before == State::Failed {
            // Whatever went wrong, nothing of it may still run.
            self.runtime.stop(self.id(), Duration::ZERO).await?;
        }
        self.renew_meta(boot).await?;
        let root = self.shared.storage.root(self.id()).await?;
        let plan = self.plan(root)?;
        self.runtime.create(&plan).await?;
        failpoint!("start.after_runtime_create");
        self.runtime.start(&plan).await?;
        failpoint!("start.after_launch");
        self.enter().await.map(|_| ())
    }

    fn enter_this_boot(&mut self) -> Boot {
        let boot_id = self.shared.data.boot_id();
        if self.meta.boot_id == boot_id {
            return Boot::Same;
        }
        self.meta.boot_id = boot_id.to_owned();
        Boot::Another
    }

    /// The metadata must be there and name this boot before anything is launched: otherwise a
    /// daemon that starts after a crash would take what runs for the remains of an earlier boot.
    async fn renew_meta(&mut self, boot: Boot) -> Result<(), Error> {
        match boot {
            Boot::Same if self.home.path().exists() => Ok(()),
            Boot::Same | Boot::Another => {
                self.meta.phase = Phase::Ready;
                self.write_meta().await
            }
        }
    }
}
