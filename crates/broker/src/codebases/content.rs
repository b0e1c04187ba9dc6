//! What is in a codebase at first. It is brought as a workspace is, into a directory that nobody else has yet.

use std::sync::Arc;

use super::TREE;
use crate::error::Error;
use crate::images::workspace::{self, Filling};
use crate::shared::Shared;
use sandkeep_core::network::Network;
use sandkeep_core::{Origin, Principal, Source, SourceDraft};
use sandkeep_storage::StorageError;
use sandkeep_sys::namespace::USER_ID;
use sandkeep_tree::Root;

/// The source of a new codebase; `None` if it is to be empty.
pub type Opened = Option<workspace::Opened>;

/// Opens the source, so that its errors come before anything is made.
pub async fn open(
    shared: &Shared,
    who: &Principal,
    draft: Option<&SourceDraft>,
) -> Result<Opened, Error> {
    let Some(draft) = draft else { return Ok(None) };
    if draft.path.is_some() {
        let problem = "a codebase is its source; leave it out".to_owned();
        return Err(Error::InvalidField { field: "source.path", problem });
    }
    let origin = draft.origin()?;
    if let Origin::Git(_) = origin {
        let problem = "a repository is cloned inside a sandbox: create an empty codebase, mount it in a sandbox \
                       and clone there; or give dir or upload";
        return Err(Error::InvalidField { field: "source.git", problem: problem.to_owned() });
    }
    let source = Source { origin, path: format!("/{TREE}") };
    workspace::open(shared, who, &source, draft.reach, &Network::None).await.map(Some)
}

/// Makes the tree of a new volume, which belongs to `user`, and brings the source into it.
pub async fn fill(shared: &Arc<Shared>, root: Root, opened: Opened) -> Result<(), Error> {
    let made = root.clone();
    let make = move || made.make_top_dir(TREE, USER_ID, USER_ID, 0o755);
    let made = shared.tasks.spawn_blocking(make).await;
    let made = made.map_err(|_| Error::ShuttingDown)?;
    made.map_err(|source| {
        let what = "make the directory of a codebase".to_owned();
        Error::Storage(StorageError::Io { storage: "codebase", what, source })
    })?;
    let Some(opened) = opened else { return Ok(()) };
    Filling { shared, root, path: format!("/{TREE}") }.fill(opened).await
}
