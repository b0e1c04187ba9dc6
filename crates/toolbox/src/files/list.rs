//! Directory listing in pages. Entries are sorted by name, a directory before its content, so that a page can continue
//! after the last one, whatever was added or removed meanwhile.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::stat::stat;
use crate::answer::{Entry, Failure, Listing};
use crate::request::{ListDirectory, RawPath};

/// Maximum size of one page, in bytes of paths and metadata.
const PAGE_MAX_BYTES: usize = 2 * 1024 * 1024;
/// Size of an entry besides its paths.
const ENTRY_BYTES: usize = 256;
/// How many unreadable directories are reported.
const UNREADABLE_MAX: usize = 100;

pub fn list(request: &ListDirectory) -> Result<Listing, Failure> {
    let root = request.path.as_path();
    let after: Vec<OsString> = match &request.after {
        Some(after) => after.as_path().iter().map(ToOwned::to_owned).collect(),
        None => Vec::new(),
    };
    let mut walk = Walk {
        root,
        limit: usize::try_from(request.limit).unwrap_or(usize::MAX),
        bytes: 0,
        listing: Listing { entries: Vec::new(), next: None, unreadable: Vec::new() },
    };
    let names = names(root).map_err(|error| Failure::from_io(&error, Some(root)))?;
    walk.level(Path::new(""), names, request.depth.max(1), &after)?;
    Ok(walk.listing)
}

struct Walk<'a> {
    root: &'a Path,
    limit: usize,
    bytes: usize,
    listing: Listing,
}

/// Whether there is room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    HasRoom,
    Full,
}

impl Walk<'_> {
    /// One directory, after the entry in `after`, if any.
    fn level(
        &mut self,
        beneath: &Path,
        names: Vec<OsString>,
        depth: u32,
        after: &[OsString],
    ) -> Result<Page, Failure> {
        let (resumed, deeper) = match after.split_first() {
            Some((first, rest)) => (Some(first), rest),
            None => (None, &[][..]),
        };
        for name in names {
            let position = resumed.map(|resumed| name.cmp(resumed));
            let within = match position {
                Some(std::cmp::Ordering::Less) => continue,
                // The page before ended with it, or with an entry in it.
                Some(std::cmp::Ordering::Equal) => deeper,
                Some(std::cmp::Ordering::Greater) | None => {
                    if self.add(&beneath.join(&name))? == Page::Full {
                        return Ok(Page::Full);
                    }
                    &[][..]
                }
            };
            if depth > 1 && self.descend(&beneath.join(&name), depth - 1, within)? == Page::Full {
                return Ok(Page::Full);
            }
        }
        Ok(Page::HasRoom)
    }

    fn add(&mut self, relative: &Path) -> Result<Page, Failure> {
        if self.listing.entries.len() >= self.limit || self.bytes >= PAGE_MAX_BYTES {
            let last = self.listing.entries.last();
            let last = last.and_then(|entry| entry.path.as_path().strip_prefix(self.root).ok());
            self.listing.next = last.map(RawPath::from);
            return Ok(Page::Full);
        }
        let path = RawPath::from(self.root.join(relative).as_path());
        // An entry that is gone by now is left out.
        if let Ok(entry) = stat(&path) {
            self.bytes += ENTRY_BYTES + size_of_paths(&entry);
            self.listing.entries.push(entry);
        }
        Ok(Page::HasRoom)
    }

    fn descend(
        &mut self,
        relative: &Path,
        depth: u32,
        after: &[OsString],
    ) -> Result<Page, Failure> {
        let path = self.root.join(relative);
        // A link to a directory is a link: its target is not below.
        if !fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir()) {
            return Ok(Page::HasRoom);
        }
        match names(&path) {
            Ok(names) => self.level(relative, names, depth, after),
            Err(_) => {
                if self.listing.unreadable.len() < UNREADABLE_MAX {
                    self.listing.unreadable.push(RawPath::from(path.as_path()));
                }
                Ok(Page::HasRoom)
            }
        }
    }
}

fn size_of_paths(entry: &Entry) -> usize {
    let target = entry.target.as_ref().map_or(0, |target| target.as_bytes().len());
    // Bytes that are not UTF-8 are written as numbers.
    4 * (entry.path.as_bytes().len() + target)
}

fn names(directory: &Path) -> io::Result<Vec<OsString>> {
    let read = fs::read_dir(if directory.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        directory.to_owned()
    })?;
    let mut names =
        read.map(|entry| entry.map(|e| e.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}
