//! Applies a layer, entry by entry.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, mknodat, openat, statat, symlinkat};
use rustix::io::Errno;

use super::directory::{Parent, Pending};
use super::removing::remove;
use super::view::{FoundEntry, LookupError, View, file_type};
use super::whiteout::Mark;
use super::{Applied, LayerError, SpaceCheck, Target, attributes};
use crate::image::Progress;
use sandkeep_core::limits;
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    Effort,
    archive::{Entries, Entry, Kind, Segment},
    tree_path::{self, PathProblem, TreePath},
};

/// The meaning of entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Some of them are whiteouts.
    OfLayer,
    /// No special meaning.
    Plain,
}

pub(super) struct Applying<'a> {
    names: Names,
    pub(super) room: SpaceCheck,
    pub(super) view: View<'a>,
    /// The directory of the previous entry, which nearly always is the next one's.
    pub(super) parent: Option<Parent>,
    /// All directories that this layer touched, and what is left to do for them.
    pub(super) directories: BTreeMap<TreePath, Pending>,
    pub(super) directories_bytes: usize,
    /// All other paths that this layer touched, as unpredictable hashes. Only for `Whiteouts::Remove`: otherwise
    /// everything in the layer's directory belongs to the layer.
    files: HashSet<u64>,
    hashes: RandomState,
    pub(super) applied: Applied,
    buffer: Vec<u8>,
    /// The budget for files of layers below.
    pub(super) copied_up: Effort,
}

#[derive(Clone, Copy)]
enum Special<'a> {
    Symlink(&'a [u8]),
    Fifo,
}

/// Reports the progress.
pub(super) struct Meter<'a> {
    taken: Arc<AtomicU64>,
    told: u64,
    progress: &'a Progress,
}

impl<'a> Meter<'a> {
    pub(super) fn new(taken: Arc<AtomicU64>, progress: &'a Progress) -> Self {
        Self { taken, told: 0, progress }
    }

    pub(super) fn look(&mut self) {
        if self.taken.load(Ordering::Relaxed) >= self.told + limits::LAYER_PROGRESS_BYTES {
            self.end();
        }
    }

    pub(super) fn end(&mut self) {
        self.told = self.taken.load(Ordering::Relaxed);
        self.progress.tell(self.told);
    }
}

pub(super) fn at(path: &TreePath, source: io::Error) -> LayerError {
    LayerError::Write { path: path.shown(), source }
}

impl<'a> Applying<'a> {
    pub(super) fn new(target: &Target<'a>, names: Names, room: SpaceCheck) -> Self {
        Self {
            names,
            room,
            view: View {
                upper: target.root,
                whiteouts: target.whiteouts,
                lowers: target.lowers,
                asked_below: Cell::new(false),
            },
            parent: None,
            directories: BTreeMap::new(),
            directories_bytes: 0,
            files: HashSet::new(),
            hashes: RandomState::new(),
            applied: Applied::nothing(target.ids),
            buffer: vec![0; limits::LAYER_COPY_BYTES],
            copied_up: Effort::new(limits::LAYER_MAX_BYTES, Duration::MAX),
        }
    }

    /// Applies one entry, whose bytes come next from `entries`.
    pub(super) fn take<R: Read>(
        &mut self,
        entry: Entry,
        entries: &mut Entries<R>,
        meter: &mut Meter<'_>,
    ) -> Result<(), LayerError> {
        self.applied.entries += 1;
        let refused = |what: String| {
            let path = String::from_utf8_lossy(&entry.path).into_owned();
            LayerError::Entry { path, what }
        };
        let path = TreePath::clean(&entry.path).map_err(|problem| refused(problem.to_string()))?;
        let beside: usize = entry.attributes.xattrs.iter().map(|(_, value)| value.len()).sum();
        self.room.take(beside as u64, 1).map_err(|error| at(&path, error))?;
        let Some((parent, name)) = path.split() else {
            return self.take_root(&entry).map_err(|problem| refused(problem.to_string()));
        };
        let mark = match self.names {
            Names::OfLayer => Mark::of(name),
            Names::Plain => Mark::None,
        };
        match mark {
            Mark::None => {}
            Mark::Hides(hidden) => return self.hide(&parent, hidden),
            Mark::Opaque => return self.hide_all(&parent),
            Mark::Meaningless => return Ok(()),
            Mark::Nonsense => return Err(refused("it is a whiteout of nothing".to_owned())),
        }
        if entry.kind == Kind::Device {
            self.applied.devices_skipped += 1;
            return Ok(());
        }
        if let Err(id) = attributes::check_owner(&entry.attributes) {
            let max = limits::LAYER_ID_MAX;
            return Err(refused(format!(
                "its owner or group is {id}, beyond {max}, the last a sandbox has"
            )));
        }
        let (directory, fd) = self.parent(&parent)?;
        let path = self.join(&directory, name)?;
        match entry.kind {
            Kind::Directory => self.take_directory(path, &fd, name, entry.attributes),
            Kind::Hardlink { ref target } => self.take_hardlink(path, target, &refused),
            Kind::Symlink { ref target } => {
                tree_path::check_link(target).map_err(|problem| refused(problem.to_string()))?;
                self.take_special(path, &fd, name, &entry, Special::Symlink(target))
            }
            Kind::Fifo => self.take_special(path, &fd, name, &entry, Special::Fifo),
            Kind::File { size_bytes, ref segments } => {
                self.make_way(&path, &fd, name)?;
                let file = create(&fd, name).map_err(|error| at(&path, error.into()))?;
                self.fill(&file, size_bytes, segments.as_deref(), entries, meter, &path)?;
                attributes::set(&file, &entry.attributes, &mut self.applied)
                    .map_err(|error| at(&path, error.into()))?;
                self.note_file(&path);
                Ok(())
            }
            Kind::Device => Ok(()),
        }
    }

    /// Entries without content.
    fn take_special(
        &mut self,
        path: TreePath,
        parent: &OwnedFd,
        name: &[u8],
        entry: &Entry,
        special: Special<'_>,
    ) -> Result<(), LayerError> {
        self.make_way(&path, parent, name)?;
        let mode = Mode::from_raw_mode(entry.attributes.mode);
        let mut make = || {
            match special {
                Special::Symlink(target) => symlinkat(target, parent, name)?,
                Special::Fifo => mknodat(parent, name, FileType::Fifo, Mode::RUSR, 0)?,
            }
            let applied = &mut self.applied;
            attributes::set_on_special(parent.as_fd(), name, &entry.attributes, applied)?;
            match special {
                Special::Symlink(_) => Ok(()),
                // Last, because changing the owner may clear bits.
                Special::Fifo => chmodat(parent, name, mode, AtFlags::empty()),
            }
        };
        make().map_err(|error: Errno| at(&path, error.into()))?;
        self.note_file(&path);
        Ok(())
    }

    fn take_root(&mut self, entry: &Entry) -> Result<(), PathProblem> {
        if entry.kind != Kind::Directory {
            return Err(PathProblem::NotTheRoot);
        }
        attributes::check_owner(&entry.attributes).map_err(|_| PathProblem::RootOwner)?;
        self.directories.insert(TreePath::default(), Pending::All(entry.attributes.clone()));
        Ok(())
    }

    /// Writes the content of a file.
    fn fill<R: Read>(
        &mut self,
        mut file: &File,
        size_bytes: u64,
        segments: Option<&[Segment]>,
        entries: &mut Entries<R>,
        meter: &mut Meter<'_>,
        path: &TreePath,
    ) -> Result<(), LayerError> {
        let Some(segments) = segments else {
            loop {
                let read = entries.read_data(&mut self.buffer)?;
                if read == 0 {
                    return Ok(());
                }
                self.room.take(read as u64, 0).map_err(|error| at(path, error))?;
                file.write_all(&self.buffer[..read]).map_err(|error| at(path, error))?;
                self.applied.bytes += read as u64;
                meter.look();
            }
        };
        file.set_len(size_bytes).map_err(|error| at(path, error))?;
        for segment in segments {
            let (mut offset, end) = (segment.offset, segment.offset + segment.size_bytes);
            while offset < end {
                let room =
                    usize::try_from(end - offset).unwrap_or(usize::MAX).min(self.buffer.len());
                let read = entries.read_data(&mut self.buffer[..room])?;
                self.room.take(read as u64, 0).map_err(|error| at(path, error))?;
                file.write_all_at(&self.buffer[..read], offset).map_err(|error| at(path, error))?;
                offset += read as u64;
                self.applied.bytes += read as u64;
                meter.look();
            }
        }
        Ok(())
    }

    /// Removes an existing entry with the name of a new one that is not a directory.
    pub(super) fn make_way(
        &mut self,
        path: &TreePath,
        parent: &OwnedFd,
        name: &[u8],
    ) -> Result<(), LayerError> {
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(at(path, error.into())),
            // Cached paths may have led through these, so the cache is invalid.
            Ok(stat) if matches!(file_type(&stat), FileType::Directory | FileType::Symlink) => {
                self.forget_parent();
            }
            Ok(_) => {}
        }
        remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(path, error))
    }

    pub(super) fn note_file(&mut self, path: &TreePath) {
        if self.view.whiteouts == Whiteouts::Remove {
            self.files.insert(self.hashes.hash_one(path.bytes()));
        }
    }

    /// Whether this layer has an entry at an existing path.
    pub(super) fn is_ours(&self, path: &TreePath) -> bool {
        match self.view.whiteouts {
            Whiteouts::Overlay => true,
            Whiteouts::Remove => {
                self.directories.contains_key(path)
                    || self.files.contains(&self.hashes.hash_one(path.bytes()))
            }
        }
    }

    pub(super) fn resolve(&self, path: &TreePath) -> Result<TreePath, LayerError> {
        self.view.resolve(path).map_err(|error| match error {
            LookupError::Os(error) => at(path, error.into()),
            other => LayerError::Entry { path: path.shown(), what: other.to_string() },
        })
    }

    pub(super) fn look(&self, path: &TreePath) -> Result<FoundEntry, LayerError> {
        self.view.look(path).map_err(|error| at(path, error.into()))
    }

    pub(super) fn join(&self, path: &TreePath, name: &[u8]) -> Result<TreePath, LayerError> {
        path.join(name).map_err(|problem: PathProblem| LayerError::Entry {
            path: path.shown(),
            what: problem.to_string(),
        })
    }
}

/// A new file that only we can read, for now.
pub(super) fn create(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}
