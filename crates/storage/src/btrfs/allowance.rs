//! The limit of a tree whose volume has snapshots.
//!
//! What is written is charged to the volume until nothing refers to it any more, so what only snapshots still have would
//! count against the limit of the tree. Therefore the limit of the volume's own group is what was asked for *and* what
//! is charged to it and stays so whatever the tree lets go of: what its snapshots have. That is known when a
//! snapshot is made, because then all is in it, and stays the same until a snapshot is made or removed: writing and
//! removing files changes what is charged and what the tree alone has by the same amount.
//!
//! So a tree can write anew all that is in a snapshot, at once. It could also keep both, and hold more than
//! was asked for: as much more as it shares with its snapshots. Whether it does only a look at all that it
//! refers to can tell ([`holding`]). That takes a step for each file, so it is done only if what is charged would
//! allow it, by [`tend`](Btrfs::tend_volume); and a tree that holds too much can write no more until it holds less.
//!
//! A clone begins strictly: what it got counts, and leaves no room to write it anew. The first look gives that. One of
//! a full tree can write a little all the same, or it could be given no identity and not be started.
//!
//! What is known here is forgotten with the daemon; the next one looks again where it has to.

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

/// A limit that is off by less is left as it is.
const CLOSE_ENOUGH_BYTES: u64 = 64 * 1024;

/// What is known of the subvolumes that are volumes.
#[derive(Default)]
pub(super) struct Allowances(Mutex<HashMap<SubvolumeId, Known>>);

#[derive(Clone, Default)]
struct Known {
    /// Counts what happens to its snapshots: what was found before such a change is not what is so after.
    changes: u64,
    look: Option<Look>,
    newest: Option<Newest>,
}

/// What a tree held when somebody looked.
#[derive(Clone, Copy, Debug)]
struct Look {
    held: u64,
    charged: u64,
    at: Instant,
}

/// A snapshot since which there was no other.
#[derive(Clone)]
struct Newest {
    snapshot: SnapshotId,
    /// What was charged to the volume when it was made, all of which is in it.
    charged: u64,
    limit_before: u64,
}

impl Allowances {
    /// Held for a look, an assignment, or while one limit is set.
    fn known(&self) -> MutexGuard<'_, HashMap<SubvolumeId, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is charged to a volume, and what may be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    volume: Subvolume,
    /// The limit of the tree that was asked for.
    asked: u64,
    /// What the tree had when it began, which is charged to others.
    began: u64,
    charged: u64,
    /// The limit of what is charged.
    limit: u64,
}

impl Charge {
    fn is_limited(&self) -> bool {
        self.asked < UNLIMITED
    }

    /// The limit of the tree as it was asked for.
    pub(super) fn told_limit(&self) -> Option<u64> {
        self.is_limited().then_some(self.asked)
    }

    /// What the tree holds at most.
    fn most(&self) -> u64 {
        self.charged.saturating_add(self.began)
    }

    /// The same by what is known of it: since the look it can have got no more than was charged.
    fn estimate(&self, look: Option<Look>) -> u64 {
        let since = |look: Look| look.held + self.charged.saturating_sub(look.charged);
        look.map_or(self.most(), |look| since(look).min(self.most()))
    }

    /// Whether the tree may hold too much, or be kept from writing anew what it has.
    fn needs_look(&self, look: Option<Look>) -> bool {
        let may_be_over = self.most() > self.asked;
        match look {
            None => may_be_over || self.limit.saturating_sub(self.charged) < self.most(),
            Some(look) => {
                let aged = look.at.elapsed() >= limits::TREE_LOOK_AGAIN;
                look.held > self.asked
                    || self.estimate(Some(look)) > self.asked
                    // A snapshot that goes takes from what is charged in its own time.
                    || may_be_over && aged && look.charged != self.charged
            }
        }
    }
}

impl Btrfs {
    /// `None` without quotas, or if nothing is noted down about a limit.
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

    /// What the tree holds, as far as that is known: no less than it does.
    pub(super) fn estimate(&self, charge: &Charge) -> u64 {
        let known = self.allowances.known();
        charge.estimate(known.get(&charge.volume.id).and_then(|known| known.look))
    }

    /// All that is charged to the volume is in a snapshot now. Whoever may hold too much gets nothing before a look.
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

    /// What only the snapshot had goes, sooner or later. If it was the newest all is as it was before that.
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

    /// How much a snapshot holds. What was noted down may be too much; where that matters for this limit, it is
    /// looked at.
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

    /// Looks after the limit of one volume.
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
        let limit = match look.held > charge.asked {
            true => charge
                .limit
                .clamp(charge.charged, charge.charged + limits::FULL_TREE_HEADROOM_BYTES),
            false => charge.asked.saturating_add(pinned),
        };
        self.allow(&charge, limit)?;
        Ok(Some(own))
    }

    /// Looks after all. One that cannot be looked after hinders no other.
    pub(super) fn tend_all(&self) -> io::Result<()> {
        let mut seen = HashSet::new();
        for (name, _) in untrusted::entries(self.pool.snapshots()?)? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            match self.tend_volume(&id) {
                Ok(subvolume) => seen.extend(subvolume),
                // It was just destroyed, or there is nothing left but its snapshots.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, %id, "cannot look after the limit of a volume")
                }
            }
        }
        // What is forgotten of one that was made meanwhile is found again by a look.
        self.allowances.known().retain(|subvolume, _| seen.contains(subvolume));
        Ok(())
    }

    /// At a snapshot that nobody has looked at: it holds what the tree did, and all that was charged then.
    fn look_at_newest(&self, notes: &Notes, newest: &Newest) -> io::Result<(Look, u64)> {
        let tree = untrusted::open_dir(&notes.0, &file_name(&newest.snapshot))?;
        let held = holding(&tree, all_shared(notes)?)?.bytes;
        Ok((Look { held, charged: newest.charged, at: Instant::now() }, newest.charged))
    }

    /// At the tree as it is at one moment, and so at a snapshot of it that nobody else sees.
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
        // What is used already may be: less than that would be told as nonsense.
        let limit = limit.max(charge.charged);
        match limit.abs_diff(charge.limit) < CLOSE_ENOUGH_BYTES {
            true => Ok(()),
            false => quota::limit(self.pool.volumes()?, GroupId::of(charge.volume.id), limit),
        }
    }
}

/// What may be charged to a clone of a tree that holds so much.
pub(super) fn left_for_clone(limit: u64, held: u64) -> u64 {
    limit.saturating_sub(held).max(limits::FULL_TREE_HEADROOM_BYTES)
}

/// A snapshot for a look. What a crash leaves of it is swept when the storage is opened.
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

/// For what counts whole whoever has it.
fn all_shared(notes: &Notes) -> io::Result<Epochs> {
    Ok(Epochs { base: notes.get(Note::Base)?.unwrap_or(0), shared: u64::MAX })
}

/// The transaction until which all that is in a volume is in a snapshot too, or was charged to another subvolume. The
/// newest snapshot has all that the volume had then, so it alone tells.
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
