//! The sandbox's base: its files before anything was done in it, that is, the layers of its template and what the
//! template adds on top. It is laid out again in a draft that is never kept, which costs as little as creating a
//! sandbox; after a crash, opening the storage removes the draft.

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
    // A random name, so that it conflicts with no other draft.
    let name = Digest::of(SnapshotId::random().as_str().as_bytes());
    let layer = crate::images::layer_id(&name);
    let draft = volume.draft(base.layers(), &layer).await?;
    let root = root_of(&draft);
    template.lay_out(&root, id).await?;
    let view = work.run("look at a template", move || View::of_root(&root)).await?;
    Ok(view.keeping(draft))
}

/// A draft as a volume root.
fn root_of(draft: &LayerDraft) -> Root {
    if draft.lowers.is_empty() {
        Root::dir(draft.root.clone(), draft.ids)
    } else {
        Root::Overlay {
            lowers: draft.lowers.clone(),
            upper: draft.root.clone(),
            work: draft.root.clone(),
        }
    }
}
