//! Which layers an import may reuse without transferring them.
//!
//! Layers are stored once for all owners, under names that anybody can write into an image. So naming an existing layer
//! does not prove access to it. An owner has a layer if a template that the owner can use contains it, or if it is the
//! outcome of a step of the owner's builds. In all other cases its bytes have to be transferred, and
//! [`layer::prove`](sandkeep_image::layer::prove) verifies them.

use std::collections::BTreeSet;

use super::builds;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::Owner;
use sandkeep_storage::{LayerId, LayerKey};

/// The owner on whose behalf layers are reused.
#[derive(Clone, Debug)]
pub struct Claim {
    owner: Owner,
}

/// The stored layers that an owner has.
pub struct Held(BTreeSet<LayerKey>);

impl Claim {
    pub fn of(owner: Owner) -> Self {
        Self { owner }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The layers that need not be transferred.
    pub async fn held(&self, shared: &Shared) -> Result<Held, Error> {
        let records = shared.images.records.all().await?.into_iter();
        let usable = records.filter(|(whose, _)| whose.includes(&self.owner));
        let mut lists: Vec<Vec<LayerId>> = usable.map(|(_, record)| record.layer_ids()).collect();
        lists.extend(builds::cached_layers_of(shared, &self.owner).await?);
        let keys = |layers: &Vec<LayerId>| {
            let beginnings = (1..=layers.len()).map(|end| &layers[..end]);
            beginnings.filter_map(|layers| shared.storage.layer_key(layers)).collect::<Vec<_>>()
        };
        let named: BTreeSet<LayerKey> = lists.iter().flat_map(keys).collect();
        let kept = shared.storage.layers().await?;
        Ok(Held(kept.into_iter().filter(|key| named.contains(key)).collect()))
    }
}

impl Held {
    pub fn has(&self, shared: &Shared, below: &[LayerId], id: &LayerId) -> bool {
        let key = shared.storage.layer_key(&[below, std::slice::from_ref(id)].concat());
        key.is_some_and(|key| self.0.contains(&key))
    }
}
