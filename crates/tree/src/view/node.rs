//! An entry of a tree.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Place;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, OFlags, Stat, StatxFlags, fstat, getxattr, listxattr, readlinkat,
    statat, statx,
};
use rustix::io::Errno;

use crate::effort::{Contents, Effort};
use crate::{OPAQUE, OVERLAY_ATTRIBUTES, beneath, is_whiteout, untrusted};
use sandkeep_core::limits;

/// A file, a directory, a link or the like, held by a descriptor: it stays the same even if its name changes.
#[derive(Debug)]
pub struct Node {
    /// For a directory, all visible ones, topmost first; for anything else the visible one. As `O_PATH` descriptors.
    shown: Vec<OwnedFd>,
    stat: Stat,
    marks: Marks,
    effort: Effort,
}

/// A name in a directory, and its type when the directory was read.
#[derive(Debug)]
pub struct Entry {
    pub name: CString,
    pub stat: Stat,
}

/// Whether overlay marks are interpreted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    /// It is a single tree without marks.
    Plain,
    Heeded,
}

impl Entry {
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Node {
    /// The root of trees, topmost first.
    pub(super) fn of_trees(trees: &[OwnedFd], effort: &Effort) -> io::Result<Self> {
        let marks = if trees.len() > 1 { Marks::Heeded } else { Marks::Plain };
        let mut shown = Vec::new();
        for tree in trees {
            shown.push(tree.try_clone()?);
            if marks == Marks::Heeded && is_opaque(tree)? {
                break;
            }
        }
        let top = shown.first().ok_or(io::ErrorKind::NotFound)?;
        Ok(Self { stat: fstat(top)?, shown, marks, effort: effort.clone() })
    }

    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Its metadata when it was looked up. For a merged directory, the topmost one's.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// The entry of a name in this directory; `None` if this is not a directory.
    pub fn child(&self, name: &[u8]) -> io::Result<Option<Self>> {
        if self.kind() != FileType::Directory {
            return Ok(None);
        }
        self.effort.spend(0)?;
        let mut found: Option<Self> = None;
        for directory in &self.shown {
            let Some((fd, stat)) = look_up(directory, name)? else { continue };
            if self.marks == Marks::Heeded && is_whiteout(&stat) {
                break;
            }
            let ends = FileType::from_raw_mode(stat.st_mode) != FileType::Directory
                || self.marks == Marks::Heeded && is_opaque(&fd)?;
            match &mut found {
                // A file below a directory is hidden by it, and hides everything below itself.
                Some(above) if is_directory(&stat) => above.shown.push(fd),
                Some(_) => {}
                None => {
                    let (shown, effort) = (vec![fd], self.effort.clone());
                    found = Some(Self { shown, stat, marks: self.marks, effort });
                }
            }
            if ends {
                break;
            }
        }
        Ok(found)
    }

    /// The entries of this directory, sorted by bytes. Fails if there are more than [`limits::DIRECTORY_ENTRIES_MAX`].
    pub fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut seen: BTreeMap<CString, Option<Stat>> = BTreeMap::new();
        for directory in &self.shown {
            let directory = beneath::open_dir(directory, b"")?;
            for name in Dir::read_from(&directory)? {
                self.effort.spend(0)?;
                let name = name?.file_name().to_owned();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                if seen.len() >= limits::DIRECTORY_ENTRIES_MAX {
                    return Err(too_many());
                }
                let Place::Vacant(place) = seen.entry(name) else { continue };
                match statat(&directory, place.key().as_c_str(), AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) if self.marks == Marks::Heeded && is_whiteout(&stat) => {
                        place.insert(None);
                    }
                    Ok(stat) => drop(place.insert(Some(stat))),
                    Err(Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        let entries = seen.into_iter();
        Ok(entries.filter_map(|(name, stat)| Some(Entry { name, stat: stat? })).collect())
    }

    /// Opens a regular file to read some of it.
    pub fn open(&self) -> io::Result<Contents> {
        Ok(Contents::new(self.file()?, self.size_bytes(), self.effort.clone()))
    }

    /// Opens a regular file to read all of it; fails at once if that exceeds the budget.
    pub fn open_whole(&self) -> io::Result<Contents> {
        Contents::whole(self.file()?, self.size_bytes(), self.effort.clone())
    }

    fn file(&self) -> io::Result<File> {
        match self.kind() {
            FileType::RegularFile => {
                Ok(File::from(beneath::reopen(self.top()?).map_err(untrusted::leased)?))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
        }
    }

    fn size_bytes(&self) -> u64 {
        u64::try_from(self.stat.st_size).unwrap_or(0)
    }

    /// The target of a symbolic link, as bytes.
    pub fn read_link(&self) -> io::Result<Vec<u8>> {
        Ok(readlinkat(self.top()?, c"", Vec::new())?.into_bytes())
    }

    /// The extended attributes visible to root in the sandbox, by name. Those that an overlay reserves for itself are
    /// left out.
    pub fn attributes(&self) -> io::Result<Vec<(CString, Vec<u8>)>> {
        let path = own_path(self.top()?);
        let mut names = vec![0; limits::ATTRIBUTE_MAX_BYTES];
        let size = match listxattr(&path, &mut names) {
            Ok(size) => size,
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        let mut value = vec![0; limits::ATTRIBUTE_MAX_BYTES];
        for name in names[..size].split_inclusive(|byte| *byte == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
            let Some(seen_as) = self.seen_as(name) else { continue };
            match getxattr(&path, name, &mut value) {
                Ok(size) => found.push((seen_as, value[..size].to_vec())),
                Err(Errno::NODATA) => {}
                Err(error) => return Err(error.into()),
            }
        }
        found.sort();
        Ok(found)
    }

    /// The name of an attribute as seen inside.
    fn seen_as(&self, name: &CStr) -> Option<CString> {
        let bytes = name.to_bytes();
        let shown = bytes.starts_with(b"user.")
            || bytes.starts_with(b"system.posix_acl_")
            || bytes == b"security.capability";
        match bytes.strip_prefix(OVERLAY_ATTRIBUTES.as_bytes()) {
            // An attribute with a name that is reserved for the overlay is stored under another name.
            Some(rest) if self.marks == Marks::Heeded => {
                let rest = rest.strip_prefix(b"overlay.")?;
                CString::new([OVERLAY_ATTRIBUTES.as_bytes(), rest].concat()).ok()
            }
            _ => shown.then(|| name.to_owned()),
        }
    }

    /// Whether both consist of exactly the same directories, so that all of their content is the same.
    pub fn is_same_tree(&self, other: &Self) -> bool {
        let is_same = |(one, other): (&OwnedFd, &OwnedFd)| match (fstat(one), fstat(other)) {
            (Ok(one), Ok(other)) => (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino),
            (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
        };
        self.shown.len() == other.shown.len() && self.shown.iter().zip(&other.shown).all(is_same)
    }

    /// Its creation time, in seconds and nanoseconds, if its file system records it.
    pub fn born(&self) -> io::Result<Option<(i64, u32)>> {
        let told = statx(self.top()?, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let known = told.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(known.then_some((told.stx_btime.tv_sec, told.stx_btime.tv_nsec)))
    }

    fn top(&self) -> io::Result<&OwnedFd> {
        self.shown.first().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn look_up(directory: &OwnedFd, name: &[u8]) -> io::Result<Option<(OwnedFd, Stat)>> {
    match beneath::open(directory, name, OFlags::PATH) {
        Ok(fd) => {
            let stat = fstat(&fd)?;
            Ok(Some((fd, stat)))
        }
        // A name that contains a NUL, or is too long, never exists.
        Err(Errno::NOENT | Errno::INVAL | Errno::NAMETOOLONG) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn too_many() -> io::Error {
    let max = limits::DIRECTORY_ENTRIES_MAX;
    io::Error::other(format!("a directory has more than {max} names"))
}

/// The /proc path of an `O_PATH` descriptor, for calls that do not accept one.
fn own_path(node: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", node.as_raw_fd())
}

/// Whether a directory hides the content of those below it.
pub fn is_opaque(directory: &OwnedFd) -> rustix::io::Result<bool> {
    let mut value = [0; 1];
    match getxattr(own_path(directory), OPAQUE, &mut value) {
        Ok(1) => Ok(value == *b"y"),
        Ok(_) | Err(Errno::NODATA | Errno::RANGE | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}
