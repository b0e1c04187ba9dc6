//! A directory as an archive: a stream that is generated while it is read. The same content gives the same bytes,
//! whatever the file system's order of names, so that a layer made from it has one digest.
//!
//! The directory is not trusted: no link is followed and no mount crossed. It should not change meanwhile; if a file
//! does, reading fails.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, OFlags, Stat, fstat, readlinkat};

use super::header;
use crate::beneath;
use crate::effort::{Contents, Effort};
use crate::untrusted;
use sandkeep_core::limits;

/// The prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";

/// The owner of an archive's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeOwner {
    AsFound,
    All { uid: u32, gid: u32 },
}

/// Whether a path, relative to the directory, is included in the archive. The content of an excluded directory is
/// excluded too.
pub type Filter = Box<dyn Fn(&[u8]) -> Kept + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Yes,
    No,
}

/// A reader of a directory's tar.
pub struct TreeArchive {
    open: Vec<Level>,
    /// The path of the deepest level.
    path: Vec<u8>,
    owner: TreeOwner,
    filter: Filter,
    effort: Effort,
    /// The first names of files with several, by device and inode.
    linked: HashMap<(u64, u64), Vec<u8>>,
    /// Bytes that come before anything else.
    ready: io::Cursor<Vec<u8>>,
    file: Option<Content>,
    state: State,
}

struct Level {
    directory: OwnedFd,
    /// In reverse order.
    names: Vec<CString>,
    /// Length of the parent's path.
    parent_bytes: usize,
}

/// A file in progress.
pub(super) struct Content {
    file: Contents,
    padding_bytes: usize,
}

#[derive(PartialEq, Eq)]
enum State {
    Begun,
    Within,
    Over,
}

impl TreeArchive {
    pub fn new(directory: OwnedFd, owner: TreeOwner, filter: Filter) -> io::Result<Self> {
        let names = names(&directory)?;
        Ok(Self {
            open: vec![Level { directory, names, parent_bytes: 0 }],
            path: Vec::new(),
            owner,
            filter,
            // The reader determines the speed.
            effort: Effort::new(limits::LAYER_MAX_BYTES, Duration::MAX),
            linked: HashMap::new(),
            ready: io::Cursor::default(),
            file: None,
            state: State::Begun,
        })
    }

    /// Everything in a directory, unchanged.
    pub fn whole(directory: OwnedFd) -> io::Result<Self> {
        Self::new(directory, TreeOwner::AsFound, Box::new(|_| Kept::Yes))
    }

    /// Prepares the next header, or the end mark.
    fn advance(&mut self) -> io::Result<()> {
        let Some(level) = self.open.last_mut() else {
            self.state = State::Over;
            self.ready = io::Cursor::new(header::END_MARK.to_vec());
            return Ok(());
        };
        if self.state == State::Begun {
            self.state = State::Within;
            let stat = fstat(&level.directory)?;
            let directory = level.directory.try_clone()?;
            return self.describe(b"./", &directory, &stat);
        }
        let Some(name) = level.names.pop() else {
            self.path.truncate(level.parent_bytes);
            self.open.pop();
            return Ok(());
        };
        let before = self.path.len();
        if before > 0 {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(name.to_bytes());
        let done = match (self.filter)(&self.path) {
            Kept::Yes => self.enter(&name, before),
            Kept::No => Ok(Entered::Nothing),
        };
        let shown = String::from_utf8_lossy(&self.path).into_owned();
        match done.map_err(|error| io::Error::new(error.kind(), format!("{shown}: {error}")))? {
            Entered::Directory => {}
            Entered::Nothing => self.path.truncate(before),
        }
        Ok(())
    }

    /// Adds the entry at the present path.
    fn enter(&mut self, name: &CStr, parent_bytes: usize) -> io::Result<Entered> {
        if name.to_bytes().starts_with(WHITEOUT) {
            let what = "no layer can hold it, because in one its name means that something is gone";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let parent = &self.open[self.open.len() - 1].directory;
        let node = beneath::open(parent, name.to_bytes(), OFlags::PATH)?;
        let stat = fstat(&node)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = beneath::open_dir(parent, name.to_bytes())?;
                self.descend(directory, &stat, parent_bytes)?;
                return Ok(Entered::Directory);
            }
            FileType::RegularFile => {
                let file =
                    beneath::open(parent, name.to_bytes(), OFlags::RDONLY | OFlags::NONBLOCK)
                        .map_err(untrusted::leased)?;
                self.file(file)?;
            }
            FileType::Symlink => {
                let target = readlinkat(&node, c"", Vec::new())?.into_bytes();
                let path = self.path.clone();
                self.ready = header::symlink(&path, &target, &self.attributes(None, &stat)?);
            }
            FileType::Fifo => {
                let path = self.path.clone();
                self.ready = header::fifo(&path, &self.attributes(None, &stat)?);
            }
            // None of these is useful elsewhere.
            FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => {}
        }
        Ok(Entered::Nothing)
    }

    fn descend(&mut self, directory: OwnedFd, stat: &Stat, parent_bytes: usize) -> io::Result<()> {
        if self.open.len() >= limits::WALK_DEPTH_MAX {
            let max = limits::WALK_DEPTH_MAX;
            return Err(io::Error::other(format!("its directories are nested deeper than {max}")));
        }
        let mut path = self.path.clone();
        path.push(b'/');
        self.describe(&path, &directory, stat)?;
        let names = names(&directory)?;
        self.open.push(Level { directory, names, parent_bytes });
        Ok(())
    }

    fn file(&mut self, fd: OwnedFd) -> io::Result<()> {
        // Of the opened file, in case it is not the one that was checked.
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(changed());
        }
        let path = self.path.clone();
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&(stat.st_dev, stat.st_ino)) {
                self.ready = header::hardlink(&path, first, &self.attributes(None, &stat)?);
                return Ok(());
            }
            self.linked.insert((stat.st_dev, stat.st_ino), path.clone());
        }
        let size_bytes = u64::try_from(stat.st_size).unwrap_or(0);
        self.ready = header::file(&path, size_bytes, &self.attributes(Some(&fd), &stat)?);
        let file = Contents::whole(File::from(fd), size_bytes, self.effort.clone())?;
        self.file = Some(Content::new(file));
        Ok(())
    }

    fn describe(&mut self, path: &[u8], directory: &OwnedFd, stat: &Stat) -> io::Result<()> {
        self.ready = header::directory(path, &self.attributes(Some(directory), stat)?);
        Ok(())
    }

    fn attributes(&self, file: Option<&OwnedFd>, stat: &Stat) -> io::Result<super::Attributes> {
        let mut found = match file {
            Some(file) => super::attributes::of(file.as_fd(), stat)?,
            None => super::attributes::plain(stat),
        };
        if let TreeOwner::All { uid, gid } = self.owner {
            (found.uid, found.gid) = (uid.into(), gid.into());
        }
        Ok(found)
    }
}

enum Entered {
    /// Its path is that of a new level.
    Directory,
    Nothing,
}

impl Read for TreeArchive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = Content::read_from(&mut self.ready, &mut self.file, buffer)?;
            if read > 0 || buffer.is_empty() || self.state == State::Over {
                return Ok(read);
            }
            self.advance()?;
        }
    }
}

impl Content {
    pub(super) fn new(file: Contents) -> Self {
        Self { padding_bytes: header::padding(file.left_bytes()), file }
    }

    /// Reads prepared bytes, then a file in progress, then its padding. 0 is the end of all of them.
    pub(super) fn read_from(
        ready: &mut io::Cursor<Vec<u8>>,
        file: &mut Option<Self>,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            let read = ready.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            match file {
                Some(content) if content.file.left_bytes() > 0 => return content.read(buffer),
                Some(content) => {
                    *ready = io::Cursor::new(vec![0; content.padding_bytes]);
                    *file = None;
                }
                None => return Ok(0),
            }
        }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.file.read(buffer)? {
            0 => Err(changed()),
            read => Ok(read),
        }
    }
}

fn changed() -> io::Error {
    io::Error::other("it changed while it was read")
}

/// The names in a directory, in reverse order.
fn names(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names: Vec<_> =
        untrusted::entries(directory)?.into_iter().map(|(name, _)| name).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}
