//! Removes datasets that others may depend on: a dataset is marked dead, which makes it invisible, and destroyed when
//! nothing depends on it.

use std::collections::BTreeSet;
use std::io;
use std::sync::PoisonError;

use super::look::{self, Seen, Volume, YES, has_snapshots};
use super::names;
use super::{DEAD, Zfs, place};
use sandkeep_core::{failpoint, limits};

impl Zfs {
    /// Removes a dataset with everything below it, by one mark. `Ok` if it does not exist.
    pub(super) fn remove_dataset(&self, name: &str) -> io::Result<()> {
        let seen = self.look(name)?;
        if seen.is_empty() {
            return Ok(());
        }
        self.mark_dead(&seen)?;
        let left = self.collect()?;
        let stays: Vec<_> =
            left.into_iter().filter(|it| names::is_within(&it.name, name)).collect();
        self.empty(&stays);
        Ok(())
    }

    /// Marks a dataset as dead. Everything in it is dead as well.
    fn mark_dead(&self, seen: &[Seen]) -> io::Result<()> {
        for dataset in seen.iter().filter(|it| it.is_dataset()) {
            self.unmount(dataset)?;
        }
        failpoint!("zfs.destroy_after_unmount");
        if let Some(dataset) = seen.first().filter(|it| !it.dead) {
            self.tool.run(&["set", &format!("{DEAD}={YES}"), &dataset.name])?;
        }
        failpoint!("zfs.destroy_after_mark");
        Ok(())
    }

    /// Destroys dead datasets that nothing depends on; returns everything that is left.
    pub(super) fn collect(&self) -> io::Result<Vec<Seen>> {
        let mut left = self.look(self.names.own())?;
        let mut in_use = BTreeSet::new();
        while let Some(name) = needless(&left, &in_use) {
            if self.destroy_dead(&name)? {
                left.retain(|it| !names::is_within(&it.name, &name));
            } else {
                in_use.insert(name);
            }
        }
        *self.in_use.lock().unwrap_or_else(PoisonError::into_inner) = in_use;
        Ok(left)
    }

    /// Retries datasets that were in use, if there are any and no other task is doing so.
    pub(super) fn collect_late(&self) -> io::Result<()> {
        match (self.in_use().is_empty(), self.changing.try_lock()) {
            (true, _) | (false, Err(_)) => Ok(()),
            (false, Ok(_changing)) => self.collect().map(drop),
        }
    }

    fn in_use(&self) -> BTreeSet<String> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it was destroyed. It is refused while another process has a copy of its mount: the sandbox's processes
    /// are gone, but the kernel may still be releasing it.
    fn destroy_dead(&self, name: &str) -> io::Result<bool> {
        let tries = if self.in_use().contains(name) { 1 } else { limits::ZFS_DEAD_TRIES };
        match self.tool.try_often(tries, &["destroy", "-r", name]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(error) => {
                tracing::debug!(%error, name, "what is dead stays for now");
                Ok(false)
            }
        }
    }

    /// A dead but needed dataset keeps only its snapshots' data: everything written after the last one is discarded.
    fn empty(&self, left: &[Seen]) {
        for dataset in left.iter().filter(|it| it.dead && it.is_dataset()) {
            if let Some(last) = look::last_snapshot(left, &dataset.name) {
                self.forget_since(last);
            }
        }
    }

    /// Discards what was written to a dataset since its last snapshot. Nothing may need it any more.
    pub(super) fn forget_since(&self, last: &Seen) {
        if let Err(error) = self.tool.run_once(&["rollback", &last.name]) {
            tracing::debug!(%error, name = last.name, "what nobody needs stays for now");
        }
    }

    /// Removes datasets without children.
    pub(super) fn remove(&self, datasets: &[Seen]) -> io::Result<()> {
        if datasets.is_empty() {
            return Ok(());
        }
        for dataset in datasets {
            self.mark_dead(std::slice::from_ref(dataset))?;
        }
        self.collect().map(drop)
    }

    /// Finishes or removes what a crash interrupted. Failures are retried at the next start.
    pub(super) fn settle(&self) {
        if let Err(error) = self.try_settle() {
            tracing::warn!(%error, "cannot clear up in {}", self.names.own());
        }
    }

    fn try_settle(&self) -> io::Result<()> {
        let all = self.look(self.names.own())?;
        let datasets = || all.iter().filter(|it| it.is_dataset() && !it.dead);
        let volumes = datasets().filter(|it| self.names.is_volume(&it.name));
        for volume in volumes.filter_map(|it| Volume::among(&all, &it.name)) {
            // Views of an earlier daemon are unused, and no layer is being created.
            for capture in volume.captures() {
                self.tool.run(&["destroy", "-d", &capture.name])?;
            }
            let nobodys: Vec<_> = volume.views().chain(volume.idle_trees()).cloned().collect();
            for dataset in nobodys {
                self.mark_dead(&[dataset])?;
            }
        }
        let layers = format!("{}/", self.names.layers());
        for draft in datasets().filter(|it| it.name.starts_with(&layers)) {
            if !has_snapshots(&all, &draft.name) {
                self.mark_dead(std::slice::from_ref(draft))?;
            }
        }
        let left = self.collect()?;
        self.empty(&left);
        let is_used = |path: &std::path::Path| {
            left.iter().any(|it| !it.dead && it.mountpoint.as_deref() == Some(path))
        };
        place::sweep(&self.place, is_used)
    }
}

/// The first dead dataset that nothing depends on, with everything in it, ignoring those within `but`.
pub fn needless(seen: &[Seen], but: &BTreeSet<String>) -> Option<String> {
    let is_free = |outer: &str| {
        let mut clones = seen.iter().filter(|it| !names::is_within(&it.name, outer));
        clones.all(|it| it.origin.as_deref().is_none_or(|from| !names::is_within(from, outer)))
    };
    let meant = |name: &str| !but.iter().any(|outer| names::is_within(name, outer));
    let mut dead = seen.iter().filter(|it| it.dead && meant(&it.name));
    dead.find(|it| is_free(&it.name)).map(|it| it.name.clone())
}
