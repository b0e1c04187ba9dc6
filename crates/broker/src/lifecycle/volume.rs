//! The files of one sandbox: a volume of the storage, or files that its runtime keeps and that are not here. Verbs ask
//! the sandbox for its volume and never the storage, so a verb that needs a volume fails with a clear error without
//! one.

use std::sync::Arc;

use tracing::warn;

use crate::error::Error;
use crate::images;
use crate::shared::Shared;
use sandkeep_core::{FileLocation, SandboxId, SnapshotId, Spec};
use sandkeep_home::Meta;
use sandkeep_storage::{
    LayerDraft, LayerId, Quota, Storage, StorageCapabilities, StorageError, Usage,
};
use sandkeep_traces::{step, within};
use sandkeep_tree::{Root, View};

#[derive(Clone)]
pub(crate) enum Volume {
    Stored(Stored),
    Remote { runtime: String },
}

/// A volume of the storage, and its snapshots.
#[derive(Clone)]
pub(crate) struct Stored {
    storage: Arc<dyn Storage>,
    id: SandboxId,
}

impl Volume {
    pub fn of(shared: &Shared, meta: &Meta) -> Self {
        match meta.spec.keeper() {
            FileLocation::Storage => {
                Self::Stored(Stored { storage: Arc::clone(&shared.storage), id: meta.id.clone() })
            }
            FileLocation::Runtime => Self::Remote { runtime: meta.spec.runtime().to_owned() },
        }
    }

    /// The volume, for an operation that cannot be done without one.
    pub fn stored(&self, what: &'static str) -> Result<&Stored, Error> {
        match self {
            Self::Stored(stored) => Ok(stored),
            Self::Remote { runtime } => Err(Error::NoVolume { what, runtime: runtime.clone() }),
        }
    }

    /// The same, if it supports snapshots.
    pub fn with_snapshots(&self) -> Result<&Stored, Error> {
        let what = "a snapshot";
        let stored = self.stored(what)?;
        require_snapshots(&*stored.storage, what)?;
        Ok(stored)
    }

    /// Whether its size is available at no cost.
    pub fn counts(&self) -> bool {
        matches!(self, Self::Stored(stored) if stored.capabilities().disk_quota)
    }

    /// The root, if it is here.
    pub async fn root(&self) -> Result<Option<Root>, Error> {
        match self {
            Self::Stored(stored) => Ok(Some(stored.root().await?)),
            Self::Remote { .. } => Ok(None),
        }
    }

    pub async fn usage(&self) -> Result<Option<Usage>, Error> {
        match self {
            Self::Stored(Stored { storage, id }) => Ok(Some(storage.usage(id).await?)),
            Self::Remote { .. } => Ok(None),
        }
    }

    pub async fn destroy(&self) -> Result<(), Error> {
        match self {
            Self::Stored(Stored { storage, id }) => {
                Ok(within(step!("storage.destroy"), storage.destroy(id)).await?)
            }
            Self::Remote { .. } => Ok(()),
        }
    }

    /// Copies for it that are under way fail soon.
    pub fn break_off(&self) {
        if let Self::Stored(Stored { storage, id }) = self {
            storage.break_off(id);
        }
    }

    /// Has the storage update the tree's limit now, instead of at the next interval.
    pub async fn tend(&self) {
        if let Self::Stored(Stored { storage, id }) = self
            && let Err(error) = storage.tend(Some(id)).await
        {
            warn!(%id, %error, "cannot look after the limit of a volume");
        }
    }
}

/// Refuses an operation that needs snapshots if the storage has none.
pub(crate) fn require_snapshots(storage: &dyn Storage, what: &'static str) -> Result<(), Error> {
    if storage.capabilities().snapshots {
        Ok(())
    } else {
        Err(Error::StorageLacks { what, needs: "snapshots", storage: storage.name() })
    }
}

impl Stored {
    pub fn name(&self) -> &'static str {
        self.storage.name()
    }

    pub fn capabilities(&self) -> StorageCapabilities {
        self.storage.capabilities()
    }

    /// Creates the volume of a new sandbox.
    pub async fn create(&self, spec: &Spec, quota: &Quota) -> Result<Root, Error> {
        Ok(within(
            step!("storage.create"),
            self.storage.create(&self.id, &images::base(spec)?, quota),
        )
        .await?)
    }

    /// The same from a snapshot of another sandbox.
    pub async fn fork_from(
        &self,
        sandbox: &SandboxId,
        snapshot: &SnapshotId,
        quota: &Quota,
    ) -> Result<Root, Error> {
        Ok(within(step!("storage.fork"), self.storage.fork(sandbox, snapshot, &self.id, quota))
            .await?)
    }

    pub async fn root(&self) -> Result<Root, Error> {
        Ok(self.storage.root(&self.id).await?)
    }

    pub async fn snapshot(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        Ok(within(step!("storage.snapshot"), self.storage.snapshot(&self.id, snapshot)).await?)
    }

    pub async fn snapshot_bytes(&self, snapshot: &SnapshotId) -> Result<u64, Error> {
        Ok(self.storage.snapshot_bytes(&self.id, snapshot).await?)
    }

    pub async fn delete_snapshot(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        Ok(within(
            step!("storage.delete_snapshot"),
            self.storage.delete_snapshot(&self.id, snapshot),
        )
        .await?)
    }

    pub async fn rollback(&self, snapshot: &SnapshotId) -> Result<Root, Error> {
        Ok(within(step!("storage.rollback"), self.storage.rollback(&self.id, snapshot)).await?)
    }

    /// Its files at present, or at a snapshot.
    pub async fn view(&self, snapshot: Option<&SnapshotId>) -> Result<View, Error> {
        Ok(within(step!("storage.view"), self.storage.view(&self.id, snapshot)).await?)
    }

    /// Makes a layer of its content, at present or at a snapshot.
    pub async fn layer(
        &self,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), Error> {
        Ok(within(
            step!("storage.layer_from"),
            self.storage.layer_from(&self.id, snapshot, below, layer),
        )
        .await?)
    }

    /// A draft in the volume's storage, to be read and dropped.
    pub async fn draft(&self, below: &[LayerId], layer: &LayerId) -> Result<LayerDraft, Error> {
        let what = "lay out a template twice";
        let taken = StorageError::Unsupported { storage: self.name(), what };
        Ok(within(step!("storage.draft_layer"), self.storage.draft_layer(below, layer))
            .await?
            .ok_or(taken)?)
    }
}
