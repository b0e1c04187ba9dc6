//! How a supervisor starts with a sandbox that an earlier one left.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::codebases;
use crate::error::Error;
use crate::execs::rejoin;
use crate::lifecycle::handle::Handle;
use crate::lifecycle::supervisor::{Fate, Supervisor};
use crate::{execs::processes, ports};
use sandkeep_core::{Next, Operation, State, Status, Trigger, with_causes};
use sandkeep_guestlink::Guest;
use sandkeep_home::Phase;

impl Supervisor {
    /// Applies the findings, finishes interrupted operations, and reconnects to the guest if it runs.
    pub(super) async fn recover(
        &mut self,
        trigger: Trigger,
        handle: &Arc<Handle>,
    ) -> Result<Fate, Error> {
        let missing = matches!(trigger, Trigger::Missing(_));
        let (status, next) = self.next(trigger)?;
        let recovered = match next {
            Next::Carry(Operation::Destroy) => {
                self.publish(status);
                self.finish_destroy().await?;
                info!(id = %self.id(), "removed what a create or destroy left");
                return Ok(Fate::Gone);
            }
            Next::Carry(Operation::Stop) => self.finish_stop().await,
            // Freezing a frozen sandbox, or thawing a running one, has no effect.
            Next::Carry(Operation::Pause) => self.finish_pause().await,
            Next::Carry(Operation::Resume) => self.finish_resume().await,
            Next::Carry(Operation::Snapshot) => self.undo_snapshot().await,
            Next::Carry(Operation::Rollback) => {
                self.publish(status);
                self.finish_rollback().await
            }
            Next::Stay | Next::Record => {
                let marked = if missing { Ok(()) } else { self.mark_ready().await };
                marked.and(self.remember(status, next).await)
            }
            Next::Carry(Operation::Create | Operation::Start) | Next::Forget => {
                unreachable!("a look at what is there neither begins anything nor ends a destroy")
            }
        };
        // A running sandbox is connected and watched, even if that could not be recorded.
        self.reenter(handle).await;
        recovered.map(|()| Fate::Lives)
    }

    /// Claims the slot of an adopted sandbox again, because the registry that knew it is lost. A slot needs a row,
    /// which does not exist yet if the sandbox cannot be reached.
    pub(super) async fn reclaim_slot(&mut self, recorded: &Status) {
        let Some(slot) = self.meta.slot.clone() else { return };
        let claimed = async {
            if self.revision.is_none() {
                let put = self.shared.registry.put(&self.meta, recorded, None);
                self.revision = Some(put.await?);
            }
            self.claim_slot(&slot).await
        };
        if let Err(error) = claimed.await {
            warn!(id = %self.id(), %slot, %error, "an adopted sandbox cannot have its slot back");
        }
    }

    async fn mark_ready(&mut self) -> Result<(), Error> {
        if self.meta.phase == Phase::Ready {
            return Ok(());
        }
        self.meta_mut().phase = Phase::Ready;
        self.write_meta().await?;
        self.sync_meta().await;
        Ok(())
    }

    /// Publishes the findings. Writes the row only if it differs: after a restart most rows are correct.
    async fn remember(&mut self, status: Status, next: Next) -> Result<(), Error> {
        match (next, self.revision) {
            (Next::Stay, Some(_)) => {
                self.publish(status);
                Ok(())
            }
            _ => self.record_or_show(status).await,
        }
    }

    /// The findings are true even if they cannot be written.
    async fn record_or_show(&mut self, status: Status) -> Result<(), Error> {
        let recorded = self.record(status.clone()).await;
        if recorded.is_err() {
            self.publish(status);
        }
        recorded
    }

    /// Connects to the guest, and to the server of its codebase's rules. A sandbox without that server is ended.
    async fn reconnect(&mut self) -> Result<Arc<dyn Guest>, Error> {
        let (spec, terms) = (self.meta.spec.clone(), self.meta.terms.clone());
        if let Err(error) = codebases::adopt(&self.shared, self.id(), &spec, &terms).await {
            self.runtime.stop(self.id(), Duration::ZERO).await?;
            return Err(error);
        }
        self.enter().await
    }

    async fn reenter(&mut self, handle: &Arc<Handle>) {
        if !matches!(self.status().state(), State::Running | State::Paused) {
            return rejoin::lose_all(&self.shared, handle);
        }
        match self.reconnect().await {
            Ok(guest) => {
                info!(id = %self.id(), "adopted a running sandbox");
                handle.set_served(codebases::served_now(&self.shared, self.id()));
                self.reopen_network(handle).await;
                self.rejoin(handle, guest).await;
                let shared = Arc::clone(&self.shared);
                self.shared.tasks.spawn(ports::reopen(shared, Arc::clone(handle)));
                let shared = Arc::clone(&self.shared);
                self.shared.tasks.spawn(processes::probe_again(shared, Arc::clone(handle)));
            }
            Err(error) => {
                let status = self.after(Trigger::Died(with_causes(&error)));
                self.settle(status).await;
                rejoin::lose_all(&self.shared, handle);
            }
        }
    }
}
