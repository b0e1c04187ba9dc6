//! Slots: names that at most one sandbox of an owner has at a time. The store decides who has one, by
//! `create`: a slot is claimed before the row of its sandbox is written, and given back before that
//! row goes. So a slot whose sandbox has neither a row nor anybody who deals with it is what a crash
//! left, and is free.

use std::sync::Arc;

use tracing::{info, warn};

use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{Owner, SandboxId, SlotName};
use sandkeep_store::{Key, Prefix, Revision, StateStore, StoreError};

/// The first segment of every slot's key.
const SLOTS: &str = "slots";

#[derive(Clone)]
pub(crate) struct Slots {
    store: Arc<dyn StateStore>,
}

/// Who has a slot.
struct Held {
    /// `None`: the entry names no sandbox.
    by: Option<SandboxId>,
    revision: Revision,
}

/// The name of a slot in the store: whatever the strings hold, no two owners' can be the same.
pub(crate) fn key(owner: &Owner, slot: &SlotName) -> Key {
    let Owner { organization, user, project } = owner;
    Key::new([SLOTS, organization, user, project, slot.as_str()])
}

impl Slots {
    pub fn new(store: Arc<dyn StateStore>) -> Self {
        Self { store }
    }

    /// The sandbox that the slot was last claimed for.
    pub async fn holder(
        &self,
        owner: &Owner,
        slot: &SlotName,
    ) -> Result<Option<SandboxId>, StoreError> {
        Ok(self.held(&key(owner, slot)).await?.and_then(|held| held.by))
    }

    /// Gives a slot back, if it is this sandbox's.
    pub async fn free(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<(), StoreError> {
        let key = key(owner, slot);
        match self.held(&key).await? {
            Some(Held { by, revision }) if by.as_ref() == Some(id) => {
                self.remove(&key, revision).await
            }
            Some(_) | None => Ok(()),
        }
    }

    async fn held(&self, key: &Key) -> Result<Option<Held>, StoreError> {
        let entry = self.store.get(key).await?;
        Ok(entry.map(|entry| Held { by: sandbox(&entry.value), revision: entry.revision }))
    }

    /// Whoever was faster has decided.
    async fn remove(&self, key: &Key, revision: Revision) -> Result<(), StoreError> {
        match self.store.delete(key, revision).await {
            Ok(_) | Err(StoreError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The value of a slot is the id of its sandbox.
fn sandbox(value: &[u8]) -> Option<SandboxId> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl Shared {
    /// Claims a slot for a sandbox that has its place already.
    pub(crate) async fn claim_slot(
        &self,
        owner: &Owner,
        slot: &SlotName,
        id: &SandboxId,
    ) -> Result<(), Error> {
        let key = key(owner, slot);
        loop {
            match self.slots.store.create(&key, id.as_str().as_bytes().to_vec()).await {
                Ok(_) => return Ok(()),
                Err(StoreError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let Some(Held { by, revision }) = self.slots.held(&key).await? else { continue };
            match by {
                // An earlier write of this very claim, whose answer was lost.
                Some(holder) if holder == *id => return Ok(()),
                Some(holder) if self.exists(&holder).await? => {
                    return Err(Error::SlotTaken { slot: slot.clone(), holder });
                }
                Some(_) | None => self.slots.remove(&key, revision).await?,
            }
        }
    }

    /// Whether there is such a sandbox, as far as anybody knows.
    async fn exists(&self, id: &SandboxId) -> Result<bool, Error> {
        Ok(self.knows(id) || self.registry.has(id).await?)
    }

    /// Frees the slots that crashes left.
    pub(crate) async fn sweep_slots(&self) -> Result<(), Error> {
        let listing = self.slots.store.list(&Prefix::new([SLOTS])).await?;
        for entry in listing.entries {
            let holder = sandbox(&entry.value);
            let exists = match &holder {
                Some(holder) => self.exists(holder).await?,
                None => false,
            };
            if !exists {
                self.slots.remove(&entry.key, entry.revision).await?;
                info!(slot = ?entry.key, ?holder, "freed a slot whose sandbox is gone");
            }
        }
        Ok(())
    }

    /// Claims the slot of an adopted sandbox anew: the registry that knew of it is lost.
    pub(crate) async fn reclaim_slot(&self, owner: &Owner, slot: &SlotName, id: &SandboxId) {
        if let Err(error) = self.claim_slot(owner, slot, id).await {
            warn!(%id, %slot, %error, "an adopted sandbox cannot have its slot back");
        }
    }
}
