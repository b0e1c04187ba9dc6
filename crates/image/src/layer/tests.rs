//! The result of applying a layer, on real file systems.

mod limits;
mod links;
mod metadata;
mod overlay;
mod places;
mod unprivileged;
mod whiteouts;

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use sandkeep_tree::archive::building::Tar;

/// A directory in which layers are applied, with something beside it that must not change.
struct World {
    top: TempDir,
}

impl World {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        fs::create_dir(top.path().join("root")).unwrap();
        fs::write(top.path().join("outside"), "untouched").unwrap();
        Self { top }
    }

    fn root(&self) -> std::path::PathBuf {
        self.top.path().join("root")
    }

    fn apply(&self, layer: Vec<u8>) -> Result<Applied, LayerError> {
        self.apply_with(layer, Whiteouts::Remove, &[])
    }

    fn apply_with(
        &self,
        layer: Vec<u8>,
        whiteouts: Whiteouts,
        lowers: &[OwnedFd],
    ) -> Result<Applied, LayerError> {
        apply_at(&self.root(), layer, whiteouts, lowers)
    }

    /// Applies what must work and tells what is there then.
    fn after(&self, layer: Tar) -> Vec<String> {
        self.apply(layer.end()).expect("a layer that applies");
        self.listing()
    }

    fn listing(&self) -> Vec<String> {
        assert_eq!(fs::read_to_string(self.top.path().join("outside")).unwrap(), "untouched");
        assert_eq!(fs::read_dir(self.top.path()).unwrap().count(), 2, "something lies outside");
        listing(&self.root())
    }
}

fn apply_at(
    root: &Path,
    layer: Vec<u8>,
    whiteouts: Whiteouts,
    lowers: &[OwnedFd],
) -> Result<Applied, LayerError> {
    let root = File::open(root).unwrap();
    let target = Target { root: root.as_fd(), whiteouts, lowers, ids: Ids::Plain };
    // The fuzzer takes care of layers that are not what their digest says.
    let diff_id = diff_id(&layer);
    apply(
        std::io::Cursor::new(layer),
        &diff_id,
        &target,
        &SpaceCheck::endless(),
        &Progress::unheard(),
    )
}

fn diff_id(layer: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    match decoded(std::io::Cursor::new(layer.to_vec())) {
        Ok(mut archive) => drop(io::copy(&mut archive, &mut hasher)),
        Err(_) => hasher.update(layer),
    }
    hasher.finish()
}

/// Each file as `path type mode`, with what it holds or where it leads.
fn listing(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            let mode = meta.mode() & 0o7777;
            let kind = meta.file_type();
            found.push(if kind.is_dir() {
                pending.push(path);
                format!("{name}/ {mode:o}")
            } else if kind.is_symlink() {
                format!("{name} -> {}", fs::read_link(&path).unwrap().display())
            } else if kind.is_fifo() {
                format!("{name}| {mode:o}")
            } else if kind.is_char_device() {
                format!("{name} device {}", meta.rdev())
            } else {
                format!("{name} {mode:o} {}", String::from_utf8_lossy(&fs::read(&path).unwrap()))
            });
        }
    }
    found.sort();
    found
}

/// What is wrong with a layer, in all words.
fn refusal(result: Result<Applied, LayerError>) -> String {
    let error = result.expect_err("a layer that is refused");
    let mut words = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        words = format!("{words}: {inner}");
        source = inner.source();
    }
    words
}
