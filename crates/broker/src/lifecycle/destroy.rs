//! destroy: from any state to nothing. Once recorded it is never undone, only repeated.

use std::sync::Arc;

use tracing::warn;

use super::handle::Handle;
use super::request::Command;
use super::supervisor::{Fate, Supervisor};
use super::volume::Volume;
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{Operation, Principal, SandboxId, Trigger, Verb, failpoint, with_causes};
use sandkeep_home::{DataDir, Phase};
use sandkeep_traces::{step, within};

impl Broker {
    /// Removes a sandbox and all its data.
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

    /// The same, without counting a verb: the sandbox was never visible to anybody.
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
        // The row is authoritative, so it comes first. If the home were marked and the row then refused, the next
        // daemon would remove a sandbox that is to be kept.
        self.record(status).await?;
        failpoint!("destroy.after_intent");
        self.finish_destroy().await
    }

    /// Everything after the intent; reconcile also runs this for an interrupted destroy.
    pub(crate) async fn finish_destroy(&mut self) -> Result<(), Error> {
        self.expect_death();
        let result = self.tear_down().await;
        if let Err(cause) = &result {
            let status = self.after(Trigger::Failed(Operation::Destroy, with_causes(cause)));
            self.settle(status).await;
        }
        result
    }

    /// Removes everything with this sandbox's id, its row last. Each step may be repeated.
    pub(crate) async fn tear_down(&mut self) -> Result<(), Error> {
        self.meta_mut().phase = Phase::Destroying;
        // The mark is for a daemon that may have lost the row, and precedes the removal of files. A home that does not
        // exist is not recreated for it. If it cannot be written, the sandbox is removed all the same.
        let mark = self.rewrite_meta();
        match &self.volume {
            Volume::Stored(_) => tokio::join!(mark, self.end_everything()).1?,
            Volume::Remote { .. } => {
                mark.await;
                self.end_everything().await?;
            }
        }
        failpoint!("destroy.after_meta");
        // A concurrent fork gets all of it, or an error that it is gone.
        let nobody_reads = self.snapshots.removing().await;
        let files = async {
            self.volume.destroy().await?;
            failpoint!("destroy.after_volume");
            Ok::<(), Error>(())
        };
        let records = async {
            self.shared.snapshots.remove_all(self.id()).await?;
            failpoint!("destroy.after_snapshots");
            Ok::<(), Error>(())
        };
        let (files, records) = tokio::join!(files, records);
        drop(nobody_reads);
        files?;
        records?;
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

    /// Ends everything that runs of it.
    async fn end_everything(&self) -> Result<(), Error> {
        // Only the runtime that created it can confirm that nothing is left.
        self.shared.runtime(self.meta.spec.runtime())?;
        self.network.close();
        // Nothing is added to its log in its home any more.
        self.shared.network.flush().await;
        // First, so that no process of the sandbox can wait for it while it is killed.
        self.end_server().await?;
        within(step!("runtime.destroy"), self.runtime.destroy(self.id())).await?;
        failpoint!("destroy.after_runtime");
        Ok(())
    }
}
