//! Volumes, layers and snapshots as ZFS datasets, using the program `zfs`: created, cloned and removed in the same time
//! regardless of their size, with enforced quotas.
//!
//! ```text
//! <given>/sandkeep-<random>/          everything of this data directory; several of them can share a pool
//!   volumes/<sandbox id>/             a volume, and the limit of its tree with all snapshots
//!     tree.<random>                   the sandbox's files, with their limit; the volume's property names it
//!     tree.<random>@<snapshot id>     snapshots, of the tree or of one that a rollback replaced
//!     view-<snapshot id>.<random>     a clone for reading the snapshot
//!   layers/<hex of chain id>.<random>@layer
//!                                     a layer with everything below it; without the snapshot it is a draft
//! <data>/storage/zfs/pool             which dataset it is, and how ids are stored there
//! <data>/storage/zfs/mounted/
//!   <sandbox id>.<random>/            mount point of a tree: nosuid, nodev
//!   draft.<random>/                   mount point of a draft
//! ```
//!
//! A clone needs its origin snapshot for as long as it lives, and a snapshot needs its dataset. So an entry that may
//! have clones is not destroyed: it is marked dead, which makes it invisible, and destroyed as soon as nothing depends
//! on it. The data that remains until then is shared with the clones, and counts for nobody. Nothing is ever renamed:
//! ZFS would unmount the clones of it, under the sandboxes that run there.
//!
//! Invariant: a volume, a snapshot or a layer is created and removed by one command, and is as durable as the pool when
//! that returns. The remains of a crash between two commands are removed when the storage is opened.
//!
//! Limits: the layers' own data does not count. If the sandbox removes a file of a layer, it gains that much room.

mod census;
mod command;
mod foreign;
mod layers;
mod limit;
mod look;
mod names;
mod place;
mod pool;
mod removal;
mod snapshots;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use census::{Holding, Whose};
pub use names::{Dataset, DatasetSnapshot, InvalidDataset, InvalidDatasetSnapshot};

use super::offload::{Blocking, Offloaded};
use super::{
    Amount, Base, ForeignTree, PoolHealth, Quota, StorageCapabilities, StorageError, Usage,
};
use command::{Reach, Row, Tool, argument};
use look::{Volume, YES};
use names::Names;
use pool::Claim;
use sandkeep_core::SandboxId;
use sandkeep_tree::{Ids, Root, RootKind, untrusted};

const NAME: &str = "zfs";
/// Our own properties: the bytes that a tree got from layers, and those that a fork got from its source.
const BASE: &str = "sandkeep:base";
const GIVEN: &str = "sandkeep:given";
/// A property of a volume's dataset: the last part of its tree's name.
const TREE: &str = "sandkeep:tree";
/// Marks a removed dataset, with everything in it.
const DEAD: &str = "sandkeep:dead";
/// Set before each measurement: counts are as of the last transaction, and this causes one.
const MEASURED: &str = "sandkeep:measured";

pub type ZfsStorage = Offloaded<Zfs>;

pub struct Zfs {
    tool: Tool,
    names: Names,
    /// Everything is mounted below it.
    place: PathBuf,
    ids: Ids,
    /// Held while datasets are changed, because changes depend on what was read first.
    changing: Mutex<()>,
    /// Dead and unneeded datasets that were in use at the last attempt to destroy them.
    in_use: Mutex<BTreeSet<String>>,
    /// Volumes whose limit may be above the requested one.
    lenient: Mutex<BTreeSet<SandboxId>>,
}

/// The initial content of a new dataset.
#[derive(Clone, Copy, Debug)]
enum DatasetOrigin<'a> {
    Empty,
    CopyOf(&'a str),
}

impl ZfsStorage {
    /// Opens or creates the storage of a data directory on an existing pool, and cleans up after a crash.
    pub fn open(data_dir: &Path, given: &Dataset) -> Result<Self, StorageError> {
        let inner = Zfs::open(data_dir, given)?;
        inner.settle();
        Ok(Self::new(inner))
    }

    /// The pool or dataset that a data directory was given.
    pub fn given(data_dir: &Path) -> Option<Dataset> {
        Claim::read(&place::of(data_dir)).ok().flatten().and_then(|claim| claim.given())
    }
}

impl Zfs {
    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates a dataset with the properties `more`, and mounts it at a place that starts with `label`.
    fn make(
        &self,
        name: &str,
        label: &str,
        start: DatasetOrigin<'_>,
        more: &[(&str, u64)],
    ) -> io::Result<PathBuf> {
        let path = self.new_place(label)?;
        let mountpoint = format!("mountpoint={}", argument(&path)?);
        let mut arguments = match start {
            DatasetOrigin::Empty => vec!["create"],
            DatasetOrigin::CopyOf(_) => vec!["clone"],
        };
        arguments.extend(["-o", "canmount=noauto", "-o", &mountpoint]);
        let more: Vec<_> = more.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.extend(more.iter().flat_map(|property| ["-o", property]));
        match start {
            DatasetOrigin::Empty => {}
            DatasetOrigin::CopyOf(snapshot) => arguments.push(snapshot),
        }
        arguments.push(name);
        let made = self.tool.run(&arguments).and_then(|_| self.mount(name, &path));
        if made.is_err() {
            let _ = place::release(&path);
        }
        made?;
        match start {
            DatasetOrigin::Empty => place::set_root_attributes(&path, self.ids)?,
            DatasetOrigin::CopyOf(_) => {}
        }
        Ok(path)
    }

    /// Creates the volume's dataset and its tree, which contains `given` bytes that are not from a layer.
    fn make_volume(
        &self,
        id: &SandboxId,
        start: DatasetOrigin<'_>,
        quota: &Quota,
        (base, given): (u64, u64),
    ) -> Result<Root, StorageError> {
        let failed = |source| io_error(format!("create {id}"), source);
        let volume = self.names.volume(id);
        let mut arguments = vec!["create", "-o", "canmount=off"];
        let total = match quota.total_bytes.map(|total| total.checked_sub(given)) {
            None => None,
            // It would be full from the start.
            Some(None | Some(0)) => return Err(failed(io::ErrorKind::QuotaExceeded.into())),
            Some(Some(rest)) => Some(format!("quota={rest}")),
        };
        let tree = names::new_tree(&random());
        let (is_given, is_tree) = (format!("{GIVEN}={given}"), format!("{TREE}={tree}"));
        arguments.extend(["-o", &is_given, "-o", &is_tree]);
        arguments.extend(total.iter().flat_map(|total| ["-o", total]));
        arguments.push(&volume);
        self.tool.run(&arguments).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StorageError::Exists { id: id.clone() },
            _ => failed(error),
        })?;
        let asked = quota.tree_bytes.map(|bytes| base.saturating_add(bytes));
        let more = self.limits(id, base, asked, base.saturating_add(given));
        match self.make(&format!("{volume}/{tree}"), id.as_str(), start, &more) {
            Ok(path) => Ok(Root::dir(path, self.ids)),
            Err(error) => {
                // If that fails, it is listed.
                let _ = self.remove_dataset(&volume);
                Err(failed(error))
            }
        }
    }

    /// Numeric properties of a dataset or snapshot, in the requested order.
    fn numbers<const N: usize>(&self, of: &str, properties: [&str; N]) -> io::Result<[u64; N]> {
        let rows = self.tool.get(of, &properties.join(","), Reach::Itself)?;
        let mut numbers = [0; N];
        for (at, property) in properties.into_iter().enumerate() {
            numbers[at] = number(&rows, of, property)?;
        }
        Ok(numbers)
    }

    fn measure(&self, id: &SandboxId) -> io::Result<Usage> {
        let volume = self.names.volume(id);
        self.tool.run(&["set", &format!("{MEASURED}=1"), &volume])?;
        let asked =
            ["used", "quota", GIVEN, "referenced", limit::PROPERTIES, BASE, TREE, DEAD].join(",");
        let rows = self.tool.get(&volume, &asked, Reach::Children)?;
        let said = |property| value(&rows, &volume, property);
        let tree = match (said(DEAD), said(TREE)) {
            (Some(YES), _) | (_, None) => return Err(io::ErrorKind::NotFound.into()),
            (_, Some(tree)) => format!("{volume}/{tree}"),
        };
        let of_volume = |property| number(&rows, &volume, property);
        let of_tree = |property| number(&rows, &tree, property);
        let (quota, given) = (of_volume("quota")?, of_volume(GIVEN)?);
        let (limit, base) = (limit::asked(&rows, &tree)?, of_tree(BASE)?);
        // `zfs` reports no limit as 0.
        Ok(Usage {
            tree: Amount {
                used_bytes: of_tree("referenced")?.saturating_sub(base),
                limit_bytes: limit.map(|limit| limit.saturating_sub(base)),
            },
            total: Amount {
                used_bytes: of_volume("used")?.saturating_add(given),
                limit_bytes: (quota != 0).then(|| quota.saturating_add(given)),
            },
        })
    }

    /// The path of a volume's tree, mounted if necessary.
    fn open_tree(&self, volume: &Volume) -> io::Result<PathBuf> {
        let tree = volume.tree()?;
        let path = self.place_of(tree)?;
        self.mount(&tree.name, path)?;
        Ok(path.to_owned())
    }

    /// The error for something that is missing.
    fn absent(&self, id: &SandboxId, what: &str) -> impl FnOnce(io::Error) -> StorageError + use<> {
        let (id, what) = (id.clone(), format!("{what} {id}"));
        move |error| match error.kind() {
            io::ErrorKind::NotFound => StorageError::NotFound { id },
            _ => io_error(what, error),
        }
    }
}

impl Blocking for Zfs {
    const NAME: &str = NAME;

    fn capabilities(&self) -> StorageCapabilities {
        StorageCapabilities { disk_quota: true, snapshots: true, id_mapped: self.ids == Ids::Plain }
    }

    fn create(&self, id: &SandboxId, base: &Base, quota: &Quota) -> Result<Root, StorageError> {
        let _changing = self.changing();
        match self.top(base.layers())? {
            None => self.make_volume(id, DatasetOrigin::Empty, quota, (0, 0)),
            Some(top) => {
                let start = DatasetOrigin::CopyOf(&top.snapshot);
                self.make_volume(id, start, quota, (top.bytes, 0))
            }
        }
    }

    /// It is mounted if necessary, as after a reboot.
    fn root_kind(&self, _: &Base) -> RootKind {
        match self.ids {
            Ids::Plain => RootKind::Dir,
            Ids::Shifted => RootKind::Shifted,
        }
    }

    fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let _changing = self.changing();
        let opened = self.volume(id).and_then(|volume| self.open_tree(&volume));
        opened.map(|path| Root::dir(path, self.ids)).map_err(self.absent(id, "open"))
    }

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        let _changing = self.changing();
        let buried = self.remove_dataset(&self.names.volume(id));
        buried.map_err(|source| io_error(format!("destroy {id}"), source))
    }

    fn foreign(self: &Arc<Self>, snapshot: &DatasetSnapshot) -> Result<ForeignTree, StorageError> {
        self.open_foreign(snapshot)
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.measure(id).map_err(self.absent(id, "measure"))
    }

    fn list(&self) -> io::Result<Vec<SandboxId>> {
        let rows = self.tool.get(&self.names.volumes(), DEAD, Reach::Children)?;
        let alive = rows.into_iter().filter(|row| row.value != YES);
        Ok(alive.filter_map(|row| self.names.sandbox(&row.name)).collect())
    }

    fn tend(&self, id: Option<&SandboxId>) -> Result<(), StorageError> {
        let all = match id {
            Some(id) => vec![id.clone()],
            None => self.lenient().iter().cloned().collect(),
        };
        all.iter().try_for_each(|id| {
            let tended = self.tend_volume(id);
            tended.map_err(|source| io_error(format!("look after the limit of {id}"), source))
        })
    }

    /// Datasets that were in use when they should have been destroyed go first, if possible.
    fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        self.collect_late().map_err(|source| io_error("clear up in its pool", source))?;
        let [used, available] = self
            .numbers(self.names.given(), ["used", "available"])
            .map_err(|source| io_error("look at its pool", source))?;
        Ok(PoolHealth { total_bytes: used.saturating_add(available), free_bytes: available })
    }

    /// If nothing is left, the pool is cleaned up as well: the data directory may be about to be removed.
    fn close(&self, _idle: &[SandboxId]) -> Result<(), StorageError> {
        let _changing = self.changing();
        self.leave().map_err(|source| io_error("leave its pool", source))
    }
}

/// The value of one property.
fn value<'a>(rows: &'a [Row], of: &str, property: &str) -> Option<&'a str> {
    let row = rows.iter().find(|row| row.name == of && row.property == property);
    row.map(|row| row.value.as_str()).filter(|value| *value != "-")
}

fn number(rows: &[Row], of: &str, property: &str) -> io::Result<u64> {
    if rows.iter().any(|row| row.name == of) {
        value(rows, of, property)
            .and_then(|value| value.parse().ok())
            .ok_or_else(|| io::Error::other(format!("zfs tells no {property} of {of}")))
    } else {
        Err(io::ErrorKind::NotFound.into())
    }
}

fn random() -> String {
    untrusted::unused_name().to_string_lossy().into_owned()
}

fn io_error(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::of_io(NAME, what, source)
}

fn unusable(reason: impl Into<String>) -> StorageError {
    StorageError::Unusable { storage: NAME, reason: reason.into() }
}

#[cfg(test)]
pub(super) mod tests;
