//! Which layers are needed: those of records, of sandboxes, of steps that builds need not repeat, and of imports under
//! way. The others go.
//!
//! A layer is removed while nobody can begin to need one (the gate is held), and only if it is known of
//! every volume what it stands on: a sandbox that cannot be read now may be readable later.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{debug, info, warn};

use super::builds;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, failpoint};
use sandkeep_storage::{LayerId, LayerKey};

/// Collects in the background: nobody waits for disk space that is given back.
pub fn soon(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    shared.tasks.clone().spawn(async move {
        if let Err(error) = collect(&shared).await {
            warn!(%error, "cannot remove layers that nobody needs; it will be tried again");
        }
    });
}

/// Removes all layers that nobody needs, one at a time, so that nobody waits long for the gate.
pub async fn collect(shared: &Shared) -> Result<(), Error> {
    while !shared.closing.is_cancelled() {
        let _alone = shared.images.gate.write().await;
        let Some(unneeded) = unneeded(shared).await? else { return Ok(()) };
        shared.storage.remove_layer(&unneeded).await?;
        failpoint!("template.after_layer_removed");
        info!(layer = %unneeded, "removed a layer that nobody needs");
    }
    Ok(())
}

/// One layer that nobody needs, if that can be known.
async fn unneeded(shared: &Shared) -> Result<Option<LayerKey>, Error> {
    let kept = shared.storage.layers().await?;
    if kept.is_empty() {
        return Ok(None);
    }
    let Some(needed) = needed(shared).await? else { return Ok(None) };
    Ok(kept.into_iter().find(|layer| !needed.contains(layer)))
}

/// `None` if something is there of which it cannot be said what it needs.
async fn needed(shared: &Shared) -> Result<Option<BTreeSet<LayerKey>>, Error> {
    let Some(records) = shared.images.records.all_or_none().await? else {
        debug!("a template's record cannot be read; no layer is removed");
        return Ok(None);
    };
    let handles = shared.handles();
    let known: BTreeSet<&SandboxId> = handles.iter().map(|handle| &handle.id).collect();
    let volumes = shared.storage.list().await?;
    if let Some(id) = volumes.iter().find(|id| !known.contains(id)) {
        debug!(%id, "nobody knows what a volume stands on; no layer is removed");
        return Ok(None);
    }
    let mut needed = BTreeSet::new();
    let mut need = |layers: &[LayerId]| {
        let beginnings = (1..=layers.len()).map(|end| &layers[..end]);
        needed.extend(beginnings.filter_map(|layers| shared.storage.layer_key(layers)));
    };
    for (_, record) in &records {
        need(&record.layer_ids());
    }
    for handle in &handles {
        let meta = handle.meta();
        let Some(image) = meta.spec.image() else { continue };
        need(&image.layers.iter().filter_map(|layer| layer.parse().ok()).collect::<Vec<_>>());
    }
    for layers in builds::cached_layers(shared).await? {
        need(&layers);
    }
    for layers in shared.images.pins.pinned() {
        need(&layers);
    }
    Ok(Some(needed))
}
