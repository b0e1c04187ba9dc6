//! Arbitrary bytes as a layer: nothing changes outside of the target directory.

use std::fs::{self, File};
use std::io::Cursor;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tar::Header;

use super::{Target, apply, prove};
use crate::image::Progress;
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    Ids,
    archive::{Compression, building::Tar},
    digest::Digest,
    untrusted,
};

/// A directory that is removed with its content.
struct ScratchDir(PathBuf);

impl ScratchDir {
    fn new() -> Self {
        let name = untrusted::unused_name().to_string_lossy().into_owned();
        let place = Self(std::env::temp_dir().join(format!("sandkeep-layer-{name}")));
        for directory in ["", "root", "lower", "lower/dir", "beside"] {
            fs::create_dir(place.0.join(directory)).expect("a new directory");
        }
        fs::write(place.0.join("lower/dir/file"), "below").expect("a new file");
        std::os::unix::fs::symlink("../../beside", place.0.join("lower/link")).expect("a link");
        fs::write(place.0.join("beside/file"), "untouched").expect("a new file");
        place
    }

    fn open(&self, name: &str) -> OwnedFd {
        File::open(self.0.join(name)).expect("a directory that was just made").into()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let top = File::open(&self.0).expect("it is still there");
        untrusted::empty(top.as_fd()).expect("its files can be removed");
        fs::remove_dir(&self.0).expect("it is empty");
    }
}

/// Everything below a directory except what a layer may change.
fn fingerprint(top: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![top.to_owned()];
    while let Some(path) = pending.pop() {
        let meta = fs::symlink_metadata(&path).expect("it was just listed");
        let (mode, mtime, ino) = (meta.mode(), meta.mtime_nsec(), meta.ino());
        found.push(format!(
            "{} {mode:o} {mtime} {ino} {} {}",
            path.display(),
            meta.nlink(),
            meta.len()
        ));
        if meta.is_dir() && path != top.join("root") {
            let entries = fs::read_dir(&path).expect("a directory");
            pending.extend(entries.map(|entry| entry.expect("an entry").path()));
        }
    }
    // The layer may change the root itself.
    found.retain(|line| !line.starts_with(&format!("{} ", top.join("root").display())));
    found.sort();
    found
}

/// Gives every header a correct checksum: otherwise hardly any input would get past it.
fn mended(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + 512) {
        let mut header = Header::new_old();
        header.as_mut_bytes().copy_from_slice(block);
        if block.iter().any(|byte| *byte != 0) {
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
        let size = usize::try_from(header.entry_size().unwrap_or(0)).unwrap_or(usize::MAX);
        at = at.saturating_add(512).saturating_add(size.min(1 << 40)).next_multiple_of(512);
    }
    bytes
}

/// Proves the bytes, and applies them both ways. The diff id never matches, so every layer ends with an error, at the
/// latest when all of it has been applied.
pub fn apply_layer(bytes: &[u8]) {
    apply_bytes(bytes);
    if Compression::of(bytes).is_ok_and(|found| found == Compression::None) {
        apply_bytes(&mended(bytes));
    }
}

fn apply_bytes(bytes: &[u8]) {
    let proven = prove(Cursor::new(bytes.to_vec()), &Digest::of(b"none"), &Progress::unheard());
    assert!(proven.is_err(), "it has another digest");
    let place = ScratchDir::new();
    let lowers = [place.open("lower")];
    let before = fingerprint(&place.0);
    for (whiteouts, lowers) in [(Whiteouts::Overlay, &lowers[..]), (Whiteouts::Remove, &[])] {
        let root = place.open("root");
        let target = Target { root: root.as_fd(), whiteouts, lowers, ids: Ids::Plain };
        let blob = Cursor::new(bytes.to_vec());
        let done = apply(
            blob,
            &Digest::of(b"none"),
            &target,
            &super::SpaceCheck::endless(),
            &Progress::unheard(),
        );
        assert!(done.is_err(), "it has another digest");
        assert_eq!(fingerprint(&place.0), before, "something outside has changed");
    }
}

/// Layers that reach all places in which something can go wrong.
pub fn layers() -> Vec<Vec<u8>> {
    let escapes = Tar::new()
        .symlink("out", "../beside")
        .file("out/file", "changed")
        .file("out/.wh.file", "")
        .file("out/.wh..wh..opq", "")
        .hardlink("stolen", "out/file")
        .file("link/new", "")
        .file("../beside/file", "changed");
    let shapes = Tar::new()
        .dir("./")
        .dir_mode("dir", 0o1777)
        .hardlink("linked", "dir/file")
        .file("dir/.wh.file", "")
        .file("dir", "now a file")
        .dir("dir")
        .entry(Tar::header(b'6', "fifo", 0), b"")
        .entry(Tar::header(b'3', "device", 0), b"");
    let extended = Tar::new()
        .pax(&[("path", b"long/name"), ("SCHILY.xattr.user.x", b"1\n2"), ("mtime", b"-1.5")])
        .file("x", "data")
        .long(b'L', b"gnu/long/name")
        .file("x", "data")
        .pax(&[("GNU.sparse.size", b"4096"), ("GNU.sparse.map", b"10,4")])
        .file("sparse", "data")
        .cut();
    let mut layers = vec![escapes.end(), shapes.end(), extended];
    layers.push(zstd::stream::encode_all(layers[0].as_slice(), 1).expect("bytes in memory"));
    layers
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandkeep_guestlink::fuzz::mutation::{Mutations, corpus};

    const ROUNDS: usize = 500;

    #[test]
    fn no_bytes_of_a_layer_change_anything_outside_of_it() {
        let mut seeds = layers();
        seeds.extend(corpus("apply_layer", &seeds));
        seeds.iter().for_each(|seed| apply_layer(seed));
        Mutations::of(seeds).take(ROUNDS).for_each(|bytes| apply_layer(&bytes));
    }
}
