//! Volumes, layers and snapshots as plain directories: works everywhere, without quotas.
//!
//! ```text
//! <data>/storage/local/         0700
//!   <sandbox id>/               0755: the root of a volume without layers
//!   .above/<sandbox id>/        a volume above layers
//!     upper/ work/              the sandbox's changes, and the overlay's work directory
//!     lowers                    the layers, lowest first, one per line
//!   .layers/<hex of diff id>/   a layer: one difference, shared by all images that have it
//!   .snapshots/<sandbox id>/    a directory per snapshot
//!   .drafts/<random>/           unfinished entries; removed when the storage is opened
//!   .shifted                    exists if ids cannot be mapped here: volumes have those of the shared range
//!   .trash/<random>/            entries being removed; emptied when the storage is opened
//! ```
//!
//! Invariant: a volume, a layer or a snapshot disappears at once, by one rename; only then is it emptied. Layers,
//! snapshots, and volumes above layers, are also created by one rename.
//!
//! A volume above layers is mounted as an overlay by the process that starts the sandbox, and never here. Where ids
//! cannot be mapped there are neither such volumes nor layers, because overlays do not work there either.

mod copies;
mod copy;
mod layers;
mod snapshots;
mod unchanged;

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, RwLock};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chmodat, fsync, mkdirat, open, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;

use super::offload::{Blocking, Offloaded};
use super::{Amount, Base, LayerId, PoolHealth, Quota, StorageCapabilities, StorageError, Usage};
use copies::Copies;
use sandkeep_core::{SandboxId, failpoint};
use sandkeep_sys::mount;
use sandkeep_tree::{Ids, Root, RootKind, untrusted};

const NAME: &str = "local";
const ABOVE: &CStr = c".above";
const LAYERS: &CStr = c".layers";
const SNAPSHOTS: &CStr = c".snapshots";
const DRAFTS: &CStr = c".drafts";
const TRASH: &CStr = c".trash";
/// Marks that ids are shifted here. Created while the storage is empty, and permanent: files have one kind of ids or
/// the other.
const SHIFTED: &CStr = c".shifted";

pub type LocalStorage = Offloaded<Local>;

pub struct Local {
    path: PathBuf,
    capabilities: StorageCapabilities,
    ids: Ids,
    volumes: OwnedFd,
    above: OwnedFd,
    layers: OwnedFd,
    snapshots: OwnedFd,
    drafts: OwnedFd,
    trash: OwnedFd,
    /// The measured size of a volume's snapshots, until they change.
    measured: Mutex<HashMap<SandboxId, u64>>,
    /// Held shared while a volume is created above layers and exclusively while a layer is removed, which must not be
    /// one that the volume is about to name.
    standing: RwLock<()>,
    copies: Copies,
}

impl LocalStorage {
    /// Opens or creates the storage of a data directory, and removes what a crash left.
    pub fn open(data_dir: &Path) -> Result<Self, StorageError> {
        let path = data_dir.join("storage").join("local");
        let inner = Local::open(path).map_err(|source| io_error("open its directory", source))?;
        inner.sweep();
        Ok(Self::new(inner))
    }

    /// Whether a data directory has volumes or layers here. An unreadable one counts as empty.
    pub(super) fn is_begun(data_dir: &Path) -> bool {
        holds_something(&data_dir.join("storage").join("local"))
    }
}

/// Whether the storage's directory contains volumes or layers.
fn holds_something(path: &Path) -> bool {
    let holds = |dir: &Path, what: fn(&str) -> bool| {
        std::fs::read_dir(dir).is_ok_and(|mut entries| {
            entries
                .any(|entry| entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(what)))
        })
    };
    let is_volume = |name: &str| name.parse::<SandboxId>().is_ok();
    let within = |name: &CStr| path.join(name.to_str().unwrap_or_default());
    holds(path, is_volume)
        || holds(&within(ABOVE), is_volume)
        || holds(&within(LAYERS), |name| LayerId::from_hex(name).is_some())
}

impl Local {
    fn open(path: PathBuf) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let volumes = open(&path, flags, Mode::empty())?;
        let room = |name: &CStr| match mkdirat(&volumes, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => untrusted::open_dir(&volumes, name),
            Err(error) => Err(error),
        };
        let (above, layers) = (room(ABOVE)?, room(LAYERS)?);
        let (snapshots, drafts, trash) = (room(SNAPSHOTS)?, room(DRAFTS)?, room(TRASH)?);
        let capabilities = StorageCapabilities {
            disk_quota: false,
            snapshots: true,
            id_mapped: id_mapped(&path)?,
        };
        let ids = ids(&path, &volumes, capabilities.id_mapped)?;
        Ok(Self {
            path,
            capabilities,
            ids,
            volumes,
            above,
            layers,
            snapshots,
            measured: Mutex::default(),
            drafts,
            trash,
            standing: RwLock::new(()),
            copies: Copies::default(),
        })
    }

    /// Failures are retried at the next start.
    fn sweep(&self) {
        for (what, room) in [("trash", &self.trash), ("drafts", &self.drafts)] {
            if let Err(error) = untrusted::empty(room) {
                tracing::warn!(%error, path = %self.path.display(), "cannot empty the {what}");
            }
        }
    }

    fn create_empty(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let name = c_name(id);
        match mkdirat(&self.volumes, &name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(StorageError::Exists { id: id.clone() }),
            Err(error) => return Err(io_error(format!("create {id}"), error.into())),
        }
        // Not by mkdir's mode, which the umask restricts.
        self.ids
            .give_to_root(&self.volumes, &name)
            .and_then(|()| {
                chmodat(&self.volumes, &name, Mode::from_raw_mode(0o755), AtFlags::empty())
            })
            .map_err(|error| io_error(format!("create {id}"), error.into()))?;
        Ok(Root::dir(self.path.join(id.as_str()), self.ids))
    }

    /// Removes a directory with its content.
    fn remove(&self, parent: &OwnedFd, name: &CStr) -> io::Result<()> {
        let trashed = untrusted::unused_name();
        match renameat(parent, name, &self.trash, &trashed) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        match untrusted::open_dir(&self.trash, &trashed) {
            Ok(top) => {
                untrusted::empty(top)?;
                Ok(unlinkat(&self.trash, &trashed, AtFlags::REMOVEDIR)?)
            }
            // A file in the place of a volume.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Ok(unlinkat(&self.trash, &trashed, AtFlags::empty())?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The volume's own data.
    fn own_dir(&self, id: &SandboxId) -> Result<OwnedFd, StorageError> {
        match open_named(&self.volumes, id) {
            Err(StorageError::NotFound { .. }) => self.upper(id),
            opened => opened,
        }
    }
}

impl Blocking for Local {
    const NAME: &str = NAME;

    fn capabilities(&self) -> StorageCapabilities {
        self.capabilities
    }

    /// There is never a quota.
    fn create(&self, id: &SandboxId, base: &Base, _: &Quota) -> Result<Root, StorageError> {
        // With two different bases it would exist twice.
        match self.root(id) {
            Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(error),
            Ok(_) => return Err(StorageError::Exists { id: id.clone() }),
        }
        match base.layers() {
            [] => self.create_empty(id),
            layers => self.create_above(id, layers),
        }
    }

    fn root_kind(&self, base: &Base) -> RootKind {
        match base.layers() {
            [] => RootKind::Dir,
            _ => RootKind::Overlay,
        }
    }

    fn root(&self, id: &SandboxId) -> Result<Root, StorageError> {
        match open_named(&self.volumes, id) {
            Err(StorageError::NotFound { .. }) => self.root_above(id),
            Err(error) => Err(error),
            Ok(_) => Ok(Root::dir(self.path.join(id.as_str()), self.ids)),
        }
    }

    fn destroy(&self, id: &SandboxId) -> Result<(), StorageError> {
        let failed = |source| io_error(format!("destroy {id}"), source);
        // The volume last, so that after a crash it is still listed.
        self.remove_snapshots(id).map_err(failed)?;
        failpoint!("local.destroy_after_snapshots");
        self.remove(&self.volumes, &c_name(id)).map_err(failed)?;
        self.remove(&self.above, &c_name(id)).map_err(failed)
    }

    fn break_off(&self, id: &SandboxId) {
        self.copies.break_off(id);
    }

    fn usage(&self, id: &SandboxId) -> Result<Usage, StorageError> {
        let own = self.own_dir(id)?;
        let unlimited = |used_bytes| Amount { used_bytes, limit_bytes: None };
        let measure = || {
            let tree = untrusted::disk_bytes(own)?;
            // Data that a snapshot shares with the tree, if the file system supports it, counts for both.
            let total = tree.saturating_add(self.snapshots_bytes(id)?);
            Ok(Usage { tree: unlimited(tree), total: unlimited(total) })
        };
        measure().map_err(|source| io_error(format!("measure {id}"), source))
    }

    fn list(&self) -> io::Result<Vec<SandboxId>> {
        let mut entries = untrusted::entries(&self.volumes)?;
        entries.extend(untrusted::entries(&self.above)?);
        Ok(entries
            .into_iter()
            .filter(|(_, kind)| *kind == FileType::Directory)
            .filter_map(|(name, _)| name.to_str().ok()?.parse().ok())
            .collect())
    }

    fn pool_health(&self) -> Result<PoolHealth, StorageError> {
        PoolHealth::of(&self.volumes)
            .map_err(|source| io_error("look at its filesystem", source.into()))
    }

    /// There is nothing to release.
    fn close(&self, _idle: &[SandboxId]) -> Result<(), StorageError> {
        Ok(())
    }
}

/// Opens the directory of a volume.
fn open_named(parent: &OwnedFd, id: &SandboxId) -> Result<OwnedFd, StorageError> {
    untrusted::open_dir(parent, &c_name(id)).map_err(|error| match error {
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => StorageError::NotFound { id: id.clone() },
        error => io_error(format!("open {id}"), error.into()),
    })
}

fn c_name(id: &SandboxId) -> CString {
    CString::new(id.as_str()).expect("an id has only letters and digits")
}

fn io_error(what: impl Into<String>, source: io::Error) -> StorageError {
    StorageError::of_io(NAME, what, source)
}

/// Whether root can give every sandbox its own ids here.
fn id_mapped(path: &Path) -> io::Result<bool> {
    if rustix::process::geteuid().is_root() { mount::can_be_id_mapped(path) } else { Ok(false) }
}

/// How ids are stored here. A non-root daemon has only its own, which nobody shifts.
fn ids(path: &Path, volumes: &OwnedFd, id_mapped: bool) -> io::Result<Ids> {
    let is_shifted = || statat(volumes, SHIFTED, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    if id_mapped || !rustix::process::geteuid().is_root() {
        return Ok(if is_shifted() { Ids::Shifted } else { Ids::Plain });
    }
    if !is_shifted() && holds_something(path) {
        return Ok(Ids::Plain);
    }
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    fsync(openat(volumes, SHIFTED, flags, Mode::RUSR)?)?;
    Ok(Ids::Shifted)
}

#[cfg(test)]
pub(super) mod tests;
