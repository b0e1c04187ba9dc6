//! The two limits of a volume.
//!
//! The kernel charges what is written to the subvolume that wrote it, for as long as anything refers to it, and a
//! clone begins with nothing. So:
//!
//! - **Tree and snapshots** is what is charged to a group above the volume. All subvolumes that were ever this
//!   volume are in it: what the one before a rollback wrote, and a snapshot still has, counts on.
//! - **The tree** is what is charged to the volume's own group, *and* what it had when it began as a clone, but
//!   not what only snapshots still have. What was asked for is noted down; how the limit of the group follows
//!   from it is told in [`allowance`](super::allowance).
//!
//! Without quotas nothing of this is there, and what a volume holds is found by looking at all of it.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use super::allowance::left_for_clone;
use super::notes::{Note, Notes};
use super::{Btrfs, c_name};
use crate::{Amount, Quota, Usage};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_sys::btrfs::{
    self,
    quota::{self, Charged, GroupId},
};
use sandkeep_tree::untrusted;

/// Stands for no limit, where what a clone began with has to be taken from something.
pub(super) const UNLIMITED: u64 = 1 << 62;

impl Btrfs {
    /// The group that counts a volume with its snapshots, if there is one already.
    fn total_group(&self, volume: &OwnedFd) -> io::Result<Option<GroupId>> {
        let own = GroupId::of(btrfs::subvolume_id(volume)?);
        Ok(quota::related(volume, own)?.into_iter().find(|group| group.level() > 0))
    }

    /// The same, made if need be; `None` without quotas. A crash half-way leaves a group that is swept.
    pub(super) fn make_total_group(&self, volume: &OwnedFd) -> io::Result<Option<GroupId>> {
        if !self.quotas.hold() {
            return Ok(None);
        }
        if let Some(group) = self.total_group(volume)? {
            return Ok(Some(group));
        }
        let (subvolume, top) = (btrfs::subvolume_id(volume)?, self.pool.volumes()?);
        // No other volume takes it, because subvolumes are never numbered alike.
        let group = GroupId::upper(subvolume.0);
        self.quotas.while_creating(|| {
            match quota::create(&top, group) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
            quota::assign(&top, GroupId::of(subvolume), group)
        })?;
        Ok(Some(group))
    }

    /// Limits a volume that nobody has written to.
    pub(super) fn limit_total(
        &self,
        volumes: &OwnedFd,
        name: &CStr,
        total_bytes: u64,
    ) -> io::Result<()> {
        let volume = untrusted::open_dir(volumes, name)?;
        match self.make_total_group(&volume)? {
            Some(group) => quota::limit(volumes, group, total_bytes),
            None => Ok(()),
        }
    }

    /// What a volume holds. It must be there.
    pub(super) fn measure(&self, id: &SandboxId) -> io::Result<Usage> {
        let volume = untrusted::open_dir(self.pool.volumes()?, &c_name(id))?;
        let own = GroupId::of(btrfs::subvolume_id(&volume)?);
        let Some(charged) = self.quotas.amount(own)? else { return look_at_all(volume) };
        let Some(notes) = self.notes(id)? else {
            let total = self.measure_total(&volume, None)?;
            return Ok(Usage { tree: charged, total: total.unwrap_or(unlimited(charged)) });
        };
        let charge = self.charge(&volume, &notes)?;
        let told = |charge| Amount {
            used_bytes: self.estimate(&charge),
            limit_bytes: charge.told_limit(),
        };
        let tree = charge.map_or(charged, told);
        let total = self.measure_total(&volume, notes.get(Note::TotalLimit)?)?;
        Ok(Usage { tree, total: total.unwrap_or(unlimited(tree)) })
    }

    /// What is charged to a volume with its snapshots, if that is counted.
    fn measure_total(&self, volume: &OwnedFd, noted: Option<u64>) -> io::Result<Option<Amount>> {
        let group = self.total_group(volume)?;
        let counted = group.map(|group| self.quotas.amount(group)).transpose()?.flatten();
        Ok(counted.map(|charged| whole(charged, noted)))
    }

    /// Notes down what a rollback to a new snapshot will need.
    pub(super) fn note_snapshot(
        &self,
        id: &SandboxId,
        volume: &OwnedFd,
        snapshot: &SnapshotId,
    ) -> io::Result<Notes> {
        let notes = self.notes_to_write(id)?;
        let own = GroupId::of(btrfs::subvolume_id(volume)?);
        let Some(charged) = self.quotas.amount(own)? else { return Ok(notes) };
        if notes.get(Note::TreeLimit)?.is_none() {
            let info = btrfs::subvolume(volume)?;
            notes.set(Note::Base, if info.is_clone { info.made } else { 0 })?;
            notes.set(Note::TreeLimit, charged.limit_bytes.unwrap_or(UNLIMITED))?;
        }
        let held = self.charge(volume, &notes)?.map_or(0, |charge| self.estimate(&charge));
        notes.set(Note::Held(snapshot), held)?;
        Ok(notes)
    }

    /// What a clone that takes the place of the volume is charged to, if the snapshot holds so much.
    pub(super) fn charged_again(
        &self,
        notes: &Notes,
        volume: &OwnedFd,
        held: u64,
    ) -> io::Result<Charged> {
        if !self.quotas.hold() {
            return Ok(Charged::TO_ITSELF);
        }
        let group = self.make_total_group(volume)?;
        let limit = notes.get(Note::TreeLimit)?.unwrap_or(UNLIMITED);
        Ok(Charged { limit_bytes: Some(left_for_clone(limit, held)), group })
    }

    /// What a fork is charged to, noted down where it needs to be.
    pub(super) fn charged_to_fork(
        &self,
        source: &SandboxId,
        held: u64,
        new: &SandboxId,
        quota: &Quota,
    ) -> io::Result<Charged> {
        if !self.quotas.hold() {
            return Ok(Charged::TO_ITSELF);
        }
        let notes = self.notes_to_write(new)?;
        let base = self.notes(source)?.map_or(Ok(None), |notes| notes.get(Note::Base))?;
        notes.set(Note::Base, base.unwrap_or(0))?;
        let tree_bytes = quota.tree_bytes.unwrap_or(UNLIMITED);
        notes.set(Note::TreeLimit, tree_bytes)?;
        notes.set(Note::Began, held)?;
        notes.set(Note::TotalLimit, quota.total_bytes.unwrap_or(UNLIMITED))?;
        Ok(Charged { limit_bytes: Some(left_for_clone(tree_bytes, held)), group: None })
    }

    /// Limits a fork with its snapshots, that nobody has written to.
    pub(super) fn limit_fork(&self, new: &SandboxId, held: u64, quota: &Quota) -> io::Result<()> {
        let total_bytes = quota.total_bytes.unwrap_or(UNLIMITED);
        self.limit_total(&self.pool.volumes()?, &c_name(new), left_for_clone(total_bytes, held))
    }
}

/// Without quotas nobody knows what snapshots share with the tree, so they are not counted.
fn look_at_all(volume: OwnedFd) -> io::Result<Usage> {
    let tree = Amount { used_bytes: untrusted::disk_bytes(volume)?, limit_bytes: None };
    Ok(Usage { tree, total: tree })
}

fn unlimited(amount: Amount) -> Amount {
    Amount { limit_bytes: None, ..amount }
}

/// What there is and may be in all, if the limit of a group is what is left of the one that was noted down.
fn whole(charged: Amount, noted: Option<u64>) -> Amount {
    let Some(limit) = noted else { return charged };
    let left = charged.limit_bytes.unwrap_or(limit);
    Amount {
        used_bytes: charged.used_bytes.saturating_add(limit).saturating_sub(left),
        limit_bytes: (limit < UNLIMITED).then_some(limit),
    }
}
