//! Snapshots of volumes.
//!
//! A rollback never uses `zfs rollback`, which would destroy all later snapshots. Instead a clone of the snapshot
//! becomes the tree, by a property of the volume, and the former tree stays beside it as long as it has snapshots.
//!
//! ```text
//! clone → tree.<new>      set sandkeep:tree=tree.<new>      the former tree: emptied, or dead
//!        old volume                                new volume
//! ```

use std::io;
use std::path::PathBuf;

use rustix::fs::syncfs;

use super::command::Reach;
use super::look::{Kind, Volume};
use super::{BASE, DatasetOrigin, TREE, Zfs, io_error, limit, names, number, random};
use crate::offload::{Blocking as _, BlockingSnapshots};
use crate::{Quota, StorageError};
use sandkeep_core::{SandboxId, SnapshotId, failpoint};
use sandkeep_tree::{Root, View};

/// One snapshot of a volume.
pub(super) struct ListedSnapshot {
    /// Including that of its dataset.
    pub name: String,
    /// Its size, and how much of that was in layers.
    referenced: u64,
    base: u64,
}

impl ListedSnapshot {
    fn own_bytes(&self) -> u64 {
        self.referenced.saturating_sub(self.base)
    }
}

impl Zfs {
    pub(super) fn find(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<ListedSnapshot, StorageError> {
        let missing = || {
            let (id, snapshot) = (id.clone(), snapshot.clone());
            StorageError::SnapshotNotFound { id, snapshot }
        };
        let failed = |source| io_error(format!("open {snapshot} of {id}"), source);
        let name = match self.volume(id) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            volume => volume.map_err(failed)?.snapshot(snapshot).map(|it| it.name.clone()),
        };
        let name = name.ok_or_else(missing)?;
        let [referenced, base] = self.numbers(&name, ["referenced", BASE]).map_err(failed)?;
        Ok(ListedSnapshot { name, referenced, base })
    }

    /// Dirty pages of memory mappings are unknown to the pool until they are written back.
    pub(super) fn write_back(&self, volume: &Volume) -> io::Result<()> {
        Ok(syncfs(std::fs::File::open(self.open_tree(volume)?)?)?)
    }

    /// The path of a read-only clone of a snapshot, which stays until the snapshot or the daemon is gone.
    fn look_at(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<PathBuf, StorageError> {
        let _changing = self.changing();
        let found = self.find(id, snapshot)?;
        let open = || {
            let volume = self.volume(id)?;
            if let Some(view) = volume.view(snapshot) {
                let path = self.place_of(view)?;
                self.mount(&view.name, path)?;
                return Ok(path.to_owned());
            }
            let name = format!("{}/{}", volume.name, names::new_view(snapshot, &random()));
            self.make(&name, id.as_str(), DatasetOrigin::CopyOf(&found.name), &[(BASE, found.base)])
        };
        open().map_err(|source| io_error(format!("open {snapshot} of {id}"), source))
    }

    /// Makes a clone of a snapshot the tree, with the same limits.
    fn exchange(&self, id: &SandboxId, snapshot: &ListedSnapshot) -> io::Result<()> {
        let volume = self.volume(id)?;
        let tree = volume.tree()?;
        let wanted = format!("{},{BASE}", limit::PROPERTIES);
        let rows = self.tool.get(&tree.name, &wanted, Reach::Itself)?;
        let (base, asked) = (number(&rows, &tree.name, BASE)?, limit::asked(&rows, &tree.name)?);
        let limits = self.limits(id, base, asked, snapshot.referenced);
        let next = names::new_tree(&random());
        let name = format!("{}/{next}", volume.name);
        let made = self.make(&name, id.as_str(), DatasetOrigin::CopyOf(&snapshot.name), &limits);
        let switched = made.and_then(|_| {
            failpoint!("zfs.rollback_after_clone");
            self.tool.run(&["set", &format!("{TREE}={next}"), &volume.name])
        });
        failpoint!("zfs.rollback_after_switch");
        // In any case one of the two is the tree.
        let cleared = self.clear_trees(id);
        switched?;
        cleared
    }

    /// A former or intended tree keeps its snapshots' data, and is removed if it has none.
    fn clear_trees(&self, id: &SandboxId) -> io::Result<()> {
        let volume = self.volume(id)?;
        for former in volume.former_trees().filter(|it| self.is_mounted(it)) {
            self.unmount(former)?;
            if let Some(last) = volume.last_snapshot(&former.name) {
                self.forget_since(last);
            }
        }
        let idle: Vec<_> = volume.idle_trees().cloned().collect();
        self.remove(&idle)
    }
}

impl BlockingSnapshots for Zfs {
    fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let failed = |source| io_error(format!("make snapshot {snapshot} of {id}"), source);
        let exists = || StorageError::SnapshotExists { id: id.clone(), snapshot: snapshot.clone() };
        let _changing = self.changing();
        let volume = self.volume(id).map_err(self.absent(id, "open"))?;
        self.write_back(&volume).map_err(self.absent(id, "open"))?;
        if volume.snapshot(snapshot).is_some() {
            return Err(exists());
        }
        let name = format!("{}@{snapshot}", volume.tree().map_err(failed)?.name);
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
        let seen = self.look(&self.names.volumes())?;
        let taken = seen.iter().filter(|it| it.kind == Kind::Snapshot && !it.dead);
        Ok(taken.filter_map(|it| self.names.snapshot(&it.name)).collect())
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

    /// If a clone of it exists, it disappears by name, and is destroyed with the last clone.
    fn delete_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let _changing = self.changing();
        let delete = || {
            let volume = self.volume(id)?;
            let view: Vec<_> = volume.view(snapshot).cloned().into_iter().collect();
            self.remove(&view)?;
            let Some(found) = volume.snapshot(snapshot) else { return Ok(()) };
            self.tool.run(&["destroy", "-d", &found.name])?;
            failpoint!("zfs.delete_after_snapshot");
            let idle: Vec<_> = self.volume(id)?.idle_trees().cloned().collect();
            self.remove(&idle)
        };
        match delete() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            deleted => {
                deleted.map_err(|source| io_error(format!("remove {snapshot} of {id}"), source))
            }
        }
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
        let start = DatasetOrigin::CopyOf(&found.name);
        let root = self.make_volume(new, start, quota, (found.base, found.own_bytes()))?;
        failpoint!("zfs.fork_after_made");
        Ok(root)
    }
}
