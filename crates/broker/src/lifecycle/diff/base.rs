//! What a sandbox was made from, as it was before anything was done in it: the layers of its template, and what the
//! template puts above them. It is laid out once more in a draft that nobody keeps, which costs as little as
//! making a sandbox does; so a crash leaves nothing that opening the storage does not remove.

use std::sync::Arc;

use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId, Spec};
use sandkeep_storage::{LayerDraft, StorageError};
use sandkeep_tree::{Root, View, digest::Digest};

pub(super) async fn view(shared: &Arc<Shared>, id: &SandboxId, spec: &Spec) -> Result<View, Error> {
    let base = crate::images::base(spec)?;
    let template = shared.template_of(spec)?;
    // Named after nothing, so that it is nobody else's.
    let name = Digest::of(SnapshotId::random().as_str().as_bytes());
    let layer = crate::images::layer_id(&name);
    let draft = shared.storage.draft_layer(base.layers(), &layer).await?;
    let storage = shared.storage.name();
    let taken = || StorageError::Unsupported { storage, what: "lay out a template twice" };
    let draft = draft.ok_or_else(taken)?;
    let root = root_of(&draft);
    template.lay_out(&root, id).await?;
    let opened = tokio::task::spawn_blocking(move || View::of_root(&root)).await;
    let opened = opened.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    let what = "look at a template".to_owned();
    let view = opened.map_err(|source| StorageError::Io { storage, what, source })?;
    Ok(view.keeping(draft))
}

/// A draft as the volume that it will never be.
fn root_of(draft: &LayerDraft) -> Root {
    match draft.lowers.is_empty() {
        true => Root::dir(draft.root.clone(), draft.ids),
        false => Root::Overlay {
            lowers: draft.lowers.clone(),
            upper: draft.root.clone(),
            work: draft.root.clone(),
        },
    }
}
