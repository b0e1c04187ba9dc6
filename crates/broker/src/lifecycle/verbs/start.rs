//! start: launch again on the volume that is there.

use std::time::Duration;

use crate::error::Error;
use crate::lifecycle::supervisor::Supervisor;
use crate::records::timeline::Happening;
use sandkeep_core::{Event, Next, Operation, State, Verb, failpoint, with_causes};
use sandkeep_home::{DataDir, HomeState, Phase};

impl Supervisor {
    pub(crate) async fn start(&mut self) -> Result<(), Error> {
        if self.next(Event::Begin(Verb::Start))?.1 == Next::Stay {
            return Ok(());
        }
        self.wake().await?;
        self.note(Happening::Started).await;
        self.start_up().await
    }

    /// Has the guest run, and nothing of the template's own.
    pub(super) async fn wake(&mut self) -> Result<(), Error> {
        let (status, _) = self.next(Event::Begin(Verb::Start))?;
        // Who looks at a broken runtime twice gets the same answer, not a second failure.
        self.runtime.look_again().await;
        self.shared.usable_runtime(self.meta.spec.runtime())?;
        let before = self.status().state();
        self.meta.boot_id = self.shared.data.boot_id().to_owned();
        // Its time begins anew: a sandbox that was stopped at its timeout could not be used otherwise.
        self.meta.began = self.shared.now();
        self.activity.touch();
        self.record(status).await?;
        failpoint!("start.after_intent");
        match self.launch(before).await {
            Ok(()) => {
                let status = self.after(Event::Done(Operation::Start));
                self.settle(status).await;
                self.set_alarm();
                failpoint!("start.after_outcome");
                Ok(())
            }
            Err(cause) => {
                self.expect_death();
                let failure = Event::Failed(Operation::Start, with_causes(&cause));
                let status = self.after(failure);
                self.settle(status).await;
                self.note_state().await;
                Err(cause)
            }
        }
    }

    pub(super) async fn launch(&mut self, before: State) -> Result<(), Error> {
        if before == State::Failed {
            // Whatever went wrong, nothing of it may still run.
            self.runtime.stop(self.id(), Duration::ZERO).await?;
        }
        self.renew_meta().await?;
        self.expect_start_up().await?;
        let root = self.shared.storage.root(self.id()).await?;
        let plan = self.plan(root)?;
        self.runtime.create(&plan).await?;
        failpoint!("start.after_runtime_create");
        self.runtime.start(&plan).await?;
        failpoint!("start.after_launch");
        self.enter().await.map(|_| ())
    }

    /// The metadata must be there, on disk, and name this boot before anything is launched: otherwise
    /// a daemon that starts after a crash would take what runs for the remains of an earlier boot.
    /// The file itself is asked, because an earlier start may have failed before it was written.
    async fn renew_meta(&mut self) -> Result<(), Error> {
        self.meta.phase = Phase::Ready;
        let (home, meta) = (self.home.clone(), self.meta.clone());
        let renew = move |_: &DataDir| match home.read() {
            HomeState::Known(found)
                if found.boot_id == meta.boot_id && found.phase == meta.phase =>
            {
                // The row has the rest; it need not be on disk for this.
                home.write(&meta)
            }
            HomeState::Known(_)
            | HomeState::Missing
            | HomeState::Empty
            | HomeState::Unreadable(_) => {
                home.create(&meta)?;
                home.sync()
            }
        };
        self.shared.blocking(renew).await
    }
}
