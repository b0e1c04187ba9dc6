//! Snapshots of datasets that are not ours: read through a clone among the drafts of layers, where a crash leaves nothing
//! that the next start does not remove.

use std::io;
use std::sync::Arc;

use super::command::{Reach, Row};
use super::names::DatasetSnapshot;
use super::{DatasetOrigin, NAME, Zfs, io_error, place, random};
use crate::{ForeignTree, StorageError};

impl Zfs {
    /// The snapshots of sandboxes are nobody's base, whichever data directory they are of.
    pub(super) fn open_foreign(
        self: &Arc<Self>,
        snapshot: &DatasetSnapshot,
    ) -> Result<ForeignTree, StorageError> {
        if snapshot.dataset.is_of_a_data_directory() {
            let what = "open the snapshots of a data directory";
            return Err(StorageError::Unsupported { storage: NAME, what });
        }
        let missing = || StorageError::NoDatasetSnapshot { snapshot: snapshot.to_string() };
        let failed = |source| io_error(format!("open {snapshot}"), source);
        let _changing = self.changing();
        let name = self.names.new_trial(&random());
        let from = snapshot.to_string();
        match self.tool.get(&from, "type", Reach::Itself) {
            Ok(rows) if rows.first().is_some_and(is_snapshot) => {}
            Ok(_) => return Err(missing()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => return Err(failed(error)),
        }
        let root = self.make(&name, place::DRAFT, DatasetOrigin::CopyOf(&from), &[]);
        let root = root.inspect_err(|_| drop(self.remove_dataset(&name))).map_err(failed)?;
        let storage = Arc::clone(self);
        Ok(ForeignTree::new(root, move || {
            let _changing = storage.changing();
            if let Err(error) = storage.remove_dataset(&name) {
                tracing::warn!(%error, "a clone of a dataset stays until the next start");
            }
        }))
    }
}

/// The name of a snapshot could be that of nothing else, but it comes from a client.
fn is_snapshot(row: &Row) -> bool {
    row.value == "snapshot"
}
