//! The limit of a tree whose volume has snapshots.
//!
//! Written data is charged to the volume until nothing refers to it any more, so data that only snapshots still have
//! would count against the tree's limit. Therefore the limit of the volume's own group is the requested limit *plus*
//! the data that stays charged whatever the tree deletes: that of its snapshots. This amount is known when a snapshot
//! is taken, because then the snapshot contains everything, and it stays the same until a snapshot is taken or removed:
//! writing and removing files changes the charged amount and the tree's exclusive data equally.
//!
//! So a tree can immediately rewrite everything that is in a snapshot. It could also keep both, and hold more than its
//! limit: by as much as it shares with its snapshots. Whether it does can only be determined by scanning everything
//! that it refers to ([`holding`]). That takes a step per file, so [`tend`](Btrfs::tend_volume) does it only if the
//! charged amount would allow it; and a tree over its limit can write no more until it is below.
//!
//! A clone starts strictly: its inherited data counts, without room for rewriting it. The first scan adds that room.
//! The clone of a full tree still gets a little room, because otherwise it could not be given an identity and started.
//!
//! This in-memory state is lost with the daemon; the next one scans again where necessary.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::limit::UNLIMITED;
use super::notes::{Note, Notes, file_name};
use super::{Btrfs, c_name, delete, unused_draft};
use sandkeep_core::{SandboxId, SnapshotId, limits};
use sandkeep_sys::btrfs::{
    self, Access, Subvolume, SubvolumeId,
    holding::{Epochs, Holding, holding},
    quota::{self, Charged, GroupId},
};
use sandkeep_tree::untrusted;

/// A limit that is off by less is not corrected.
const CLOSE_ENOUGH_BYTES: u64 = 64 * 1024;

/// In-memory state of the subvolumes that are volumes.
#[derive(Default)]
pub(super) struct Allowances(Mutex<HashMap<SubvolumeId, Known>>);

#[derive(Clone, Default)]
struct Known {
    /// Counts changes of its snapshots: a scan from before such a change is outdated.
    changes: u64,
    look: Option<Look>,
    newest: Option<Newest>,
}

/// The result of scanning a tree.
#[derive(Clone, Copy, Debug)]
struct Look {
    held: u64,
    charged: u64,
    at: Instant,
}

/// The newest snapshot.
#[derive(Clone)]
struct Newest {
    snapshot: SnapshotId,
    /// The volume's charged amount when it was taken; the snapshot contains all of it.
    charged: u64,
    limit_before: u64,
}

impl Allowances {
    /// The lock is held for one read or assignment, or while one limit is set.
    fn known(&self) -> MutexGuard<'_, HashMap<SubvolumeId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The charged amount of a volume, and its limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    volume: Subvolume,
    /// The requested limit of the tree.
    asked: u64,
    /// The tree's initial data, which is charged to other subvolumes.
    began: u64,
    charged: u64,
    /// The limit of the charged amount.
    limit: u64,
}

impl Charge {
    fn is_limited(&self) -> bool {
        self.asked < UNLIMITED
    }

    /// The requested limit of the tree.
    pub(super) fn told_limit(&self) -> Option<u64> {
        self.is_limited().then_some(self.asked)
    }

    /// The maximum that the tree can hold.
    fn most(&self) -> u64 {
        self.charged.saturating_add(self.began)
    }

    /// The same, using a scan: since then it can have grown by no more than was charged.
    fn estimate(&self, look: Option<Look>) -> u64 {
        let since = |look: Look| look.held + self.charged.saturating_sub(look.charged);
        look.map_or(self.most(), |look| since(look).min(self.most()))
    }

    /// Whether the tree may be over its limit, or unable to rewrite its own data.
    fn needs_look(&self, look: Option<Look>) -> bool {
        let may_be_over = self.most() > self.asked;
        match look {
            None => may_be_over || self.limit.saturating_sub(self.charged) < self.most(),
            Some(look) => {
                let aged = look.at.elapsed() >= limits::TREE_LOOK_AGAIN;
                look.held > self.asked
                    || self.estimate(Some(look)) > self.asked
                    // Removing a snapshot reduces the charged amount only after some time.
                    || may_be_over && aged && look.charged != self.charged
            }
        }
    }
}

impl Btrfs {
    /// `None` without quotas, or if no limit is noted.
    pub(super) fn charge(&self, volume: &OwnedFd, notes: &Notes) -> io::Result<Option<Charge>> {
        let volume = btrfs::subvolume(volume)?;
        let Some(charged) = self.quotas.amount(GroupId::of(volume.id))? else { return Ok(None) };
        let Some(asked) = notes.get(Note::TreeLimit)? else { return Ok(None) };
        Ok(Some(Charge {
            volume,
            asked,
            began: notes.get(Note::Began)?.unwrap_or(0),
            charged: charged.used_bytes,
            limit: charged.limit_bytes.unwrap_or(asked),
        }))
    }

    /// An upper bound of what the tree holds.
    pub(super) fn estimate(&self, charge: &Charge) -> u64 {
        let known = self.allowances.known();
        charge.estimate(known.get(&charge.volume.id).and_then(|known| known.look))
    }

    /// All charged data is in a snapshot now. A tree that may be over its limit gets no room before a scan.
    pub(super) fn snapshot_made(
        &self,
        volume: &OwnedFd,
        notes: &Notes,
        snapshot: &SnapshotId,
    ) -> io::Result<()> {
        let Some(charge) = self.charge(volume, notes)?.filter(Charge::is_limited) else {
            return Ok(());
        };
        let mut known = self.allowances.known();
        let known = known.entry(charge.volume.id).or_default();
        known.changes += 1;
        known.newest = Some(Newest {
            snapshot: snapshot.clone(),
            charged: charge.charged,
            limit_before: charge.limit,
        });
        if charge.estimate(known.look) > charge.asked {
            known.look = None;
            return Ok(());
        }
        self.allow(&charge, charge.asked.saturating_add(charge.charged))
    }

    /// The snapshot's exclusive data is freed eventually. If it was the newest, the state before it applies again.
    pub(super) fn snapshot_gone(
        &self,
        id: &SandboxId,
        notes: &Notes,
        snapshot: &SnapshotId,
    ) -> io::Result<()> {
        let volume = untrusted::open_dir(self.pool.volumes()?, &c_name(id))?;
        let Some(charge) = self.charge(&volume, notes)?.filter(Charge::is_limited) else {
            return Ok(());
        };
        let mut known = self.allowances.known();
        let known = known.entry(charge.volume.id).or_default();
        known.changes += 1;
        known.look = None;
        match known.newest.take_if(|newest| newest.snapshot == *snapshot) {
            Some(newest) => self.allow(&charge, newest.limit_before.max(charge.charged)),
            None => Ok(()),
        }
    }

    /// The size of a snapshot. The noted size may be too large; if that matters for this limit, the snapshot is
    /// scanned.
    pub(super) fn held(
        &self,
        notes: &Notes,
        tree: &OwnedFd,
        snapshot: &SnapshotId,
        limit: u64,
    ) -> io::Result<u64> {
        let noted = notes.get(Note::Held(snapshot))?.unwrap_or(0);
        if noted <= limit / 2 || limit >= UNLIMITED {
            return Ok(noted);
        }
        let found = holding(tree, all_shared(notes)?)?.bytes.min(noted);
        notes.set(Note::Held(snapshot), found)?;
        Ok(found)
    }

    /// Updates the limit of one volume.
    pub(super) fn tend_volume(&self, id: &SandboxId) -> io::Result<Option<SubvolumeId>> {
        let Some(notes) = self.notes(id)? else { return Ok(None) };
        let volume = untrusted::open_dir(self.pool.volumes()?, &c_name(id))?;
        let Some(charge) = self.charge(&volume, &notes)?.filter(Charge::is_limited) else {
            return Ok(None);
        };
        let own = charge.volume.id;
        let before = self.allowances.known().get(&own).cloned().unwrap_or_default();
        if !charge.needs_look(before.look) {
            return Ok(Some(own));
        }
        let (look, pinned) = match &before.newest {
            Some(newest) if before.look.is_none() => self.look_at_newest(&notes, newest)?,
            _ => self.look_at_tree(&notes, &volume, &charge)?,
        };
        let mut known = self.allowances.known();
        let known = known.entry(own).or_default();
        if known.changes != before.changes {
            return Ok(Some(own));
        }
        known.look = Some(look);
        let Some(charge) = self.charge(&volume, &notes)? else { return Ok(Some(own)) };
        let limit = if look.held > charge.asked {
            charge.limit.clamp(charge.charged, charge.charged + limits::FULL_TREE_HEADROOM_BYTES)
        } else {
            charge.asked.saturating_add(pinned)
        };
        self.allow(&charge, limit)?;
        Ok(Some(own))
    }

    /// Updates all volumes. A failure of one does not affect the others.
    pub(super) fn tend_all(&self) -> io::Result<()> {
        let mut seen = HashSet::new();
        for (name, _) in untrusted::entries(self.pool.snapshots()?)? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            match self.tend_volume(&id) {
                Ok(subvolume) => seen.extend(subvolume),
                // It was just destroyed, or only its snapshots are left.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, %id, "cannot look after the limit of a volume")
                }
            }
        }
        // State of a volume created meanwhile may be dropped; a scan restores it.
        self.allowances.known().retain(|subvolume, _| seen.contains(subvolume));
        Ok(())
    }

    /// Scans a snapshot that has not been scanned: it contains the tree of that time, and everything charged then.
    fn look_at_newest(&self, notes: &Notes, newest: &Newest) -> io::Result<(Look, u64)> {
        let tree = untrusted::open_dir(&notes.0, &file_name(&newest.snapshot))?;
        let held = holding(&tree, all_shared(notes)?)?.bytes;
        Ok((Look { held, charged: newest.charged, at: Instant::now() }, newest.charged))
    }

    /// Scans the tree at one moment: a temporary snapshot of it.
    fn look_at_tree(
        &self,
        notes: &Notes,
        volume: &OwnedFd,
        charge: &Charge,
    ) -> io::Result<(Look, u64)> {
        let epochs = Epochs { shared: last_shared(notes, &charge.volume)?, ..all_shared(notes)? };
        let draft = Draft::of(self, volume)?;
        let now = self.charge(volume, notes)?.unwrap_or(*charge).charged;
        let Holding { bytes, own_bytes } = holding(draft.tree()?, epochs)?;
        let (least, most) = (now.min(charge.charged), now.max(charge.charged));
        let look =
            Look { held: bytes.min(charge.began + most), charged: least, at: Instant::now() };
        Ok((look, most.saturating_sub(own_bytes)))
    }

    fn allow(&self, charge: &Charge, limit: u64) -> io::Result<()> {
        // Never below the amount already used: a smaller limit would be reported as nonsense.
        let limit = limit.max(charge.charged);
        if limit.abs_diff(charge.limit) < CLOSE_ENOUGH_BYTES {
            Ok(())
        } else {
            quota::limit(self.pool.volumes()?, GroupId::of(charge.volume.id), limit)
        }
    }
}

/// The limit of a clone whose source holds this much.
pub(super) fn left_for_clone(limit: u64, held: u64) -> u64 {
    limit.saturating_sub(held).max(limits::FULL_TREE_HEADROOM_BYTES)
}

/// A temporary snapshot for scanning. After a crash it is removed when the storage is opened.
struct Draft<'a> {
    storage: &'a Btrfs,
    volumes: OwnedFd,
    name: CString,
}

impl<'a> Draft<'a> {
    fn of(storage: &'a Btrfs, volume: &OwnedFd) -> io::Result<Self> {
        let draft = Self { storage, volumes: storage.pool.volumes()?, name: unused_draft() };
        let (access, charged) = (Access::ReadOnly, Charged::TO_ITSELF);
        storage.quotas.while_creating(|| {
            btrfs::snapshot_subvolume(&draft.volumes, &draft.name, volume, access, charged)
        })?;
        Ok(draft)
    }

    fn tree(&self) -> io::Result<OwnedFd> {
        Ok(untrusted::open_dir(&self.volumes, &self.name)?)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if let Err(error) = delete(&self.volumes, &self.name) {
            tracing::warn!(%error, "what was made for a look stays until the next start");
        }
        self.storage.quotas.volume_destroyed(&self.storage.pool);
    }
}

/// Everything counts in full, whether shared or not.
fn all_shared(notes: &Notes) -> io::Result<Epochs> {
    Ok(Epochs { base: notes.get(Note::Base)?.unwrap_or(0), shared: u64::MAX })
}

/// The transaction up to which everything in a volume is also in a snapshot, or was charged to another subvolume. The
/// newest snapshot contains everything that the volume had then, so it alone decides.
fn last_shared(notes: &Notes, volume: &Subvolume) -> io::Result<u64> {
    let mut last = if volume.is_clone { volume.made } else { 0 };
    for (name, _) in untrusted::entries(&notes.0)? {
        match untrusted::open_dir(&notes.0, &name) {
            Ok(snapshot) => last = last.max(btrfs::subvolume(snapshot)?.made),
            Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(last)
}
