//! The two limits of a volume.
//!
//! The kernel charges written data to the subvolume that wrote it, for as long as anything refers to it; a clone starts
//! at zero. So:
//!
//! - **Tree and snapshots**: the amount charged to a group above the volume. It contains all subvolumes that were ever
//!   this volume: data that the one before a rollback wrote, and a snapshot still has, continues to count.
//! - **The tree**: the amount charged to the volume's own group, *plus* its initial data as a clone, but not the data
//!   that only snapshots still have. The requested limit is noted; [`allowance`](super::allowance) explains how the
//!   group's limit follows from it.
//!
//! Without quotas none of this exists, and the size of a volume is measured by a scan.

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

/// Represents no limit, where a clone's initial data has to be subtracted from something.
pub(super) const UNLIMITED: u64 = 1 << 62;

impl Btrfs {
    /// The group that counts a volume with its snapshots, if it exists.
    fn total_group(&self, volume: &OwnedFd) -> io::Result<Option<GroupId>> {
        let own = GroupId::of(btrfs::subvolume_id(volume)?);
        Ok(quota::related(volume, own)?.into_iter().find(|group| group.level() > 0))
    }

    /// The same, created if necessary; `None` without quotas. A crash in between leaves a group that is swept.
    pub(super) fn make_total_group(&self, volume: &OwnedFd) -> io::Result<Option<GroupId>> {
        if !self.quotas.hold() {
            return Ok(None);
        }
        if let Some(group) = self.total_group(volume)? {
            return Ok(Some(group));
        }
        let (subvolume, top) = (btrfs::subvolume_id(volume)?, self.pool.volumes()?);
        // Subvolume ids are never reused, so no other volume gets this group.
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

    /// Limits a volume that has not been written to.
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

    /// Measures a volume, which must exist.
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

    /// The amount charged to a volume with its snapshots, if that is counted.
    fn measure_total(&self, volume: &OwnedFd, noted: Option<u64>) -> io::Result<Option<Amount>> {
        let group = self.total_group(volume)?;
        let counted = group.map(|group| self.quotas.amount(group)).transpose()?.flatten();
        Ok(counted.map(|charged| whole(charged, noted)))
    }

    /// Notes the values that a rollback to a new snapshot will need.
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

    /// The amount charged to a clone that replaces the volume, if the snapshot has this size.
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

    /// The amount charged to a fork, noted if necessary.
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

    /// Limits a fork with its snapshots; it has not been written to.
    pub(super) fn limit_fork(&self, new: &SandboxId, held: u64, quota: &Quota) -> io::Result<()> {
        let total_bytes = quota.total_bytes.unwrap_or(UNLIMITED);
        self.limit_total(&self.pool.volumes()?, &c_name(new), left_for_clone(total_bytes, held))
    }
}

/// Without quotas it is unknown what snapshots share with the tree, so they are not counted.
fn look_at_all(volume: OwnedFd) -> io::Result<Usage> {
    let tree = Amount { used_bytes: untrusted::disk_bytes(volume)?, limit_bytes: None };
    Ok(Usage { tree, total: tree })
}

fn unlimited(amount: Amount) -> Amount {
    Amount { limit_bytes: None, ..amount }
}

/// The total used and allowed amount, if the group's limit is the rest of the noted one.
fn whole(charged: Amount, noted: Option<u64>) -> Amount {
    let Some(limit) = noted else { return charged };
    let left = charged.limit_bytes.unwrap_or(limit);
    Amount {
        used_bytes: charged.used_bytes.saturating_add(limit).saturating_sub(left),
        limit_bytes: (limit < UNLIMITED).then_some(limit),
    }
}
