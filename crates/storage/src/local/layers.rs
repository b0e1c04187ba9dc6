//! Layers as directories, and volumes above them.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};

use rustix::fs::{
    FileType, Gid, Mode, OFlags, RenameFlags, Uid, fchmod, fchown, fgetxattr, fstat, fsync,
    mkdirat, open, openat, renameat_with, syncfs,
};
use rustix::io::Errno;

use super::copy::{Copy, Purpose};
use super::{DRAFTS, Local, NAME, c_name, io_error, open_named};
use crate::layer::check_count;
use crate::offload::{BlockingLayers, keep};
use crate::{LayerDraft, LayerId, LayerKey, StorageError, Whiteouts};
use sandkeep_core::{SandboxId, SnapshotId};
use sandkeep_tree::{Ids, OPAQUE, Root, untrusted};

pub(super) const UPPER: &CStr = c"upper";
const WORK: &CStr = c"work";
const LOWERS: &CStr = c"lowers";

impl Local {
    fn can_stack(&self) -> Result<(), StorageError> {
        match self.ids {
            Ids::Plain => Ok(()),
            Ids::Shifted => {
                let what = "keep layers on a filesystem that cannot be id-mapped";
                Err(StorageError::Unsupported { storage: NAME, what })
            }
        }
    }

    /// Creates a volume above these layers.
    pub(super) fn create_above(
        &self,
        id: &SandboxId,
        layers: &[LayerId],
    ) -> Result<Root, StorageError> {
        self.can_stack()?;
        let _standing = self.standing.read().unwrap_or_else(PoisonError::into_inner);
        let top = self.open_all(layers)?;
        let failed = |source| io_error(format!("create {id}"), source);
        let draft = untrusted::unused_name();
        let made = self.fill_volume(&draft, layers, top.as_ref()).and_then(|()| {
            Ok(renameat_with(
                &self.drafts,
                &draft,
                &self.above,
                c_name(id),
                RenameFlags::NOREPLACE,
            )?)
        });
        if let Err(error) = made {
            // If that fails, the next start removes it.
            let _ = self.remove(&self.drafts, &draft);
            return Err(match error.kind() {
                io::ErrorKind::AlreadyExists => StorageError::Exists { id: id.clone() },
                _ => failed(error),
            });
        }
        self.root_above(id)
    }

    fn fill_volume(
        &self,
        name: &CStr,
        layers: &[LayerId],
        top: Option<&OwnedFd>,
    ) -> io::Result<()> {
        mkdirat(&self.drafts, name, Mode::RWXU)?;
        let volume = untrusted::open_dir(&self.drafts, name)?;
        furnish(&volume, layers)?;
        look_alike(&untrusted::open_dir(&volume, UPPER)?, top)
    }

    /// The root of a volume above layers.
    pub(super) fn root_above(&self, id: &SandboxId) -> Result<Root, StorageError> {
        let volume = open_named(&self.above, id)?;
        let failed = |source| io_error(format!("open {id}"), source);
        let lowers = self.visible(&read_lowers(&volume).map_err(failed)?)?;
        let path = self.within(super::ABOVE).join(id.as_str());
        Ok(Root::Overlay { lowers, upper: path.join("upper"), work: path.join("work") })
    }

    /// The own data of a volume above layers.
    pub(super) fn upper(&self, id: &SandboxId) -> Result<OwnedFd, StorageError> {
        let volume = open_named(&self.above, id)?;
        untrusted::open_dir(volume, UPPER)
            .map_err(|error| io_error(format!("open {id}"), error.into()))
    }

    /// The directories of the layers that are visible from above. An overlay ignores an opaque mark on a layer's root,
    /// so the layers that it hides are left out.
    fn visible(&self, layers: &[LayerId]) -> Result<Vec<PathBuf>, StorageError> {
        let dir = self.within(super::LAYERS);
        let mut paths = Vec::with_capacity(layers.len());
        for layer in layers.iter().rev() {
            let opened = self.open_layer(layer)?;
            paths.push(dir.join(layer.hex()));
            if is_opaque(&opened)
                .map_err(|error| io_error(format!("read {layer}"), error.into()))?
            {
                break;
            }
        }
        paths.reverse();
        Ok(paths)
    }

    fn open_layer(&self, layer: &LayerId) -> Result<OwnedFd, StorageError> {
        untrusted::open_dir(&self.layers, &file_name(layer)).map_err(|error| match error {
            Errno::NOENT => StorageError::LayerMissing { layer: layer.clone() },
            error => io_error(format!("open {layer}"), error.into()),
        })
    }

    /// Whether all of these exist; returns the topmost.
    fn open_all(&self, layers: &[LayerId]) -> Result<Option<OwnedFd>, StorageError> {
        check_count(layers)?;
        layers.iter().try_fold(None, |_, layer| Ok(Some(self.open_layer(layer)?)))
    }

    /// Copies the own data of a volume or a snapshot.
    fn copy_into(
        &self,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        draft: &LayerDraft,
    ) -> Result<(), StorageError> {
        if self.base_of(id)? != below {
            let what = "make a layer above others than those of its volume";
            return Err(StorageError::Unsupported { storage: NAME, what });
        }
        let own = match snapshot {
            Some(snapshot) => self.snapshot_tree(id, snapshot)?,
            None => self.own_dir(id)?,
        };
        let copied = open_path(&draft.root).and_then(|to| {
            self.copies.run(id, |effort| Copy::new(Purpose::Layer, to, effort).run(own))
        });
        copied.map_err(|source| io_error(format!("copy {id}"), source))
    }

    /// The layers below a volume.
    fn base_of(&self, id: &SandboxId) -> Result<Vec<LayerId>, StorageError> {
        match open_named(&self.volumes, id) {
            Ok(_) => return Ok(Vec::new()),
            Err(StorageError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
        let volume = open_named(&self.above, id)?;
        read_lowers(&volume).map_err(|source| io_error(format!("open {id}"), source))
    }

    fn within(&self, name: &CStr) -> PathBuf {
        self.path.join(OsStr::from_bytes(name.to_bytes()))
    }
}

impl BlockingLayers for Local {
    fn layer_key(layers: &[LayerId]) -> Option<LayerKey> {
        layers.last().map(|layer| LayerKey(layer.clone()))
    }

    fn draft_layer(
        self: &Arc<Self>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<Option<LayerDraft>, StorageError> {
        self.can_stack()?;
        let top = self.open_all(below)?;
        let lowers = self.visible(below)?;
        match self.open_layer(layer) {
            Ok(_) => return Ok(None),
            Err(StorageError::LayerMissing { .. }) => {}
            Err(error) => return Err(error),
        }
        let name = untrusted::unused_name();
        let made = mkdirat(&self.drafts, &name, Mode::RWXU).map_err(io::Error::from);
        made.and_then(|()| look_alike(&untrusted::open_dir(&self.drafts, &name)?, top.as_ref()))
            .map_err(|source| io_error(format!("draft {layer}"), source))?;
        let root = self.within(DRAFTS).join(OsStr::from_bytes(name.as_bytes()));
        let storage = Arc::clone(self);
        let discard = move || {
            if let Err(error) = storage.remove(&storage.drafts, &name) {
                tracing::warn!(%error, "a draft of a layer stays until the next start");
            }
        };
        let key = LayerKey(layer.clone());
        Ok(Some(LayerDraft::new(root, Whiteouts::Overlay, key, discard).above(lowers)))
    }

    /// Its content is on disk before its name.
    fn publish(&self, draft: &LayerDraft) -> io::Result<()> {
        let name = draft.root.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let name = CString::new(name.as_bytes())?;
        syncfs(untrusted::open_dir(&self.drafts, &name)?)?;
        let (from, to) = (&self.drafts, &self.layers);
        renameat_with(from, &name, to, file_name(&draft.key().0), RenameFlags::NOREPLACE)?;
        Ok(fsync(to)?)
    }

    fn layer_from(
        self: &Arc<Self>,
        id: &SandboxId,
        snapshot: Option<&SnapshotId>,
        below: &[LayerId],
        layer: &LayerId,
    ) -> Result<(), StorageError> {
        let Some(draft) = self.draft_layer(below, layer)? else { return Ok(()) };
        self.copy_into(id, snapshot, below, &draft)?;
        keep(self.as_ref(), draft)
    }

    fn layers(&self) -> io::Result<Vec<LayerKey>> {
        let entries = untrusted::entries(&self.layers)?;
        let directories = entries.into_iter().filter(|(_, kind)| *kind == FileType::Directory);
        let ids = directories.filter_map(|(name, _)| LayerId::from_hex(name.to_str().ok()?));
        Ok(ids.map(LayerKey).collect())
    }

    fn remove_layer(&self, layer: &LayerKey) -> Result<(), StorageError> {
        let _alone = self.standing.write().unwrap_or_else(PoisonError::into_inner);
        let failed = |source| io_error(format!("remove {layer}"), source);
        for (name, _) in untrusted::entries(&self.above).map_err(|error| failed(error.into()))? {
            let Some(id) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            match self.base_of(&id) {
                Ok(base) if base.contains(&layer.0) => {
                    return Err(StorageError::LayerInUse { layer: layer.clone(), id });
                }
                Ok(_) | Err(StorageError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        self.remove(&self.layers, &file_name(&layer.0)).map_err(failed)
    }
}

fn file_name(layer: &LayerId) -> CString {
    CString::new(layer.hex()).expect("hexadecimal digits hold no NUL")
}

pub(super) fn open_path(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Writes into a directory what makes it a volume above layers.
fn furnish(volume: &OwnedFd, layers: &[LayerId]) -> io::Result<()> {
    mkdirat(volume, UPPER, Mode::RWXU)?;
    mkdirat(volume, WORK, Mode::RWXU)?;
    let lines: String = layers.iter().map(|layer| format!("{layer}\n")).collect();
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(volume, LOWERS, flags, Mode::RUSR | Mode::WUSR)?;
    File::from(file).write_all(lines.as_bytes())
}

/// The same with the base of another volume.
pub(super) fn furnish_like(other: &OwnedFd, volume: &OwnedFd) -> io::Result<()> {
    furnish(volume, &read_lowers(other)?)
}

/// Gives a new root directory mode and owner of the one below.
fn look_alike(new: &OwnedFd, below: Option<&OwnedFd>) -> io::Result<()> {
    let Some(below) = below else { return Ok(fchmod(new, Mode::from_raw_mode(0o755))?) };
    let stat = fstat(below)?;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    fchown(new, Some(uid), Some(gid))?;
    Ok(fchmod(new, Mode::from_raw_mode(stat.st_mode))?)
}

/// An empty list was lost in a power failure: no volume has an empty base here.
fn read_lowers(volume: &OwnedFd) -> io::Result<Vec<LayerId>> {
    let file = openat(volume, LOWERS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    let layers: Result<Vec<LayerId>, _> = text.lines().map(str::parse).collect();
    match layers {
        Ok(layers) if !layers.is_empty() => Ok(layers),
        Ok(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "it does not say what it stands on"))
        }
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

/// Whether a directory hides everything below it.
fn is_opaque(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let mut value = [0; 2];
    match fgetxattr(directory, OPAQUE, &mut value) {
        Ok(length) => Ok(value[..length] == *b"y"),
        Err(Errno::NODATA | Errno::NOTSUP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error),
    }
}
