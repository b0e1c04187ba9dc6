//! The mounted file system of all volumes.
//!
//! Opening it leads to the same state from every starting point: nothing there, an image that is not attached (after a
//! reboot), or a mount that a killed daemon left. It never mounts twice, and never uses a foreign file system.

use std::ffi::{CStr, OsStr};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags, open, statfs, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::image::{self, Origin};
use super::room::{Need, PoolSpace};
use super::size::{self, Bounds, Sizing};
use super::{BtrfsOptions, io_error, unusable};
use crate::{PoolHealth, StorageError};
use sandkeep_core::SandboxId;
use sandkeep_sys::{btrfs, loopdev::LoopDevice};

pub(super) struct Pool {
    path: PathBuf,
    volumes: PathBuf,
    layers: PathBuf,
    snapshots: PathBuf,
    pub kind: PoolKind,
    pub filesystem_id: [u8; 16],
    /// `None` if its size is fixed, or not ours to change.
    pub sizing: Option<Arc<Sizing>>,
    /// How large it was when it was opened.
    fixed_bytes: u64,
    /// Held by whoever has it open without being asked to.
    keeping: Mutex<()>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    /// A mounted image, used by us alone.
    Image,
    /// The file system of the data directory, which others use too.
    Shared,
}

impl Pool {
    pub fn open(data_dir: &Path, options: &BtrfsOptions) -> Result<Self, StorageError> {
        let path = data_dir.join("storage").join("btrfs");
        let what = || format!("open {}", path.display());
        let failed = |source| io_error(what(), source);
        if !rustix::process::geteuid().is_root() {
            return Err(unusable("mounting a pool and removing subvolumes need root"));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(failed)?;
        let kind = if is_btrfs(data_dir).map_err(failed)? {
            PoolKind::Shared
        } else {
            mount_image(&path, data_dir, options)?;
            PoolKind::Image
        };
        let top = open_dir(&path).map_err(failed)?;
        if kind == PoolKind::Image {
            // Also after a crash between two steps of a resize.
            let image = File::open(image::path(data_dir)).map_err(failed)?;
            match size::reach(&image, &top) {
                // The kernel finishes an interrupted operation. The pool reaches its size when it needs room.
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
                reached => reached.map_err(failed)?,
            }
        }
        let filesystem_id = btrfs::filesystem_id(&top).map_err(failed)?;
        let [volumes, layers, snapshots] =
            ["volumes", "layers", "snapshots"].map(|room| path.join(room));
        for room in [&volumes, &layers, &snapshots] {
            DirBuilder::new().recursive(true).mode(0o700).create(room).map_err(failed)?;
        }
        let bounds = Bounds::of(options).filter(|_| kind == PoolKind::Image);
        let sizing = bounds.map(|bounds| Sizing::new(data_dir, &path, filesystem_id, bounds));
        let sizing = sizing.transpose().map_err(failed)?;
        let fixed_bytes = PoolHealth::of(&top).map_err(|error| failed(error.into()))?.total_bytes;
        let keeping = Mutex::default();
        Ok(Self {
            path,
            volumes,
            layers,
            snapshots,
            kind,
            filesystem_id,
            sizing,
            fixed_bytes,
            keeping,
        })
    }

    /// The directory of the volumes. Opened for each operation: an open descriptor would prevent the pool from being
    /// unmounted.
    pub fn volumes(&self) -> io::Result<OwnedFd> {
        open_dir(&self.volumes)
    }

    /// The directory of the layers, opened like that of the volumes.
    pub fn layers(&self) -> io::Result<OwnedFd> {
        open_dir(&self.layers)
    }

    /// The parent directory of each volume's snapshots, opened like that of the volumes.
    pub fn snapshots(&self) -> io::Result<OwnedFd> {
        open_dir(&self.snapshots)
    }

    pub fn layer_path(&self, name: &CStr) -> PathBuf {
        self.layers.join(OsStr::from_bytes(name.to_bytes()))
    }

    pub fn volume_path(&self, id: &SandboxId) -> PathBuf {
        self.volumes.join(id.as_str())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pool is not unmounted for as long as this is held.
    pub fn keep_mounted(&self) -> MutexGuard<'_, ()> {
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has too little or too much of, after it has grown if that was needed and can be.
    pub fn keep_room(&self) -> io::Result<Need> {
        if let Some(sizing) = &self.sizing {
            return sizing.keep_room();
        }
        let room = PoolSpace::of(self.filesystem_id)?;
        Ok(room.map_or(Need::Nothing, |room| room.need(self.fixed_bytes, self.fixed_bytes)))
    }

    /// Makes it larger if it needs that and can be. `false`: it is as it was.
    pub fn grow(&self) -> io::Result<bool> {
        let Some(sizing) = &self.sizing else { return Ok(false) };
        let before = sizing.bytes();
        sizing.keep_room()?;
        Ok(sizing.bytes() > before)
    }

    /// How full it is. Space that it can still grow by counts as free.
    pub fn health(&self) -> io::Result<PoolHealth> {
        let health = PoolHealth::of(self.volumes()?)?;
        match &self.sizing {
            Some(sizing) => sizing.grown(health),
            None => Ok(health),
        }
    }

    /// Unmounts the pool, which detaches its loop device. If it is still in use, it stays.
    pub fn release(&self) -> Result<(), StorageError> {
        let _alone = self.sizing.as_ref().map(|sizing| sizing.alone());
        let _kept = self.keep_mounted();
        match self.kind {
            PoolKind::Shared => Ok(()),
            PoolKind::Image => match unmount(&self.path, UnmountFlags::NOFOLLOW) {
                // EINVAL: it is not mounted.
                Ok(()) | Err(Errno::BUSY | Errno::INVAL) => Ok(()),
                Err(error) => {
                    Err(io_error(format!("unmount {}", self.path.display()), error.into()))
                }
            },
        }
    }
}

pub(super) fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

fn is_btrfs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.f_type == btrfs::MAGIC)
}

fn is_mounted(path: &Path) -> io::Result<bool> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS)?;
    Ok(stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn mount_image(path: &Path, data_dir: &Path, options: &BtrfsOptions) -> Result<(), StorageError> {
    let failed = |source| io_error(format!("mount {}", path.display()), source);
    if is_mounted(path).map_err(failed)? {
        return check_mount(path, data_dir);
    }
    LoopDevice::available().map_err(no_loop_device)?;
    let image = image::open(data_dir, options)?;
    let mounted = attach_and_mount(&image.file, path);
    if mounted.is_err() && image.origin == Origin::Made {
        // The image is empty. If it stayed, it would indicate existing volumes, and `auto` would not choose another
        // storage.
        let _ = std::fs::remove_file(image::path(data_dir));
    }
    mounted
}

fn no_loop_device(error: io::Error) -> StorageError {
    unusable(format!("there is no loop device: {error}"))
}

fn attach_and_mount(image: &File, path: &Path) -> Result<(), StorageError> {
    let device = LoopDevice::attach(image).map_err(no_loop_device)?;
    // Without `nodiscard` the kernel returns freed blocks to the disk by itself, and the image would have holes where
    // sandboxes write; then a full disk could affect a sandbox within its quota.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    mount(device.path(), path, "btrfs", flags, c"nodiscard").map_err(|error| match error {
        Errno::NODEV => unusable("this kernel has no btrfs"),
        Errno::PERM | Errno::ACCESS => unusable(format!("this process may not mount: {error}")),
        error => io_error(format!("mount {}", path.display()), error.into()),
    })
    // From here on the mount holds the device, so it may be closed.
}

/// Whether the mounted file system is the one in our image, by its id.
fn check_mount(path: &Path, data_dir: &Path) -> Result<(), StorageError> {
    let other = || {
        let path = path.display();
        unusable(format!("something else is mounted at {path}; unmount it"))
    };
    let failed = |source| io_error(format!("look at {}", path.display()), source);
    if !image::path(data_dir).exists() || !is_btrfs(path).map_err(failed)? {
        return Err(other());
    }
    let image = image::open(data_dir, &BtrfsOptions::default())?;
    let mounted = btrfs::filesystem_id(open_dir(path).map_err(failed)?).map_err(failed)?;
    if mounted == image.filesystem_id { Ok(()) } else { Err(other()) }
}
