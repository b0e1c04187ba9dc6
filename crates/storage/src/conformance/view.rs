//! A sandbox's view of a volume, for the checks.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use sandkeep_tree::Root;

/// The root of a volume, mounted if necessary, for as long as this lives.
pub(crate) struct View {
    root: Root,
    path: PathBuf,
    mounted: Option<TempDir>,
}

impl View {
    pub fn open(root: &Root) -> io::Result<Self> {
        let (lowers, upper, work) = match root {
            Root::Dir(path) | Root::Shifted(path) => {
                return Ok(Self { root: root.clone(), path: path.clone(), mounted: None });
            }
            Root::Overlay { lowers, upper, work } => (lowers, upper, work),
        };
        let lowers: Vec<_> = lowers.iter().rev().map(|path| path.display().to_string()).collect();
        let options = format!(
            "lowerdir={},upperdir={},workdir={},userxattr",
            lowers.join(":"),
            upper.display(),
            work.display()
        );
        let options = CString::new(options)?;
        let place = tempfile::tempdir()?;
        mount("overlay", place.path(), "overlay", MountFlags::empty(), Some(options.as_c_str()))?;
        Ok(Self { root: root.clone(), path: place.path().to_owned(), mounted: Some(place) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// All facts about the tree, by path, independent of how it is read.
    pub fn tell(&self) -> io::Result<BTreeMap<PathBuf, FileFacts>> {
        let through_mount = told(&sandkeep_tree::View::of_dir(&self.path)?)?;
        let without = told(&sandkeep_tree::View::of_root(&self.root)?)?;
        if through_mount == without {
            Ok(without)
        } else {
            Err(io::Error::other(format!("{through_mount:?} is read as {without:?}")))
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.mounted.is_some() {
            // If this fails, the directory stays, and the test that left something there fails.
            let _ = unmount(&self.path, UnmountFlags::empty());
        }
    }
}

/// The facts about a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    kind: FileType,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, u64),
    /// Number of links, if it is not a directory.
    names: u64,
    holds: Vec<u8>,
    attributes: Vec<(CString, Vec<u8>)>,
}

impl FileFacts {
    fn of(node: &sandkeep_tree::Node) -> io::Result<Self> {
        let mut holds = Vec::new();
        match node.kind() {
            FileType::RegularFile => drop(node.open()?.read_to_end(&mut holds)?),
            FileType::Symlink => holds = node.read_link()?,
            _ => {}
        }
        let stat = node.stat();
        Ok(Self {
            kind: node.kind(),
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            names: if node.kind() == FileType::Directory { 1 } else { stat.st_nlink },
            holds,
            attributes: node.attributes()?,
        })
    }
}

/// All facts about a tree, by path.
pub(crate) fn told(view: &sandkeep_tree::View) -> io::Result<BTreeMap<PathBuf, FileFacts>> {
    let mut told = BTreeMap::new();
    let mut left = vec![(PathBuf::new(), view.root()?)];
    while let Some((path, directory)) = left.pop() {
        for entry in directory.entries()? {
            let name = OsStr::from_bytes(entry.name.to_bytes());
            let node = directory.child(name.as_bytes())?.ok_or(io::ErrorKind::NotFound)?;
            assert_eq!(node.stat().st_ino, entry.stat.st_ino, "{path:?}/{name:?} is two files");
            told.insert(path.join(name), FileFacts::of(&node)?);
            if node.kind() == FileType::Directory {
                left.push((path.join(name), node));
            }
        }
    }
    Ok(told)
}
