//! Snapshots as read-only subvolumes. Creating, cloning and removing one takes the same time regardless of its size.
//!
//! The kernel creates a snapshot during a commit, so it is complete and on disk, or does not exist. A rollback creates
//! the clone under a draft's name and exchanges the two names: the volume exists at every moment.
//!
//! A subvolume created inside a volume is not part of its snapshots: they have an empty directory in its place. The
//! runtime prevents its workload from creating any.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, RenameFlags, renameat_with, statat};
use rustix::io::Errno;

use super::limit::UNLIMITED;
use super::notes::{Note, file_name};
use super::{Btrfs, c_name, delete, exists_or, io_error, is_subvolume, unused_draft};
use crate::offload::{Blocking as _, BlockingSnapshots};
use crate::{Quota, StorageError};
use sandkeep_core::{SandboxId, SnapshotId, failpoint};
use sandkeep_sys::btrfs::{self, Access, quota::Charged};
use sandkeep_tree::{Root, View, untrusted};

impl Btrfs {
    /// The root directory of a volume, or of one of its snapshots.
    pub(super) fn open_tree(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
    ) -> Result<OwnedFd, StorageError> {
        let opened = match snapshot {
            Some(snapshot) => {
                let notes =
                    self.notes(id).map_err(|source| io_error(format!("open {id}"), source))?;
                notes.map_or(Err(Errno::NOENT), |notes| {
                    untrusted::open_dir(notes.0, &file_name(snapshot))
                })
            }
            None => {
                self.root(id)?;
                let volumes = self.pool.volumes();
                let volumes = volumes.map_err(|source| io_error(format!("open {id}"), source))?;
                untrusted::open_dir(volumes, &c_name(id))
            }
        };
        opened.map_err(|error| match (error, snapshot) {
            (Errno::NOENT, Some(snapshot)) => {
                StorageError::SnapshotNotFound { id: id.clone(), snapshot: snapshot.clone() }
            }
            (Errno::NOENT, None) => StorageError::NotFound { id: id.clone() },
            (error, _) => io_error(format!("open {id}"), error.into()),
        })
    }

    /// Removes all snapshots of a volume, and the notes about it.
    pub(super) fn delete_snapshots(&self, id: &SandboxId) -> io::Result<()> {
        let Some(notes) = self.notes(id)? else { return Ok(()) };
        for (name, _) in untrusted::entries(&notes.0)? {
            delete(&notes.0, &name)?;
            failpoint!("btrfs.destroy_after_snapshot");
        }
        drop(notes);
        self.forget_notes(id)
    }

    fn make_snapshot(
        &self,
        id: &SandboxId,
        volume: &OwnedFd,
        snapshot: &SnapshotId,
    ) -> io::Result<()> {
        let notes = self.note_snapshot(id, volume, snapshot)?;
        failpoint!("btrfs.snapshot_after_notes");
        let charged = Charged { limit_bytes: None, group: self.make_total_group(volume)? };
        failpoint!("btrfs.snapshot_after_group");
        let name = file_name(snapshot);
        self.creating(|| {
            btrfs::snapshot_subvolume(&notes.0, &name, volume, Access::ReadOnly, charged)
        })?;
        failpoint!("btrfs.snapshot_after_made");
        // The snapshot exists in any case; the limit is updated again before long.
        if let Err(error) = self.snapshot_made(volume, &notes, snapshot) {
            tracing::warn!(%error, %id, "cannot allow for what a snapshot holds");
        }
        Ok(())
    }

    /// The size of a snapshot, as precisely as these limits need it.
    fn held_for(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        tree: &OwnedFd,
        quota: &Quota,
    ) -> io::Result<u64> {
        let Some(notes) = self.notes(id)?.filter(|_| self.quotas.hold()) else { return Ok(0) };
        let limits = [quota.tree_bytes, quota.total_bytes].into_iter().flatten();
        self.held(&notes, tree, snapshot, limits.min().unwrap_or(UNLIMITED))
    }

    /// Replaces the volume with a clone of a snapshot.
    fn exchange(&self, id: &SandboxId, tree: &OwnedFd, charged: Charged) -> io::Result<()> {
        let (volumes, draft) = (self.pool.volumes()?, unused_draft());
        self.creating(|| {
            btrfs::snapshot_subvolume(&volumes, &draft, tree, Access::Write, charged)
        })?;
        failpoint!("btrfs.rollback_after_draft");
        let (name, exchange) = (c_name(id), RenameFlags::EXCHANGE);
        let exchanged = renameat_with(&volumes, &draft, &volumes, &name, exchange);
        failpoint!("btrfs.rollback_after_exchange");
        // Whichever of the two it is now; if it stays, the next start removes it. It is removed before everything is
        // synced, so that dirty data of the old volume is never written.
        if let Err(error) = delete(&volumes, &draft) {
            tracing::warn!(%error, %id, "what a rollback replaced stays until the next start");
        }
        failpoint!("btrfs.rollback_after_delete");
        self.quotas.volume_destroyed(&self.pool);
        exchanged?;
        btrfs::commit(&volumes)
    }
}

impl BlockingSnapshots for Btrfs {
    fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let volume = self.open_tree(id, None)?;
        self.make_snapshot(id, &volume, snapshot).map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                StorageError::SnapshotExists { id: id.clone(), snapshot: snapshot.clone() }
            }
            _ => io_error(format!("make snapshot {snapshot} of {id}"), source),
        })
    }

    fn snapshots(&self) -> io::Result<Vec<(SandboxId, SnapshotId)>> {
        let mut found = Vec::new();
        for (name, _) in untrusted::entries(self.pool.snapshots()?)? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            let Some(notes) = self.notes(&id)? else { continue };
            for (name, _) in untrusted::entries(&notes.0)? {
                let Some(snapshot) = name.to_str().ok().and_then(|name| name.parse().ok()) else {
                    continue;
                };
                match statat(&notes.0, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) if is_subvolume(&stat) => found.push((id.clone(), snapshot)),
                    Ok(_) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(found)
    }

    fn snapshot_bytes(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, StorageError> {
        let tree = self.open_tree(id, Some(snapshot))?;
        let measure =
            || match self.notes(id)?.map_or(Ok(None), |notes| notes.get(Note::Held(snapshot)))? {
                Some(held) => Ok(held),
                None => untrusted::disk_bytes(tree),
            };
        measure().map_err(|source| io_error(format!("measure {snapshot} of {id}"), source))
    }

    fn delete_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let remove = || {
            let Some(notes) = self.notes(id)? else { return Ok(()) };
            delete(&notes.0, &file_name(snapshot))?;
            failpoint!("btrfs.delete_after_snapshot");
            notes.forget(Note::Held(snapshot))?;
            match self.snapshot_gone(id, &notes, snapshot) {
                // Its volume is gone already.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                done => done,
            }
        };
        remove().map_err(|source| io_error(format!("remove {snapshot} of {id}"), source))?;
        self.quotas.volume_destroyed(&self.pool);
        Ok(())
    }

    fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        let (volume, tree) = (self.open_tree(id, None)?, self.open_tree(id, Some(snapshot))?);
        let roll_back = || {
            let notes = self.notes_to_write(id)?;
            let limit = notes.get(Note::TreeLimit)?.unwrap_or(UNLIMITED);
            let held = self.held(&notes, &tree, snapshot, limit)?;
            self.exchange(id, &tree, self.charged_again(&notes, &volume, held)?)?;
            notes.set(Note::Began, held)
        };
        roll_back().map_err(|source| io_error(format!("roll {id} back to {snapshot}"), source))?;
        self.root(id)
    }

    fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        quota: &Quota,
    ) -> Result<Root, StorageError> {
        let failed = |source| io_error(format!("fork {new} from {snapshot} of {id}"), source);
        let tree = self.open_tree(id, Some(snapshot))?;
        let volumes = self.pool.volumes().map_err(failed)?;
        if statat(&volumes, c_name(new), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(StorageError::Exists { id: new.clone() });
        }
        let held = self.held_for(id, snapshot, &tree, quota).map_err(failed)?;
        let charged = self.charged_to_fork(id, held, new, quota).map_err(failed)?;
        failpoint!("btrfs.fork_after_notes");
        let made = self.creating(|| {
            btrfs::snapshot_subvolume(&volumes, &c_name(new), &tree, Access::Write, charged)
        });
        made.map_err(|source| exists_or(new, failed, source))?;
        failpoint!("btrfs.fork_after_made");
        self.limit_fork(new, held, quota).map_err(failed)?;
        failpoint!("btrfs.fork_after_limit");
        self.root(new)
    }

    fn view(&self, id: &SandboxId, snapshot: Option<&SnapshotId>) -> Result<View, StorageError> {
        Ok(View::of_trees(vec![self.open_tree(id, snapshot)?]))
    }
}
