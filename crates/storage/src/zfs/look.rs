//! The content of the pool, from one run of `zfs`: the relations of datasets and snapshots, and which of them are dead.

use std::io;
use std::path::PathBuf;

use super::names::{self, Part};
use super::{DEAD, TREE, Zfs};
use sandkeep_core::{SandboxId, SnapshotId};

/// The value of a property that means yes.
pub const YES: &str = "on";

/// A dataset or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Including that of its dataset, if it is a snapshot.
    pub name: String,
    pub kind: Kind,
    /// The snapshot that it was cloned from.
    pub origin: Option<String>,
    pub mountpoint: Option<PathBuf>,
    /// It, or a parent, was removed, and is destroyed when nothing depends on it any more.
    pub dead: bool,
    /// The dataset of the tree, if it is a volume.
    tree: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dataset,
    Snapshot,
    /// A snapshot that is destroyed as soon as nothing needs it: it counts as gone.
    Going,
}

impl Seen {
    pub(super) fn of([name, going, origin, mountpoint, dead, tree]: [String; 6]) -> Self {
        // A property without a value is printed as a dash.
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

/// Whether a dataset has snapshots that are not being destroyed.
pub fn has_snapshots(seen: &[Seen], dataset: &str) -> bool {
    seen.iter().any(|it| it.kind == Kind::Snapshot && it.dataset() == dataset)
}

/// Everything in the dataset of one volume.
pub struct Volume {
    pub name: String,
    seen: Vec<Seen>,
}

impl Volume {
    /// Extracts a volume from a complete list; `None` if it does not exist.
    pub fn among(all: &[Seen], name: &str) -> Option<Self> {
        let within = |it: &&Seen| !it.dead && names::is_within(&it.name, name);
        let seen: Vec<_> = all.iter().filter(within).cloned().collect();
        seen.iter().any(|it| it.name == name).then(|| Self { name: name.to_owned(), seen })
    }

    fn part(&self, it: &Seen) -> Option<Part> {
        it.is_dataset().then_some(&it.name)?;
        Part::of(it.name.strip_prefix(&self.name)?.strip_prefix('/')?)
    }

    /// The sandbox's files. A half-created volume has none.
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

    /// One of its snapshots, in whichever of its datasets; `None` if it is gone.
    pub fn snapshot(&self, snapshot: &SnapshotId) -> Option<&Seen> {
        let is_it = |it: &&Seen| names::split(&it.name).1 == Some(snapshot.as_str());
        self.seen.iter().filter(|it| it.kind == Kind::Snapshot).find(is_it)
    }

    /// The clone for reading a snapshot.
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

    /// Former or intended trees.
    pub fn former_trees(&self) -> impl Iterator<Item = &Seen> {
        let tree = self.tree().map(|tree| &tree.name).ok();
        let former = move |it: &&Seen| tree.is_some_and(|tree| *tree != it.name);
        self.seen.iter().filter(|it| self.part(it) == Some(Part::Tree)).filter(former)
    }

    /// Those without snapshots: nothing needs them.
    pub fn idle_trees(&self) -> impl Iterator<Item = &Seen> {
        self.former_trees().filter(|it| !has_snapshots(&self.seen, &it.name))
    }

    /// The last snapshot of a dataset, if any, including those being destroyed.
    pub fn last_snapshot(&self, dataset: &str) -> Option<&Seen> {
        last_snapshot(&self.seen, dataset)
    }
}

pub fn last_snapshot<'a>(seen: &'a [Seen], dataset: &str) -> Option<&'a Seen> {
    seen.iter().rev().find(|it| !it.is_dataset() && it.dataset() == dataset)
}

impl Zfs {
    /// All datasets and snapshots below one, including itself; none if that does not exist.
    pub(super) fn look(&self, beneath: &str) -> io::Result<Vec<Seen>> {
        look(&self.tool, beneath)
    }

    /// Everything of a volume; `NotFound` if it does not exist.
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
