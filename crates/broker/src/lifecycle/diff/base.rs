//! What a sandbox was made from, as it was before anything was done in it: the layers of its template, and what the
//! template puts above them. It is laid out once more in a draft that nobody keeps, which costs as little as
//! making a sandbox does; so a crash leaves nothing that opening the storage does not remove.

use crate::error::Error;
use crate::lifecycle::volume::Stored;
use crate::lifecycle::work::FileWork;
use crate::shared::Shared;
use sandkeep_core::{SandboxId, SnapshotId, Spec};
use sandkeep_storage::LayerDraft;
use sandkeep_tree::{Root, View, digest::Digest};

pub(super) async fn view(
    shared: &Shared,
    (volume, work): (&Stored, &FileWork),
    id: &SandboxId,
    spec: &Spec,
) -> Result<View, Error> {
    let base = crate::images::base(spec)?;
    let template = shared.template_of(spec)?;
    // Named after nothing, so that it is nobody else's.
    let name = Digest::of(SnapshotId::random().as_str().as_bytes());
    let layer = crate::images::layer_id(&name);
    let draft = volume.draft(base.layers(), &layer).await?;
    let root = root_of(&draft);
    template.lay_out(&root, id).await?;
    let view = work.run("look at a template", move || View::of_root(&root)).await?;
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
