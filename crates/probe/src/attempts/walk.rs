//! Bounded searches of the file system: a sandbox may contain anything.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Limits of depth and number.
const DEPTH_MAX: usize = 6;
const ENTRIES_MAX: usize = 50_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Socket,
    BlockDevice,
    CharacterDevice,
    File,
}

/// All entries of a kind below a directory. Links are not followed, and the directories in `except` not entered.
pub fn find(top: &Path, kind: Kind, except: &[&str]) -> Vec<PathBuf> {
    let mut pending = vec![(top.to_owned(), 0)];
    let (mut found, mut seen) = (Vec::new(), 0);
    while let Some((dir, depth)) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            // The type in a directory entry is wrong for mount points.
            let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
            let file_type = metadata.file_type();
            let is_of_kind = match kind {
                Kind::Socket => file_type.is_socket(),
                Kind::BlockDevice => file_type.is_block_device(),
                Kind::CharacterDevice => file_type.is_char_device(),
                Kind::File => file_type.is_file(),
            };
            if is_of_kind {
                found.push(path);
            } else if file_type.is_dir()
                && depth < DEPTH_MAX
                && seen < ENTRIES_MAX
                && !except.iter().any(|dir| path == Path::new(dir))
            {
                pending.push((path, depth + 1));
            }
        }
    }
    found
}

/// Leaves a chroot for the outer root, if there is one, in the classic way: a chroot into a subdirectory while the
/// working directory stays above. From then on `/` is the outer root.
pub fn climb_out() -> std::io::Result<()> {
    let scratch = Scratch::new("chroot")?;
    std::env::set_current_dir("/")?;
    std::os::unix::fs::chroot(scratch.path())?;
    // Deeper than any path.
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    std::os::unix::fs::chroot(".")
}

/// The pids of all visible processes.
pub fn pids() -> Vec<u32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A new scratch directory, removed on drop or with the sandbox.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new(what: &str) -> std::io::Result<Self> {
        let path = std::env::temp_dir().join(format!("probe-{what}-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // An attempt that succeeded unexpectedly may have created something that cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}
