//! Snapshots as copies of a volume's own data. Unchanged files are shared with the previous snapshot, so a comparison
//! of the two finds identical files. All other copies share data with the live files until one changes, if the file
//! system supports it.
//!
//! ```text
//! .snapshots/<sandbox id>/<snapshot id>/
//!   tree/     the copy
//!   files     the state of the live files, by which the next snapshot detects changes
//! ```
//!
//! Everything is created as a draft, is on disk before it gets its name, and gets it by one rename. A rollback
//! exchanges two names: the volume exists at every moment.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Stat, chmodat, fstat, fsync, mkdirat, openat,
    renameat_with, statat, syncfs,
};
use rustix::io::Errno;

use super::copy::{Copy, Purpose};
use super::layers::{UPPER, furnish_like, open_path};
use super::unchanged::{Earlier, List};
use super::{Local, c_name, io_error, open_named};
use crate::offload::{Blocking as _, BlockingSnapshots};
use crate::{Quota, StorageError};
use sandkeep_core::{SandboxId, SnapshotId, failpoint};
use sandkeep_tree::{Root, View, untrusted};

const TREE: &CStr = c"tree";
const FILES: &CStr = c"files";

/// The directory for volumes of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VolumeKind {
    Plain,
    Above,
}

impl Local {
    /// The snapshot's copy of the volume's own data.
    pub(super) fn snapshot_tree(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
    ) -> Result<OwnedFd, StorageError> {
        let open = || untrusted::open_dir(self.open_snapshot(id, snapshot)?, TREE);
        open().map_err(|error| match error {
            Errno::NOENT => {
                StorageError::SnapshotNotFound { id: id.clone(), snapshot: snapshot.clone() }
            }
            error => io_error(format!("open {snapshot} of {id}"), error.into()),
        })
    }

    fn open_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> rustix::io::Result<OwnedFd> {
        untrusted::open_dir(
            untrusted::open_dir(&self.snapshots, &c_name(id))?,
            &file_name(snapshot),
        )
    }

    /// The snapshots of a volume.
    fn snapshots_of(&self, id: &SandboxId) -> io::Result<Vec<SnapshotId>> {
        let directory = match untrusted::open_dir(&self.snapshots, &c_name(id)) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let entries = untrusted::entries(directory)?.into_iter();
        let directories = entries.filter(|(_, kind)| *kind == FileType::Directory);
        Ok(directories.filter_map(|(name, _)| name.to_str().ok()?.parse().ok()).collect())
    }

    /// The size of all snapshots of a volume. It is measured once after each change, because that takes a while.
    pub(super) fn snapshots_bytes(&self, id: &SandboxId) -> io::Result<u64> {
        let known = self.measured.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied();
        if let Some(bytes) = known {
            return Ok(bytes);
        }
        let bytes = match untrusted::open_dir(&self.snapshots, &c_name(id)) {
            Ok(directory) => untrusted::disk_bytes(directory)?,
            Err(Errno::NOENT) => 0,
            Err(error) => return Err(error.into()),
        };
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), bytes);
        Ok(bytes)
    }

    fn snapshots_changed(&self, id: &SandboxId) {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Removes all snapshots of a volume.
    pub(super) fn remove_snapshots(&self, id: &SandboxId) -> io::Result<()> {
        self.snapshots_changed(id);
        self.remove(&self.snapshots, &c_name(id))
    }

    /// The newest snapshot of a volume, to share files with.
    fn earlier(&self, id: &SandboxId) -> io::Result<Option<Earlier>> {
        let mut newest: Option<((i64, i64), OwnedFd)> = None;
        for snapshot in self.snapshots_of(id)? {
            let directory = self.open_snapshot(id, &snapshot)?;
            let stat = fstat(&directory)?;
            let made = (stat.st_mtime as i64, stat.st_mtime_nsec as i64);
            if newest.as_ref().is_none_or(|(latest, _)| made > *latest) {
                newest = Some((made, directory));
            }
        }
        let Some((_, directory)) = newest else { return Ok(None) };
        let list = openat(&directory, FILES, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Earlier::read(untrusted::open_dir(&directory, TREE)?, list).map(Some)
    }

    /// Copies a volume's own data into the draft of a snapshot.
    fn fill_snapshot(&self, id: &SandboxId, own: OwnedFd, draft: &CStr) -> io::Result<()> {
        mkdirat(&self.drafts, draft, Mode::RWXU)?;
        let directory = untrusted::open_dir(&self.drafts, draft)?;
        mkdirat(&directory, TREE, Mode::RWXU)?;
        failpoint!("local.snapshot_after_draft");
        let earlier = self.earlier(id)?;
        let mut list = List::create(&directory, FILES)?;
        let to = untrusted::open_dir(&directory, TREE)?;
        self.copies.run(id, |effort| {
            Copy::new(Purpose::Twin, to, effort).sharing(earlier.as_ref(), Some(&mut list)).run(own)
        })?;
        list.finish()?;
        failpoint!("local.snapshot_after_copy");
        Ok(syncfs(&directory)?)
    }

    fn make_snapshot(&self, id: &SandboxId, own: OwnedFd, snapshot: &SnapshotId) -> io::Result<()> {
        match mkdirat(&self.snapshots, c_name(id), Mode::RWXU) {
            Ok(()) => fsync(&self.snapshots)?,
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let to = untrusted::open_dir(&self.snapshots, &c_name(id))?;
        if statat(&to, file_name(snapshot), AtFlags::SYMLINK_NOFOLLOW).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.in_draft(|draft| {
            self.fill_snapshot(id, own, draft)?;
            let flags = RenameFlags::NOREPLACE;
            renameat_with(&self.drafts, draft, &to, file_name(snapshot), flags)?;
            failpoint!("local.snapshot_after_name");
            Ok(fsync(&to)?)
        })
    }

    /// Runs `work` with a draft's name, and removes the draft on failure.
    fn in_draft(&self, work: impl FnOnce(&CStr) -> io::Result<()>) -> io::Result<()> {
        let draft = untrusted::unused_name();
        let done = work(&draft);
        if done.is_err() {
            // If that fails, the next start removes it.
            let _ = self.remove(&self.drafts, &draft);
        }
        done
    }

    /// Copies a snapshot into a draft that can replace a volume of this kind. On disk when this returns. `like` is the
    /// volume whose layers it uses, `of` the one that the draft is for.
    fn fill_clone(
        &self,
        of: &SandboxId,
        tree: OwnedFd,
        kind: VolumeKind,
        like: &SandboxId,
        draft: &CStr,
    ) -> io::Result<()> {
        mkdirat(&self.drafts, draft, Mode::RWXU)?;
        let directory = untrusted::open_dir(&self.drafts, draft)?;
        let to = match kind {
            VolumeKind::Plain => directory.try_clone()?,
            VolumeKind::Above => {
                furnish_like(&untrusted::open_dir(&self.above, &c_name(like))?, &directory)?;
                untrusted::open_dir(&directory, UPPER)?
            }
        };
        self.copies.run(of, |effort| Copy::new(Purpose::Twin, to, effort).run(tree))?;
        Ok(syncfs(&directory)?)
    }

    /// The kind of a volume.
    fn kind(&self, id: &SandboxId) -> Result<VolumeKind, StorageError> {
        match open_named(&self.volumes, id) {
            Ok(_) => Ok(VolumeKind::Plain),
            Err(StorageError::NotFound { .. }) => {
                open_named(&self.above, id).map(|_| VolumeKind::Above)
            }
            Err(error) => Err(error),
        }
    }

    fn room(&self, kind: VolumeKind) -> &OwnedFd {
        match kind {
            VolumeKind::Plain => &self.volumes,
            VolumeKind::Above => &self.above,
        }
    }

    fn replace(&self, id: &SandboxId, kind: VolumeKind, tree: OwnedFd) -> io::Result<()> {
        self.in_draft(|draft| {
            self.fill_clone(id, tree, kind, id, draft)?;
            failpoint!("local.rollback_after_copy");
            exchange(&self.drafts, draft, self.room(kind), &c_name(id))?;
            failpoint!("local.rollback_after_exchange");
            fsync(self.room(kind))?;
            failpoint!("local.rollback_after_sync");
            // The previous content. If it cannot be removed, the next start removes it.
            if let Err(error) = self.remove(&self.drafts, draft) {
                tracing::warn!(%error, %id, "what a rollback replaced stays until the next start");
            }
            Ok(())
        })
    }
}

impl BlockingSnapshots for Local {
    fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let own = self.own_dir(id)?;
        let made = self.make_snapshot(id, own, snapshot);
        self.snapshots_changed(id);
        made.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => {
                StorageError::SnapshotExists { id: id.clone(), snapshot: snapshot.clone() }
            }
            _ => io_error(format!("make snapshot {snapshot} of {id}"), source),
        })
    }

    fn snapshots(&self) -> io::Result<Vec<(SandboxId, SnapshotId)>> {
        let mut found = Vec::new();
        for (name, _) in untrusted::entries(&self.snapshots)? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            let snapshots = self.snapshots_of(&id)?;
            found.extend(snapshots.into_iter().map(|snapshot| (id.clone(), snapshot)));
        }
        Ok(found)
    }

    fn snapshot_bytes(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, StorageError> {
        let tree = self.snapshot_tree(id, snapshot)?;
        untrusted::disk_bytes(tree)
            .map_err(|source| io_error(format!("measure {snapshot} of {id}"), source))
    }

    fn delete_snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<(), StorageError> {
        let removed = match untrusted::open_dir(&self.snapshots, &c_name(id)) {
            Ok(directory) => self.remove(&directory, &file_name(snapshot)),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        };
        self.snapshots_changed(id);
        removed.map_err(|source| io_error(format!("remove {snapshot} of {id}"), source))
    }

    fn rollback(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<Root, StorageError> {
        let (kind, tree) = (self.kind(id)?, self.snapshot_tree(id, snapshot)?);
        self.replace(id, kind, tree)
            .map_err(|source| io_error(format!("roll {id} back to {snapshot}"), source))?;
        self.root(id)
    }

    /// There is never a quota.
    fn fork(
        &self,
        id: &SandboxId,
        snapshot: &SnapshotId,
        new: &SandboxId,
        _: &Quota,
    ) -> Result<Root, StorageError> {
        let _standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        let (kind, tree) = (self.kind(id)?, self.snapshot_tree(id, snapshot)?);
        if self.root(new).is_ok() {
            return Err(StorageError::Exists { id: new.clone() });
        }
        let made = self.in_draft(|draft| {
            self.fill_clone(new, tree, kind, id, draft)?;
            failpoint!("local.fork_after_copy");
            let (room, name) = (self.room(kind), c_name(new));
            with_write_access(
                &self.drafts,
                draft,
                || renameat_with(&self.drafts, draft, room, &name, RenameFlags::NOREPLACE),
                room,
                &name,
            )?;
            failpoint!("local.fork_after_name");
            Ok(fsync(room)?)
        });
        made.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => StorageError::Exists { id: new.clone() },
            _ => io_error(format!("fork {new} from {snapshot} of {id}"), source),
        })?;
        self.root(new)
    }

    fn view(&self, id: &SandboxId, snapshot: Option<&SnapshotId>) -> Result<View, StorageError> {
        let root = self.root(id)?;
        let failed = |source| io_error(format!("open {id}"), source);
        let Some(snapshot) = snapshot else { return View::of_root(&root).map_err(failed) };
        let mut trees = vec![self.snapshot_tree(id, snapshot)?];
        if let Root::Overlay { lowers, .. } = &root {
            for lower in lowers.iter().rev() {
                trees.push(open_path(lower).map_err(failed)?);
            }
        }
        Ok(View::of_trees(trees))
    }
}

/// Exchanges a draft with a volume.
fn exchange(drafts: &OwnedFd, draft: &CStr, room: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let exchange = || renameat_with(drafts, draft, room, name, RenameFlags::EXCHANGE);
    let Err(error) = exchange() else { return Ok(()) };
    if error != Errno::ACCESS {
        return Err(error);
    }
    // The volume is being removed, so its mode does not matter.
    chmodat(room, name, Mode::RWXU, AtFlags::empty())?;
    with_write_access(drafts, draft, exchange, room, name)
}

/// Moves a directory that its owner (us, if we are not root) must not write to. It gets its own mode back in the new
/// place.
fn with_write_access(
    from: &OwnedFd,
    name: &CStr,
    rename: impl Fn() -> rustix::io::Result<()>,
    to: &OwnedFd,
    new_name: &CStr,
) -> rustix::io::Result<()> {
    match rename() {
        Err(Errno::ACCESS) => {}
        done => return done,
    }
    let stat: Stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    chmodat(from, name, mode | Mode::RWXU, AtFlags::empty())?;
    rename()?;
    chmodat(to, new_name, mode, AtFlags::empty())
}

fn file_name(snapshot: &SnapshotId) -> CString {
    CString::new(snapshot.as_str()).expect("an id has only letters and digits")
}
