//! A layer while it is applied, entry by entry.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chmodat, fstat, futimens, linkat, mkdirat, mknodat, openat,
    statat, symlinkat,
};
use rustix::io::Errno;

use super::path::{self, LayerPath, PathProblem};
use super::removing::remove;
use super::view::{Found, LookupError, Node, View, file_type, is_whiteout};
use super::whiteout::{Mark, mark_opaque};
use super::{Applied, LayerError, Owners, Stands, Target, attributes};
use crate::limits;
use crate::storage::Whiteouts;
use crate::template::archive::attributes as found;
use crate::template::archive::{Attributes, Entries, Entry, Kind, Moment, Segment};
use crate::template::beneath::{self, open_dir};
use crate::template::image::Progress;

/// What a directory is that nobody has described.
const DIRECTORY_MODE: u32 = 0o755;

pub(super) struct Applying<'a> {
    pub(super) view: View<'a>,
    /// The directory of the entry before, which nearly always is the next one's.
    parent: Option<Parent>,
    /// All directories that this layer touched, and what is left to do on them.
    directories: BTreeMap<LayerPath, Pending>,
    directories_bytes: usize,
    /// All other paths that this layer touched, as hashes that nobody outside can foresee. Only where
    /// whiteouts remove: else whatever is in the layer's directory is the layer's.
    files: HashSet<u64>,
    hashes: RandomState,
    applied: Applied,
    buffer: Vec<u8>,
}

struct Parent {
    /// As the entry had it, and without the links in it.
    written: LayerPath,
    path: LayerPath,
    fd: Rc<OwnedFd>,
}

/// What a directory gets when the layer is complete.
enum Pending {
    /// It was there; only its time changed, because something in it did.
    Time(Moment),
    All(Attributes),
}

/// Tells how far it is.
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

pub(super) fn at(path: &LayerPath, source: io::Error) -> LayerError {
    LayerError::Write { path: path.shown(), source }
}

impl<'a> Applying<'a> {
    pub(super) fn new(target: &Target<'a>) -> Self {
        let owners = match rustix::process::geteuid().is_root() {
            true => Owners::Kept,
            false => Owners::Ours,
        };
        Self {
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
            applied: Applied {
                entries: 0,
                bytes: 0,
                devices_skipped: 0,
                xattrs_skipped: 0,
                owners,
                stands: Stands::Alone,
            },
            buffer: vec![0; limits::LAYER_COPY_BYTES],
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
        let path = LayerPath::clean(&entry.path).map_err(|problem| refused(problem.to_string()))?;
        let Some((parent, name)) = path.split() else {
            return self.take_root(&entry).map_err(|what| refused(what.to_owned()));
        };
        match Mark::of(name) {
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
        match &entry.kind {
            Kind::File { size_bytes, segments } => {
                self.make_way(&path, &fd, name)?;
                let file = create(&fd, name).map_err(|error| at(&path, error.into()))?;
                self.fill(&file, *size_bytes, segments.as_deref(), entries, meter, &path)?;
                attributes::set(&file, &entry.attributes, &mut self.applied)
            }
            Kind::Directory => return self.take_directory(path, &fd, name, entry.attributes),
            Kind::Symlink { target } => {
                path::check_link(target).map_err(|problem| refused(problem.to_string()))?;
                self.make_way(&path, &fd, name)?;
                symlinkat(target.as_slice(), &*fd, name).and_then(|()| {
                    let (fd, applied) = (fd.as_fd(), &mut self.applied);
                    attributes::set_on_special(fd, name, &entry.attributes, applied)
                })
            }
            Kind::Fifo => {
                self.make_way(&path, &fd, name)?;
                let mode = Mode::from_raw_mode(entry.attributes.mode);
                mknodat(&*fd, name, FileType::Fifo, mode, 0).and_then(|()| {
                    let (fd, applied) = (fd.as_fd(), &mut self.applied);
                    attributes::set_on_special(fd, name, &entry.attributes, applied)?;
                    chmodat(fd, name, mode, AtFlags::empty())
                })
            }
            Kind::Hardlink { target } => return self.take_hardlink(path, target, &refused),
            Kind::Device => Ok(()),
        }
        .map_err(|error| at(&path, error.into()))?;
        self.note_file(&path);
        Ok(())
    }

    fn take_root(&mut self, entry: &Entry) -> Result<(), &'static str> {
        if entry.kind != Kind::Directory {
            return Err("only a directory can be the root");
        }
        attributes::check_owner(&entry.attributes)
            .map_err(|_| "the root's owner is out of range")?;
        self.directories.insert(LayerPath::default(), Pending::All(entry.attributes.clone()));
        Ok(())
    }

    fn take_directory(
        &mut self,
        path: LayerPath,
        parent: &OwnedFd,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<(), LayerError> {
        let there = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW);
        match there {
            Ok(stat) if file_type(&stat) == FileType::Directory => {}
            Ok(_) => {
                self.make_way(&path, parent, name)?;
                self.make_directory(&path, parent, name, Hides::WhatIsBelow)?;
            }
            Err(Errno::NOENT) => self.make_directory(&path, parent, name, Hides::Nothing)?,
            Err(error) => return Err(at(&path, error.into())),
        }
        self.note_directory(path, Pending::All(attributes))
    }

    /// Makes a directory that only its owner can enter, until the end.
    fn make_directory(
        &mut self,
        path: &LayerPath,
        parent: &OwnedFd,
        name: &[u8],
        hides: Hides,
    ) -> Result<(), LayerError> {
        let make = || {
            mkdirat(parent, name, Mode::RWXU)?;
            match (self.view.whiteouts, hides) {
                (Whiteouts::Overlay, Hides::WhatIsBelow) => mark_opaque(open_dir(parent, name)?),
                (Whiteouts::Overlay, Hides::Nothing) | (Whiteouts::Remove, _) => Ok(()),
            }
        };
        make().map_err(|error: Errno| at(path, error.into()))
    }

    /// Another name for a file. One of a layer below in an overlay is first copied into this one, as
    /// the overlay itself would do.
    fn take_hardlink(
        &mut self,
        path: LayerPath,
        target: &[u8],
        refused: &dyn Fn(String) -> LayerError,
    ) -> Result<(), LayerError> {
        let named = String::from_utf8_lossy(target).into_owned();
        let target = LayerPath::clean(target).map_err(|problem| refused(problem.to_string()))?;
        let Some((directory, name)) = target.split() else {
            return Err(refused("it links to the root".to_owned()));
        };
        let directory = self.resolve(&directory)?;
        let target = self.join(&directory, name)?;
        let node = match self.look(&target)? {
            Found::Nowhere => {
                return Err(refused(format!("it links to {named:?}, which is not there")));
            }
            Found::Here(node) | Found::Below(node)
                if file_type(&node.stat) == FileType::Directory =>
            {
                return Err(refused(format!("it links to {named:?}, which is a directory")));
            }
            Found::Here(_) => None,
            Found::Below(node) => Some(node),
        };
        if target == path {
            return Ok(());
        }
        let from = self.enter(&directory)?;
        if let Some(node) = node {
            self.copy_up(&node, &from, &target)?;
        }
        self.note_file(&target);
        let Some((parent, own_name)) = path.split() else { return Ok(()) };
        let into = self.enter(&parent)?;
        self.make_way(&path, &into, own_name)?;
        linkat(&from, name, &into, own_name, AtFlags::empty())
            .map_err(|error| at(&path, error.into()))?;
        self.note_file(&path);
        Ok(())
    }

    /// Copies what is below, bytes and all, under the same name into this layer.
    fn copy_up(
        &mut self,
        node: &Node,
        directory: &OwnedFd,
        path: &LayerPath,
    ) -> Result<(), LayerError> {
        let Some((_, name)) = path.split() else { return Ok(()) };
        let mut copy = || -> rustix::io::Result<()> {
            match file_type(&node.stat) {
                FileType::Symlink => {
                    let target = rustix::fs::readlinkat(&node.fd, c"", Vec::new())?;
                    symlinkat(target, directory, name)?;
                }
                FileType::RegularFile => return self.copy_file_up(node, directory, name),
                other => mknodat(directory, name, other, Mode::RUSR, 0)?,
            }
            let own = found::plain(&node.stat);
            attributes::set_on_special(directory.as_fd(), name, &own, &mut self.applied)
        };
        copy().map_err(|error| at(path, error.into()))
    }

    fn copy_file_up(
        &mut self,
        node: &Node,
        directory: &OwnedFd,
        name: &[u8],
    ) -> rustix::io::Result<()> {
        let mut from = File::from(beneath::reopen(&node.fd)?);
        let mut into = create(directory, name)?;
        let copied = io::copy(&mut from, &mut into)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        self.applied.bytes += copied;
        let own = found::of(from.as_fd(), &node.stat)?;
        attributes::set(&into, &own, &mut self.applied)
    }

    /// Writes the bytes of a file.
    fn fill<R: Read>(
        &mut self,
        mut file: &File,
        size_bytes: u64,
        segments: Option<&[Segment]>,
        entries: &mut Entries<R>,
        meter: &mut Meter<'_>,
        path: &LayerPath,
    ) -> Result<(), LayerError> {
        let Some(segments) = segments else {
            loop {
                let read = entries.read_data(&mut self.buffer)?;
                if read == 0 {
                    return Ok(());
                }
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
                file.write_all_at(&self.buffer[..read], offset).map_err(|error| at(path, error))?;
                offset += read as u64;
                self.applied.bytes += read as u64;
                meter.look();
            }
        }
        Ok(())
    }

    /// Takes away what has the name of an entry that is no directory.
    fn make_way(
        &mut self,
        path: &LayerPath,
        parent: &OwnedFd,
        name: &[u8],
    ) -> Result<(), LayerError> {
        match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(at(path, error.into())),
            // Paths may have led through these, so what is known of the way is no longer true.
            Ok(stat) if matches!(file_type(&stat), FileType::Directory | FileType::Symlink) => {
                self.forget_parent();
            }
            Ok(_) => {}
        }
        remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(path, error))
    }

    /// The directory of an entry, made if it is missing.
    fn parent(&mut self, written: &LayerPath) -> Result<(LayerPath, Rc<OwnedFd>), LayerError> {
        if let Some(known) = self.parent.as_ref().filter(|known| known.written == *written) {
            return Ok((known.path.clone(), Rc::clone(&known.fd)));
        }
        let path = self.resolve(written)?;
        let fd = Rc::new(self.enter(&path)?);
        let known = Parent { written: written.clone(), path: path.clone(), fd: Rc::clone(&fd) };
        self.parent = Some(known);
        Ok((path, fd))
    }

    pub(super) fn forget_parent(&mut self) {
        self.parent = None;
    }

    /// Opens a directory of this layer. What is missing of the way to it is made, as it is in the layers
    /// below or as root's, 0755.
    pub(super) fn enter(&mut self, path: &LayerPath) -> Result<OwnedFd, LayerError> {
        if self.directories.contains_key(path) {
            let there = open_dir(self.view.upper, path.bytes());
            if !matches!(there, Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)) {
                return there.map_err(|error| at(path, error.into()));
            }
        }
        let mut done = LayerPath::default();
        let mut directory = self.touch(&done, None)?;
        for part in path.parts() {
            done = self.join(&done, part)?;
            directory = self.touch(&done, Some((&directory, part)))?;
        }
        Ok(directory)
    }

    /// Opens one directory, or makes it, and notes that this layer has it.
    fn touch(
        &mut self,
        path: &LayerPath,
        place: Option<(&OwnedFd, &[u8])>,
    ) -> Result<OwnedFd, LayerError> {
        let os = |error: Errno| at(path, error.into());
        let Some((parent, name)) = place else {
            let root = open_dir(self.view.upper, b"").map_err(os)?;
            self.note_existing(path, &root)?;
            return Ok(root);
        };
        let hides = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if file_type(&stat) == FileType::Directory => {
                let there = open_dir(parent, name).map_err(os)?;
                self.note_existing(path, &there)?;
                return Ok(there);
            }
            // It was hidden, and this layer has something in it all the same.
            Ok(stat) if is_whiteout(&stat) => {
                remove(self.view.upper, parent.as_fd(), name).map_err(|error| at(path, error))?;
                Hides::WhatIsBelow
            }
            Ok(_) => return Err(os(Errno::NOTDIR)),
            Err(Errno::NOENT) => Hides::Nothing,
            Err(error) => return Err(os(error)),
        };
        let own = match self.look(path)? {
            Found::Below(node) if hides == Hides::Nothing => {
                let below = beneath::reopen(&node.fd).map_err(os)?;
                found::of(below.as_fd(), &node.stat).map_err(os)?
            }
            Found::Below(_) | Found::Here(_) | Found::Nowhere => {
                Attributes { mode: DIRECTORY_MODE, ..Attributes::default() }
            }
        };
        self.make_directory(path, parent, name, hides)?;
        self.note_directory(path.clone(), Pending::All(own))?;
        open_dir(parent, name).map_err(os)
    }

    fn note_existing(&mut self, path: &LayerPath, fd: &OwnedFd) -> Result<(), LayerError> {
        if self.directories.contains_key(path) {
            return Ok(());
        }
        let stat = fstat(fd).map_err(|error| at(path, error.into()))?;
        self.note_directory(path.clone(), Pending::Time(found::modified(&stat)))
    }

    fn note_directory(&mut self, path: LayerPath, pending: Pending) -> Result<(), LayerError> {
        self.directories_bytes += path.bytes().len();
        if self.directories_bytes > limits::LAYER_DIRECTORIES_MAX_BYTES {
            let max = limits::LAYER_DIRECTORIES_MAX_BYTES as u64;
            return Err(LayerError::TooLarge { what: "bytes in the paths of directories", max });
        }
        self.directories.insert(path, pending);
        Ok(())
    }

    fn note_file(&mut self, path: &LayerPath) {
        if self.view.whiteouts == Whiteouts::Remove {
            self.files.insert(self.hashes.hash_one(path.bytes()));
        }
    }

    /// Whether this layer has something under a path that is there.
    pub(super) fn is_ours(&self, path: &LayerPath) -> bool {
        match self.view.whiteouts {
            Whiteouts::Overlay => true,
            Whiteouts::Remove => {
                self.directories.contains_key(path)
                    || self.files.contains(&self.hashes.hash_one(path.bytes()))
            }
        }
    }

    pub(super) fn resolve(&self, path: &LayerPath) -> Result<LayerPath, LayerError> {
        self.view.resolve(path).map_err(|error| match error {
            LookupError::Os(error) => at(path, error.into()),
            other => LayerError::Entry { path: path.shown(), what: other.to_string() },
        })
    }

    pub(super) fn look(&self, path: &LayerPath) -> Result<Found, LayerError> {
        self.view.look(path).map_err(|error| at(path, error.into()))
    }

    pub(super) fn join(&self, path: &LayerPath, name: &[u8]) -> Result<LayerPath, LayerError> {
        path.join(name).map_err(|problem: PathProblem| LayerError::Entry {
            path: path.shown(),
            what: problem.to_string(),
        })
    }

    fn stands(&self) -> Result<Stands, LayerError> {
        if self.view.whiteouts == Whiteouts::Remove {
            return Ok(Stands::Alone);
        }
        // A layer that does not say what its root is got that of the layers below, which must be the usual.
        let root = LayerPath::default();
        let borrowed = match self.directories.get(&root) {
            Some(Pending::All(_)) => false,
            Some(Pending::Time(_)) | None => {
                let stat = fstat(self.view.upper).map_err(|error| at(&root, error.into()))?;
                let foreign =
                    self.applied.owners == Owners::Kept && (stat.st_uid, stat.st_gid) != (0, 0);
                foreign || stat.st_mode & 0o7777 != DIRECTORY_MODE
            }
        };
        match borrowed || self.view.asked_below.get() {
            true => Ok(Stands::OnWhatIsBelow),
            false => Ok(Stands::Alone),
        }
    }

    /// The layer is complete: directories get what they wait for, the deepest first, because one may
    /// forbid its owner to enter it.
    pub(super) fn finish(mut self) -> Result<Applied, LayerError> {
        self.applied.stands = self.stands()?;
        for (path, pending) in std::mem::take(&mut self.directories).into_iter().rev() {
            match open_dir(self.view.upper, path.bytes()) {
                Ok(directory) => settle(&directory, &pending, &mut self.applied)
                    .map_err(|error| at(&path, error.into()))?,
                // Something else has its place by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(at(&path, error.into())),
            }
        }
        Ok(self.applied)
    }
}

/// What a new directory does to those of the same name in the layers below.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hides {
    Nothing,
    /// It takes the place of something that hid them.
    WhatIsBelow,
}

fn settle(directory: &OwnedFd, pending: &Pending, applied: &mut Applied) -> rustix::io::Result<()> {
    match pending {
        Pending::Time(modified) => futimens(directory, &attributes::times(*modified)),
        Pending::All(own) => {
            attributes::clear_xattrs(directory.as_fd(), applied.owners)?;
            attributes::set(directory, own, applied)
        }
    }
}

/// A new file that only we can read, for now.
fn create(directory: &OwnedFd, name: &[u8]) -> rustix::io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}
