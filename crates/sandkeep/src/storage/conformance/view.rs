//! What a sandbox would see of a volume, for the checks to look at and to write to.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::lgetxattr;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::storage::Root;

/// The root of a volume, mounted if it has to be, for as long as this lives.
pub(super) struct View {
    path: PathBuf,
    mounted: Option<TempDir>,
}

impl View {
    pub fn open(root: &Root) -> io::Result<Self> {
        let (lowers, upper, work) = match root {
            Root::Dir(path) => return Ok(Self { path: path.clone(), mounted: None }),
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
        Ok(Self { path: place.path().to_owned(), mounted: Some(place) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.path.join(path)
    }

    /// Everything that can be told of the tree, by its paths.
    pub fn tell(&self) -> io::Result<BTreeMap<PathBuf, Told>> {
        let mut told = BTreeMap::new();
        let mut left = vec![self.path.clone()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir)? {
                let path = entry?.path();
                let metadata = fs::symlink_metadata(&path)?;
                if metadata.is_dir() {
                    left.push(path.clone());
                }
                let name = path.strip_prefix(&self.path).map_err(io::Error::other)?;
                told.insert(name.to_owned(), Told::of(&path, &metadata)?);
            }
        }
        Ok(told)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if self.mounted.is_some() {
            // If it stays, so does the directory, and the test that left something there fails.
            let _ = unmount(&self.path, UnmountFlags::empty());
        }
    }
}

/// What there is to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    modified: (i64, i64),
    /// Names of it, if it is no directory.
    names: u64,
    holds: Vec<u8>,
    attributes: Vec<Option<Vec<u8>>>,
}

impl Told {
    fn of(path: &Path, metadata: &fs::Metadata) -> io::Result<Self> {
        let kind = metadata.file_type();
        let (kind, holds) = match () {
            () if kind.is_dir() => ("directory", Vec::new()),
            () if kind.is_symlink() => {
                ("link", fs::read_link(path)?.into_os_string().into_encoded_bytes())
            }
            () if kind.is_fifo() => ("pipe", Vec::new()),
            () => ("file", fs::read(path)?),
        };
        let attribute = |name: &str| {
            let mut value = vec![0; 256];
            let length = lgetxattr(path, name, &mut value).ok()?;
            value.truncate(length);
            Some(value)
        };
        Ok(Self {
            kind,
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            names: if metadata.is_dir() { 1 } else { metadata.nlink() },
            holds,
            attributes: ["user.note", "security.capability"].map(attribute).to_vec(),
        })
    }
}
