//! destroy: from anywhere to nothing. Once recorded it is never taken back, only repeated.

use std::sync::Arc;

use tracing::warn;

use super::handle::Handle;
use super::request::Command;
use super::supervisor::{Fate, Supervisor};
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{Operation, Principal, SandboxId, Trigger, Verb, failpoint, with_causes};
use sandkeep_home::{DataDir, Phase};

impl Broker {
    /// Removes a sandbox and all it held.
    pub async fn destroy(&self, who: &Principal, id: &SandboxId) -> Result<(), Error> {
        self.shared.find(who, id)?.destroy(&self.shared).await
    }

    pub(crate) async fn destroy_all(&self) {
        let all = self.shared.handles().into_iter().map(|handle| async move {
            if let Err(error) = handle.destroy(&self.shared).await {
                warn!(id = %handle.id, %error, "cannot destroy a sandbox; the next start will");
            }
        });
        futures_util::future::join_all(all).await;
    }
}

impl Handle {
    pub async fn destroy(&self, shared: &Shared) -> Result<(), Error> {
        let runtime = shared.runtime_label(Some(self.meta().spec.runtime()));
        shared.telemetry.verbs().measure(Verb::Destroy, runtime, self.remove(shared)).await
    }

    /// The same, not counted: nobody was ever told of this sandbox.
    pub async fn remove(&self, shared: &Shared) -> Result<(), Error> {
        let _waits = self.wait_for_destroy();
        self.hand_over(shared, Command::Destroy).await
    }
}

impl Supervisor {
    pub(crate) async fn destroy(&mut self) -> (Fate, Result<(), Error>) {
        let destroyed = self.begin_destroy().await;
        (if destroyed.is_ok() { Fate::Gone } else { Fate::Lives }, destroyed)
    }

    async fn begin_destroy(&mut self) -> Result<(), Error> {
        let (status, _) = self.next(Trigger::Begin(Verb::Destroy))?;
        // The row decides, so it comes first: a mark whose row was refused would make the next daemon
        // remove a sandbox that is to stay.
        self.record(status).await?;
        failpoint!("destroy.after_intent");
        self.mark_destroying().await;
        failpoint!("destroy.after_meta");
        self.finish_destroy().await
    }

    /// Everything after the intent: also what reconcile does for one that was cut short.
    pub(crate) async fn finish_destroy(&mut self) -> Result<(), Error> {
        self.expect_death();
        let result = self.tear_down().await;
        if let Err(cause) = &result {
            let status = self.after(Trigger::Failed(Operation::Destroy, with_causes(cause)));
            self.settle(status).await;
        }
        result
    }

    /// Removes everything that goes by this sandbox's id, its row last. Each step may be repeated.
    pub(crate) async fn tear_down(&mut self) -> Result<(), Error> {
        // Only the runtime that made it can say that nothing of it is left.
        self.shared.runtime(self.meta.spec.runtime())?;
        self.runtime.destroy(self.id()).await?;
        failpoint!("destroy.after_runtime");
        // Who forks from it gets all of it, or is told that it is gone.
        let nobody_reads = self.snapshots.removing().await;
        self.volume.destroy().await?;
        drop(nobody_reads);
        failpoint!("destroy.after_volume");
        self.shared.snapshots.remove_all(self.id()).await?;
        failpoint!("destroy.after_snapshots");
        let home = self.home.clone();
        let shared = Arc::clone(&self.shared);
        let remove = move |_: &DataDir| {
            let _nothing_is_added = shared.timelines.hold();
            home.remove()
        };
        self.shared.blocking(remove).await?;
        failpoint!("destroy.after_home");
        for name in self.meta.name.iter().chain(&self.meta.renaming) {
            self.shared.directory.free_name(&self.meta.owner, name, self.id()).await?;
            failpoint!("destroy.after_name");
        }
        if let Some(slot) = &self.meta.slot {
            self.shared.directory.free_slot(&self.meta.owner, slot, self.id()).await?;
            failpoint!("destroy.after_slot");
        }
        self.tell_destroyed();
        failpoint!("destroy.after_event");
        self.shared.registry.delete(&self.meta.owner, self.id(), self.revision).await?;
        failpoint!("destroy.after_row");
        Ok(())
    }

    /// Tells those who may have lost the row. A home that is gone needs no mark, and none is made anew
    /// for it; one that cannot be marked is removed all the same.
    pub(crate) async fn mark_destroying(&mut self) {
        self.meta_mut().phase = Phase::Destroying;
        self.rewrite_meta().await;
    }
}
