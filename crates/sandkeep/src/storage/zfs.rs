//! Volumes, layers and snapshots as ZFS datasets, by the program `zfs`: made, cloned and removed in the same time
//! whatever they hold, with quotas that hold.
//!
//! ```text
//! <given>/sandkeep-<random>/          all that is this data directory's; two of them on one pool do not meet
//!   volumes/<sandbox id>/             a volume, and the limit of its tree with all snapshots
//!     tree                            what the sandbox sees, and the limit of that
//!     tree@<snapshot id>              its snapshots
//!     past-<random>@<snapshot id>     those of a tree that a rollback replaced
//!     next-<random>                   a clone on its way to become the tree
//!     view-<snapshot id>              a clone that somebody looks at the snapshot by
//!   layers/<hex of chain id>@layer    a layer with all that is below it
//!   drafts/<random>                   layers in the making
//!   dead/<random>                     what is being removed, or waits until no clone needs it
//! <data>/storage/zfs/pool             which dataset it is, and how ids lie there
//! <data>/storage/zfs/mounted/
//!   <sandbox id>.<random>/            where a tree is mounted: nosuid, nodev
//!   draft.<random>/                   where a draft is
//! ```
//!
//! A clone needs the snapshot that it was made from for as long as it lives, and a snapshot its dataset. So nothing
//! that may have clones is destroyed in its place: it is renamed into `dead`, by which it is gone, and all its
//! snapshots are destroyed as soon as no clone needs them, which `zfs destroy -d` does by itself. What stays until
//! then is what the clones share with it, and counts for nobody.
//!
//! Invariant: a volume, a snapshot or a layer comes and goes by one command, and is as durable as the pool when that
//! returns. What a crash leaves between two of them is swept, or finished, when the storage is opened.
//!
//! Limits: what is in the layers below does not count, as far as it was there. A file of a layer that the sandbox
//! removes gives it that much room more.

mod burial;
mod command;
mod layers;
mod names;
mod place;
mod pool;
mod snapshots;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use names::{Dataset, InvalidDataset};

use super::offload::{Blocking, Offloaded};
use super::{
    Amount, Base, Ids, PoolHealth, Quota, Root, StorageCapabilities, StorageError, Usage, tree,
};
use crate::sandbox::SandboxId;
use command::{Reach, Tool, argument};
use names::Names;
use pool::Claim;

const NAME: &str = "zfs";
/// Properties of our own: the bytes that a tree had from layers, and those that a fork had from its source.
const BASE: &str = "sandkeep:base";
const GIVEN: &str = "sandkeep:given";
/// It is set whenever somebody measures: counts are as of the last transaction, and this makes one.
const MEASURED: &str = "sandkeep:measured";

pub type ZfsStorage = Offloaded<Zfs>;

pub struct Zfs {
    tool: Tool,
    names: Names,
    /// Beneath it everything is mounted.
    place: PathBuf,
    ids: Ids,
    /// Held while datasets are changed: what depends on what is looked at first.
    changing: Mutex<()>,
}

/// What a new dataset begins as.
#[derive(Clone, Copy, Debug)]
enum Start<'a> {
    Empty,
    CopyOf(&'a str),
}

impl ZfsStorage {
    /// Opens the storage of a data directory on a pool that is there, or makes it, and clears up what a crash left.
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

    /// Makes a dataset and mounts it, at a place that begins with `label`. `more` are properties of it.
    fn make(
        &self,
        name: &str,
        label: &str,
        start: Start<'_>,
        more: &[(&str, u64)],
    ) -> io::Result<PathBuf> {
        let path = self.new_place(label)?;
        let mountpoint = format!("mountpoint={}", argument(&path)?);
        let mut arguments = match start {
            Start::Empty => vec!["create"],
            Start::CopyOf(_) => vec!["clone"],
        };
        arguments.extend(["-o", "canmount=noauto", "-o", &mountpoint]);
        let more: Vec<_> = more.iter().map(|(key, value)| format!("{key}={value}")).collect();
        arguments.extend(more.iter().flat_map(|property| ["-o", property]));
        match start {
            Start::Empty => {}
            Start::CopyOf(snapshot) => arguments.push(snapshot),
        }
        arguments.push(name);
        let made = self.tool.run(&arguments).and_then(|_| self.mount(name, &path));
        if made.is_err() {
            let _ = place::release(&path);
        }
        made?;
        match start {
            Start::Empty => place::dress(&path, self.ids)?,
            Start::CopyOf(_) => {}
        }
        Ok(path)
    }

    /// Makes the volume's dataset and its tree. `given` bytes are in it that it has from no layer.
    fn make_volume(
        &self,
        id: &SandboxId,
        start: Start<'_>,
        quota: &Quota,
        (base, given): (u64, u64),
    ) -> Result<Root, StorageError> {
        let failed = |source| io_error(format!("create {id}"), source);
        let volume = self.names.volume(id);
        let mut arguments = vec!["create", "-o", "canmount=off"];
        let total = match quota.total_bytes.map(|total| total.checked_sub(given)) {
            None => None,
            // It would be full before it begins.
            Some(None | Some(0)) => return Err(failed(io::ErrorKind::QuotaExceeded.into())),
            Some(Some(rest)) => Some(format!("quota={rest}")),
        };
        let given = format!("{GIVEN}={given}");
        arguments.extend(["-o", &given]);
        arguments.extend(total.iter().flat_map(|total| ["-o", total]));
        arguments.push(&volume);
        self.tool.run(&arguments).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => StorageError::Exists { id: id.clone() },
            _ => failed(error),
        })?;
        let mut more = vec![(BASE, base)];
        more.extend(quota.tree_bytes.map(|bytes| ("refquota", base.saturating_add(bytes))));
        match self.make(&self.names.tree(id), id.as_str(), start, &more) {
            Ok(path) => Ok(Root::dir(path, self.ids)),
            Err(error) => {
                // What stays is listed.
                let _ = self.bury(&volume);
                Err(failed(error))
            }
        }
    }

    /// Numbers among the properties of a dataset or snapshot, in the order in which they were asked for.
    fn numbers<const N: usize>(&self, of: &str, properties: [&str; N]) -> io::Result<[u64; N]> {
        let rows = self.tool.get(of, &properties.join(","), Reach::Itself)?;
        let number = |property: &str| {
            let row = rows.iter().find(|row| row.property == property);
            let number = row.and_then(|row| row.value.parse().ok());
            number.ok_or_else(|| io::Error::other(format!("zfs tells no {property} of {of}")))
        };
        let mut numbers = [0; N];
        for (at, property) in properties.into_iter().enumerate() {
            numbers[at] = number(property)?;
        }
        Ok(numbers)
    }

    fn measure(&self, id: &SandboxId) -> io::Result<Usage> {
        let (tree, volume) = (self.names.tree(id), self.names.volume(id));
        self.tool.run(&["set", &format!("{MEASURED}=1"), &tree])?;
        let [referenced, refquota, base] = self.numbers(&tree, ["referenced", "refquota", BASE])?;
        let [used, quota, given] = self.numbers(&volume, ["used", "quota", GIVEN])?;
        // No limit is told as none.
        let limit = |limit: u64, more: u64| (limit != 0).then_some(limit.wrapping_add(more));
        Ok(Usage {
            tree: Amount {
                used_bytes: referenced.saturating_sub(base),
                limit_bytes: limit(refquota.saturating_sub(base), 0).filter(|_| refquota != 0),
            },
            total: Amount {
                used_bytes: used.saturating_add(given),
                limit_bytes: limit(quota, given),
            },
        })
    }

    /// What is told of something that is missing.
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
            None => self.make_volume(id, Start::Empty, quota, (0, 0)),
            Some(top) => {
                let start = Start::CopyOf(&top.snapshot);
                self.make_volume(id, start, quota, (top.bytes, 0))
            }
        }
    }

    /// It is mounted if it is not, as after a reboot.
    fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let tree = self.names.tree(id);
        let opened = self.mountpoint(&tree).and_then(|path| {
            let _changing = self.changing();
            self.mount(&tree, &path)?;
            Ok(Root::dir(path, self.ids))
        });
        opened.map_err(self.absent(id, "open"))
    }

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        let _changing = self.changing();
        let buried = self.bury(&self.names.volume(id));
        buried.map_err(|source| io_error(format!("destroy {id}"), source))
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        self.measure(id).map_err(self.absent(id, "measure"))
    }

    fn list(&self) -> io::Result<Vec<SandboxId>> {
        let volumes = self.names.volumes();
        let arguments = ["list", "-H", "-o", "name", "-t", "filesystem", "-d", "1", &volumes];
        let told = self.tool.run(&arguments)?;
        let beneath = format!("{volumes}/");
        let names = told.lines().filter_map(|name| name.strip_prefix(&beneath));
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        let [used, available] = self
            .numbers(self.names.given(), ["used", "available"])
            .map_err(|source| io_error("look at its pool", source))?;
        Ok(PoolHealth { total_bytes: used.saturating_add(available), free_bytes: available })
    }

    /// Where nothing is left, nothing stays in the pool either: the data directory may be about to go.
    fn close(&self) -> Result<(), StorageError> {
        let _changing = self.changing();
        self.leave().map_err(|source| io_error("leave its pool", source))
    }
}

fn random() -> String {
    tree::unused_name().to_string_lossy().into_owned()
}

fn io_error(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::of_io(NAME, what, source)
}

fn unusable(reason: impl Into<String>) -> StorageError {
    StorageError::Unusable { storage: NAME, reason: reason.into() }
}

#[cfg(test)]
pub(super) mod tests;
