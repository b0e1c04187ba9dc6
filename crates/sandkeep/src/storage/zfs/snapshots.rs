//! Snapshots of volumes.
//!
//! A rollback never uses `zfs rollback`, which would destroy all later snapshots: a clone of the snapshot takes the place of
//! the tree, which stays beside it for as long as it has snapshots.
//!
//! ```text
//! clone → next      rename tree → past      rename next → tree
//!        old volume                 settled on open       new volume
//! ```

use std::io;
use std::path::PathBuf;

use rustix::fs::syncfs;

use super::burial::{Kind, has_snapshots};
use super::layers::dataset_of;
use super::{BASE, Start, Zfs, io_error, names, random};
use crate::failpoint;
use crate::sandbox::{SandboxId, SnapshotId};
use crate::storage::offload::{Blocking as _, BlockingSnapshots};
use crate::storage::{Quota, Root, StorageError, View};

/// One snapshot of a volume.
pub(super) struct Found {
    /// With that of its dataset.
    pub name: String,
    /// What it holds, and how much of that was in layers.
    referenced: u64,
    base: u64,
}

impl Found {
    fn own_bytes(&self) -> u64 {
        self.referenced.saturating_sub(self.base)
    }
}

impl Zfs {
    /// The name of a snapshot, in whichever dataset of its volume it is; `None` if it is gone.
    fn name_of(&self, id: &SandboxId, snapshot: &SnapshotId) -> io::Result<Option<String>> {
        let seen = self.look(&self.names.volume(id))?;
        let is_it = |name: &str| names::split(name).1 == Some(snapshot.as_str());
        let found = seen.into_iter().find(|it| it.kind == Kind::Snapshot && is_it(&it.name));
        Ok(found.map(|it| it.name))
    }

    pub(super) fn find(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<Found, StorageError> {
        let failed = |source| io_error(format!("open {snapshot} of {id}"), source);
        let Some(name) = self.name_of(id, snapshot).map_err(failed)? else {
            let (id, snapshot) = (id.clone(), snapshot.clone());
            return Err(StorageError::SnapshotNotFound { id, snapshot });
        };
        let [referenced, base] = self.numbers(&name, ["referenced", BASE]).map_err(failed)?;
        Ok(Found { name, referenced, base })
    }

    /// What was written through mappings is not the pool's before.
    pub(super) fn write_back(&self, id: &SandboxId) -> io::Result<()> {
        let path = self.mountpoint(&self.names.tree(id))?;
        Ok(syncfs(std::fs::File::open(path)?)?)
    }

    fn view_name(&self, id: &SandboxId, snapshot: &SnapshotId) -> String {
        format!("{}/{}", self.names.volume(id), names::view(snapshot))
    }

    /// Where a snapshot can be looked at: a clone of it that nobody writes to, and that stays until the snapshot or
    /// the daemon goes.
    fn look_at(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<PathBuf, StorageError> {
        let _changing = self.changing();
        let found = self.find(id, snapshot)?;
        let name = self.view_name(id, snapshot);
        let opened = match self.mountpoint(&name) {
            Ok(path) => self.mount(&name, &path).map(|()| path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.make(&name, id.as_str(), Start::CopyOf(&found.name), &[(BASE, found.base)])
            }
            Err(error) => Err(error),
        };
        opened.map_err(|source| io_error(format!("open {snapshot} of {id}"), source))
    }

    /// Puts a clone of a snapshot in the place of the tree, with the same limits.
    fn exchange(&self, id: &SandboxId, snapshot: &Found) -> io::Result<()> {
        let (volume, tree) = (self.names.volume(id), self.names.tree(id));
        let [refquota, base] = self.numbers(&tree, ["refquota", BASE])?;
        let next = format!("{volume}/{}", names::next(&random()));
        let past = format!("{volume}/{}", names::past(&random()));
        let mut limits = vec![(BASE, base)];
        // None is told as 0, which is no limit that could be set.
        limits.extend((refquota != 0).then_some(("refquota", refquota)));
        self.make(&next, id.as_str(), Start::CopyOf(&snapshot.name), &limits)?;
        failpoint!("zfs.rollback_after_clone");
        let renamed = self.unmount(&next).and_then(|()| {
            self.unmount(&tree)?;
            self.tool.run(&["rename", &tree, &past])?;
            failpoint!("zfs.rollback_after_aside");
            self.tool.run(&["rename", &next, &tree])
        });
        failpoint!("zfs.rollback_after_rename");
        // Whatever came of it: one of the two is the tree, and what has no snapshots goes.
        self.look(&volume).and_then(|seen| self.settle_volume(&volume, &seen))?;
        renamed.map(drop)
    }
}

impl BlockingSnapshots for Zfs {
    fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let failed = |source| io_error(format!("make snapshot {snapshot} of {id}"), source);
        let exists = || StorageError::SnapshotExists { id: id.clone(), snapshot: snapshot.clone() };
        let _changing = self.changing();
        self.write_back(id).map_err(self.absent(id, "open"))?;
        if self.name_of(id, snapshot).map_err(failed)?.is_some() {
            return Err(exists());
        }
        let name = format!("{}@{snapshot}", self.names.tree(id));
        match self.tool.run(&["snapshot", &name]) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            made => {
                made.map_err(failed)?;
                failpoint!("zfs.snapshot_after_made");
                Ok(())
            }
        }
    }

    fn snapshots(&self) -> io::Result<Vec<(SandboxId, SnapshotId)>> {
        let volumes = self.names.volumes();
        let beneath = format!("{volumes}/");
        let seen = self.look(&volumes)?;
        let taken = seen.iter().filter(|it| it.kind == Kind::Snapshot);
        Ok(taken.filter_map(|it| names::snapshot(it.name.strip_prefix(&beneath)?)).collect())
    }

    fn snapshot_bytes(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, StorageError> {
        self.find(id, snapshot).map(|found| found.own_bytes())
    }

    fn view(&self, id: &SandboxId, snapshot: Option<&SnapshotId>) -> Result<View, StorageError> {
        let path = match snapshot {
            None => self.root(id)?.own_dir().to_owned(),
            Some(snapshot) => self.look_at(id, snapshot)?,
        };
        View::of_dir(&path).map_err(|source| io_error(format!("open {id}"), source))
    }

    /// A clone of it goes on: then it is gone in name, and goes with the last of them.
    fn delete_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let _changing = self.changing();
        let delete = || {
            self.bury(&self.view_name(id, snapshot))?;
            let Some(name) = self.name_of(id, snapshot)? else { return Ok(()) };
            self.tool.run(&["destroy", "-d", &name])?;
            failpoint!("zfs.delete_after_snapshot");
            let volume = self.names.volume(id);
            let seen = self.look(&volume)?;
            match has_snapshots(&seen, dataset_of(&name)) {
                true => Ok(()),
                false => self.settle_volume(&volume, &seen),
            }
        };
        delete().map_err(|source| io_error(format!("remove {snapshot} of {id}"), source))
    }

    fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        {
            let _changing = self.changing();
            let found = self.find(id, snapshot)?;
            let failed = |source| io_error(format!("roll {id} back to {snapshot}"), source);
            self.exchange(id, &found).map_err(failed)?;
        }
        self.root(id)
    }

    fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        let _changing = self.changing();
        let found = self.find(id, snapshot)?;
        let start = Start::CopyOf(&found.name);
        let root = self.make_volume(new, start, quota, (found.base, found.own_bytes()))?;
        failpoint!("zfs.fork_after_made");
        Ok(root)
    }
}
