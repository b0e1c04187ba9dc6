//! Garbage collection of layers. Layers of records, sandboxes, cached build steps and imports in progress are kept; all
//! others are removed.
//!
//! A layer is removed only while no task can start to use one (the gate is held), and only if the base of every volume
//! is known: a sandbox that cannot be read now may be readable later.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::{debug, info, warn};

use super::builds;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, failpoint};
use sandkeep_storage::{LayerId, LayerKey};

/// Collects in the background, because nobody waits for the freed space.
pub fn soon(shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    shared.tasks.clone().spawn(async move {
        if let Err(error) = collect(&shared).await {
            warn!(%error, "cannot remove layers that nobody needs; it will be tried again");
        }
    });
}

/// Removes all unused layers, one at a time, so that the gate is never held for long.
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

/// One unused layer, if this can be determined.
async fn unneeded(shared: &Shared) -> Result<Option<LayerKey>, Error> {
    let kept = shared.storage.layers().await?;
    if kept.is_empty() {
        return Ok(None);
    }
    let Some(needed) = needed(shared).await? else { return Ok(None) };
    Ok(kept.into_iter().find(|layer| !needed.contains(layer)))
}

/// `None` if the needs of some record or volume cannot be determined.
async fn needed(shared: &Shared) -> Result<Option<BTreeSet<LayerKey>>, Error> {
    let Some(records) = shared.images.records.all_or_none().await? else {
        debug!("a template's record cannot be read; no layer is removed");
        return Ok(None);
    };
    let handles = shared.handles();
    let known: BTreeSet<&SandboxId> = handles.iter().map(|handle| &handle.id).collect();
    let volumes = shared.storage.list().await?;
    // These stand on nothing.
    let mut alone = shared.codebases.volumes();
    alone.extend(builds::cache_volumes(shared).await?);
    if let Some(id) = volumes.iter().find(|id| !known.contains(id) && !alone.contains(id)) {
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
