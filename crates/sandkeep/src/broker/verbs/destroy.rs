//! destroy: from anywhere to nothing. Once recorded it is never taken back, only repeated.

use std::io;

use tracing::warn;

use crate::broker::supervisor::Supervisor;
use crate::error::{Error, with_causes};
use crate::failpoint;
use crate::home::Phase;
use crate::sandbox::{Event, Operation, Verb};

impl Supervisor {
    pub(in crate::broker) async fn destroy(&mut self) -> Result<(), Error> {
        let (status, _) = self.next(Event::Begin(Verb::Destroy))?;
        let before = std::mem::replace(&mut self.meta.phase, Phase::Destroying);
        let (meta, row) = tokio::join!(
            async {
                let written = self.mark_destroying().await;
                failpoint!("destroy.after_meta");
                written
            },
            self.shared.registry.put(&self.meta, &status, self.revision),
        );
        match row {
            Ok(revision) => self.revision = Some(revision),
            Err(error) => {
                self.meta.phase = before;
                return Err(error.into());
            }
        }
        if let Err(error) = meta {
            // The row is the record; the mark only serves those who have lost it.
            warn!(id = %self.id(), %error, "cannot mark a home as destroying");
        }
        self.publish(status);
        failpoint!("destroy.after_intent");
        self.finish_destroy().await
    }

    /// Everything after the intent: also what reconcile does for one that was cut short.
    pub(in crate::broker) async fn finish_destroy(&mut self) -> Result<(), Error> {
        self.expect_death();
        let result = self.tear_down().await;
        if let Err(cause) = &result {
            let status = self.after(Event::Failed(Operation::Destroy, with_causes(cause)));
            self.settle(status).await;
        }
        result
    }

    /// Removes everything that goes by this sandbox's id, its row last. Each step may be repeated.
    pub(in crate::broker) async fn tear_down(&mut self) -> Result<(), Error> {
        self.runtime.destroy(self.id()).await?;
        failpoint!("destroy.after_runtime");
        self.shared.storage.destroy(self.id()).await?;
        failpoint!("destroy.after_volume");
        let home = self.home.clone();
        self.shared.blocking(move |_| home.remove()).await?;
        failpoint!("destroy.after_home");
        self.shared.registry.delete(self.id(), self.revision).await?;
        failpoint!("destroy.after_row");
        Ok(())
    }

    /// A home that is gone needs no mark, and none is made anew for it.
    async fn mark_destroying(&self) -> Result<(), Error> {
        let (home, meta) = (self.home.clone(), self.meta.clone());
        self.shared
            .blocking(move |_| match home.write(&meta) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                written => written,
            })
            .await
    }
}
