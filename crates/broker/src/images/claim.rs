//! What an import may take over without bringing it.
//!
//! Layers are kept once for everybody, and are known by names that anybody can write into an image. That one is there
//! is no proof that whoever names it ever had it. So a layer is had in one of two ways: a template that its owner can
//! use already has it, or an outcome of a step of the owner's builds; else its bytes have to be brought, and
//! [`layer::prove`](sandkeep_image::layer::prove) says whether they are those.

use std::collections::BTreeSet;

use super::builds;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::Owner;
use sandkeep_storage::{LayerId, LayerKey};

/// On whose behalf layers are taken over.
#[derive(Clone, Debug)]
pub struct Claim {
    owner: Owner,
}

/// The layers that an owner has, as far as they are kept.
pub struct Held(BTreeSet<LayerKey>);

impl Claim {
    pub fn of(owner: Owner) -> Self {
        Self { owner }
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What need not be brought.
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
