//! fork: a new sandbox that begins with the files of a snapshot. It is a create whose volume is not made from a
//! template, and whose identity is its own.

use std::io;

use crate::error::Error;
use crate::lifecycle::supervisor::Supervisor;
use crate::policy::admission::volume_quota;
use sandkeep_core::{SandboxId, SnapshotId, failpoint};
use sandkeep_home::DataDir;
use sandkeep_image::identity;
use sandkeep_tree::Root;

/// What the volume of a new sandbox begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Template,
    Snapshot { sandbox: SandboxId, snapshot: SnapshotId },
}

impl Supervisor {
    pub(super) async fn fork_volume(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<Root, Error> {
        let storage = &self.shared.storage;
        let quota = volume_quota(self.meta.spec.resources());
        let root = storage.fork(sandbox, snapshot, self.id(), &quota).await?;
        failpoint!("fork.after_volume");
        // One that is nearly full could not write anew what it begins with.
        self.tend_limit().await;
        let (own, id) = (root.own_dir().to_owned(), self.id().clone());
        let renewed = self.shared.blocking(move |_: &DataDir| identity::renew(&own, &id)).await;
        renewed.map_err(|error| match error {
            Error::DataDir { source, .. } => self.not_renewed(source),
            other => other,
        })?;
        failpoint!("fork.after_identity");
        Ok(root)
    }

    fn not_renewed(&self, source: io::Error) -> Error {
        let reason = format!("cannot give it an identity of its own: {source}");
        Error::SandboxFailed { id: self.id().clone(), reason }
    }
}
