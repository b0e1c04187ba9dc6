//! What there is in the pool, as one run of `zfs` tells it: what each dataset and snapshot is to the others, and which
//! of them are dead.

use std::io;
use std::path::PathBuf;

use super::names::{self, Part};
use super::{DEAD, TREE, Zfs};
use sandkeep_core::{SandboxId, SnapshotId};

/// A property that says yes.
pub const YES: &str = "on";

/// A dataset or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// With that of its dataset, if it is a snapshot.
    pub name: String,
    pub kind: Kind,
    /// The snapshot that it is a clone of.
    pub origin: Option<String>,
    pub mountpoint: Option<PathBuf>,
    /// It, or what it is in, was removed, and goes when nothing stands on it any more.
    pub dead: bool,
    /// Which dataset is the tree, if it is a volume.
    tree: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dataset,
    Snapshot,
    /// A snapshot that goes as soon as nothing needs it: it counts as gone.
    Going,
}

impl Seen {
    pub(super) fn of([name, going, origin, mountpoint, dead, tree]: [String; 6]) -> Self {
        // What a property does not say is told as a dash.
        let said = |value: String| (value != "-").then_some(value);
        let kind = match (names::split(&name).1, going.as_str()) {
            (None, _) => Kind::Dataset,
            (Some(_), YES) => Kind::Going,
            (Some(_), _) => Kind::Snapshot,
        };
        Self {
            name,
            kind,
            origin: said(origin),
            mountpoint: said(mountpoint).filter(|path| path.starts_with('/')).map(PathBuf::from),
            dead: dead == YES,
            tree: said(tree),
        }
    }

    pub fn is_dataset(&self) -> bool {
        self.kind == Kind::Dataset
    }

    /// The name of its dataset, which may be itself.
    pub fn dataset(&self) -> &str {
        names::split(&self.name).0
    }
}

/// Whether a dataset has snapshots that do not go.
pub fn has_snapshots(seen: &[Seen], dataset: &str) -> bool {
    seen.iter().any(|it| it.kind == Kind::Snapshot && it.dataset() == dataset)
}

/// All that is in the dataset of one volume.
pub struct Volume {
    pub name: String,
    seen: Vec<Seen>,
}

impl Volume {
    /// Out of a look that has all of it; `None` if it is not there.
    pub fn among(all: &[Seen], name: &str) -> Option<Self> {
        let within = |it: &&Seen| !it.dead && names::is_within(&it.name, name);
        let seen: Vec<_> = all.iter().filter(within).cloned().collect();
        seen.iter().any(|it| it.name == name).then(|| Self { name: name.to_owned(), seen })
    }

    fn part(&self, it: &Seen) -> Option<Part> {
        it.is_dataset().then_some(&it.name)?;
        Part::of(it.name.strip_prefix(&self.name)?.strip_prefix('/')?)
    }

    /// What its sandbox sees. A volume that is half-made has none.
    pub fn tree(&self) -> io::Result<&Seen> {
        let named = self
            .seen
            .iter()
            .find(|it| it.name == self.name)
            .and_then(|volume| volume.tree.as_deref())
            .map(|tree| format!("{}/{tree}", self.name));
        let tree = self.seen.iter().find(|it| Some(&it.name) == named.as_ref());
        tree.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// One of its snapshots, in whichever of its datasets that is; `None` if it is gone.
    pub fn snapshot(&self, snapshot: &SnapshotId) -> Option<&Seen> {
        let is_it = |it: &&Seen| names::split(&it.name).1 == Some(snapshot.as_str());
        self.seen.iter().filter(|it| it.kind == Kind::Snapshot).find(is_it)
    }

    /// The clone that a snapshot is looked at by.
    pub fn view(&self, snapshot: &SnapshotId) -> Option<&Seen> {
        self.seen.iter().find(|it| self.part(it) == Some(Part::View(snapshot.clone())))
    }

    pub fn views(&self) -> impl Iterator<Item = &Seen> {
        self.seen.iter().filter(|it| matches!(self.part(it), Some(Part::View(_))))
    }

    /// Snapshots that layers were to be made from.
    pub fn captures(&self) -> impl Iterator<Item = &Seen> {
        let captured = |it: &&Seen| it.kind == Kind::Snapshot && names::is_capture(&it.name);
        self.seen.iter().filter(captured)
    }

    /// What was its tree, or was to be.
    pub fn former_trees(&self) -> impl Iterator<Item = &Seen> {
        let tree = self.tree().map(|tree| &tree.name).ok();
        let former = move |it: &&Seen| tree.is_some_and(|tree| *tree != it.name);
        self.seen.iter().filter(|it| self.part(it) == Some(Part::Tree)).filter(former)
    }

    /// Those of them that have no snapshots: they are nobody's.
    pub fn idle_trees(&self) -> impl Iterator<Item = &Seen> {
        self.former_trees().filter(|it| !has_snapshots(&self.seen, &it.name))
    }

    /// The last snapshot of a dataset, if it has one, going or not.
    pub fn last_snapshot(&self, dataset: &str) -> Option<&Seen> {
        last_snapshot(&self.seen, dataset)
    }
}

pub fn last_snapshot<'a>(seen: &'a [Seen], dataset: &str) -> Option<&'a Seen> {
    seen.iter().rev().find(|it| !it.is_dataset() && it.dataset() == dataset)
}

impl Zfs {
    /// All datasets and snapshots beneath one, itself included; none if that is not there.
    pub(super) fn look(&self, beneath: &str) -> io::Result<Vec<Seen>> {
        look(&self.tool, beneath)
    }

    /// What there is of a volume; `NotFound` if there is none.
    pub(super) fn volume(&self, id: &SandboxId) -> io::Result<Volume> {
        let name = self.names.volume(id);
        let seen = self.look(&name)?;
        Volume::among(&seen, &name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub fn look(tool: &super::Tool, beneath: &str) -> io::Result<Vec<Seen>> {
    let columns = ["name", "defer_destroy", "origin", "mountpoint", DEAD, TREE];
    match tool.list(beneath, columns) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        rows => Ok(rows?.into_iter().map(Seen::of).collect()),
    }
}
