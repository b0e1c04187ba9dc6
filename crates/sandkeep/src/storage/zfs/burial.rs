//! Removing what others may stand on.

use std::io;

use super::command::Reach;
use super::names::{self, Names, Part};
use super::{Zfs, place, random};
use crate::failpoint;

/// What there is beneath a dataset, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// With that of its dataset, if it is a snapshot.
    pub name: String,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dataset,
    Snapshot,
    /// A snapshot that goes as soon as nothing needs it: it counts as gone.
    Going,
}

impl Zfs {
    /// All datasets and snapshots beneath one; none if that is not there.
    pub(super) fn look(&self, beneath: &str) -> io::Result<Vec<Seen>> {
        let rows = match self.tool.get(beneath, "defer_destroy", Reach::All) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            rows => rows?,
        };
        let seen = |(name, value): (String, String)| {
            let kind = match (names::split(&name).1, value.as_str()) {
                (None, _) => Kind::Dataset,
                (Some(_), "on") => Kind::Going,
                (Some(_), _) => Kind::Snapshot,
            };
            Seen { name, kind }
        };
        Ok(rows.into_iter().map(|row| seen((row.name, row.value))).collect())
    }

    /// Removes a dataset with all that is beneath it: gone at once, by one rename. `Ok` if it is not there.
    pub(super) fn bury(&self, name: &str) -> io::Result<()> {
        let seen = self.look(name)?;
        if seen.is_empty() {
            return Ok(());
        }
        for dataset in seen.iter().filter(|it| it.kind == Kind::Dataset) {
            self.unmount(&dataset.name)?;
        }
        failpoint!("zfs.destroy_after_unmount");
        let grave = format!("{}/{}", self.names.dead(), random());
        match self.tool.run(&["rename", name, &grave]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            renamed => drop(renamed?),
        }
        self.sweep_dead()?;
        self.mend_mounts()
    }

    /// zfs-fuse may unmount the clones of what is renamed. Sandboxes do not notice, for they have mounts of their own;
    /// whoever uses the path on the host would.
    fn mend_mounts(&self) -> io::Result<()> {
        for row in self.tool.get(&self.names.volumes(), "mountpoint", Reach::All)? {
            let path = std::path::Path::new(&row.value);
            if path.starts_with(&self.place) && path.is_dir() {
                self.mount(&row.name, path)?;
            }
        }
        Ok(())
    }

    /// Destroys what is dead, as far as nothing stands on it any more.
    pub(super) fn sweep_dead(&self) -> io::Result<()> {
        let dead = self.names.dead();
        let beneath = format!("{dead}/");
        loop {
            let seen: Vec<_> =
                self.look(&dead)?.into_iter().filter(|it| it.name.starts_with(&beneath)).collect();
            for snapshot in seen.iter().filter(|it| it.kind == Kind::Snapshot) {
                self.tool.run(&["destroy", "-d", &snapshot.name])?;
            }
            // Those that are within others come first.
            let datasets = seen.iter().rev().filter(|it| it.kind == Kind::Dataset);
            let mut destroyed = 0;
            for dataset in datasets {
                destroyed += usize::from(self.destroy_dead(&dataset.name)?);
            }
            if destroyed == 0 {
                self.empty_dead(&seen);
                return Ok(());
            }
        }
    }

    /// Whether it could be.
    fn destroy_dead(&self, name: &str) -> io::Result<bool> {
        // It refuses what has snapshots still, or is in use by a mount that somebody else copied.
        match self.tool.run_once(&["destroy", name]) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(error) => {
                tracing::debug!(%error, name, "what is dead stays for now");
                Ok(false)
            }
        }
    }

    /// What is dead but needed keeps only what its snapshots hold: what was written after the last one goes.
    fn empty_dead(&self, seen: &[Seen]) {
        for (at, snapshot) in seen.iter().enumerate().filter(|(_, it)| it.kind != Kind::Dataset) {
            let dataset = |seen: &Seen| names::split(&seen.name).0.to_owned();
            let is_last = seen[at + 1..]
                .iter()
                .all(|later| later.kind == Kind::Dataset || dataset(later) != dataset(snapshot));
            if is_last && let Err(error) = self.tool.run_once(&["rollback", &snapshot.name]) {
                tracing::debug!(%error, name = snapshot.name, "what is dead keeps what it holds");
            }
        }
    }

    /// Finishes or removes what a crash left half-done. What cannot be is tried again at the next start.
    pub(super) fn settle(&self) {
        let settled = self
            .settle_volumes()
            .and_then(|()| self.settle_layers())
            .and_then(|()| self.sweep_dead())
            .and_then(|()| self.sweep_places());
        if let Err(error) = settled {
            tracing::warn!(%error, "cannot clear up in {}", self.names.own());
        }
    }

    fn settle_volumes(&self) -> io::Result<()> {
        let seen = self.look(&self.names.volumes())?;
        for id in super::Blocking::list(self)? {
            let volume = self.names.volume(&id);
            self.sweep_views(&volume, &seen)?;
            self.settle_volume(&volume, &seen)?;
        }
        Ok(())
    }

    /// A clone that was to become the tree does so if there is no other; what has no snapshots left is nobody's.
    pub(super) fn settle_volume(&self, volume: &str, seen: &[Seen]) -> io::Result<()> {
        let part = |it: &&Seen| {
            let beneath = it.name.strip_prefix(volume)?.strip_prefix('/')?;
            (it.kind == Kind::Dataset).then(|| Part::of(beneath)).flatten()
        };
        let has_tree = seen.iter().any(|it| part(&it) == Some(Part::Tree));
        let mut next = seen.iter().filter(|it| part(it) == Some(Part::Next));
        if !has_tree && let Some(next) = next.next() {
            self.unmount(&next.name)?;
            self.tool.run(&["rename", &next.name, &format!("{volume}/{}", names::TREE)])?;
        }
        for leftover in next {
            self.bury(&leftover.name)?;
        }
        for past in seen.iter().filter(|it| part(it) == Some(Part::Past)) {
            if !has_snapshots(seen, &past.name) {
                self.bury(&past.name)?;
            }
        }
        Ok(())
    }

    /// Nobody looks at a snapshot any more who did so before a daemon was started.
    fn sweep_views(&self, volume: &str, seen: &[Seen]) -> io::Result<()> {
        let beneath = format!("{volume}/");
        let part = |it: &Seen| it.name.strip_prefix(&beneath).and_then(Part::of);
        let mut views =
            seen.iter().filter(|it| it.kind == Kind::Dataset && part(it) == Some(Part::View));
        views.try_for_each(|it| self.bury(&it.name))
    }

    fn settle_layers(&self) -> io::Result<()> {
        for (all, is_kept) in [(self.names.drafts(), false), (self.names.layers(), true)] {
            let (seen, beneath) = (self.look(&all)?, format!("{all}/"));
            for it in seen.iter().filter(|it| it.name.starts_with(&beneath)) {
                if it.kind == Kind::Dataset && !(is_kept && has_snapshots(&seen, &it.name)) {
                    self.bury(&it.name)?;
                }
            }
        }
        Ok(())
    }

    /// Removes directories that nothing is mounted on.
    fn sweep_places(&self) -> io::Result<()> {
        let rows = self.tool.get(self.names.own(), "mountpoint", Reach::All)?;
        place::sweep(&self.place, |path| rows.iter().any(|row| path.to_str() == Some(&row.value)))
    }
}

/// Whether a dataset has snapshots that do not go.
pub fn has_snapshots(seen: &[Seen], dataset: &str) -> bool {
    let of_it = |it: &Seen| names::split(&it.name).0 == dataset;
    seen.iter().any(|it| it.kind == Kind::Snapshot && of_it(it))
}

impl Names {
    /// The dataset that an operator gave, in which ours is.
    pub fn given(&self) -> &str {
        self.own().rsplit_once('/').map_or(self.own(), |(given, _)| given)
    }
}
