//! Looking around in the file system, bounded: a sandbox may be full of anything.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// How deep and how much is looked at.
const DEPTH_MAX: usize = 6;
const ENTRIES_MAX: usize = 50_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Socket,
    BlockDevice,
    CharacterDevice,
    File,
}

/// All of a kind beneath a directory. Links are not followed, and the directories in `except` not entered.
pub fn find(top: &Path, kind: Kind, except: &[&str]) -> Vec<PathBuf> {
    let mut pending = vec![(top.to_owned(), 0)];
    let (mut found, mut seen) = (Vec::new(), 0);
    while let Some((dir, depth)) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            seen += 1;
            let path = entry.path();
            // What the directory itself says of its entries is wrong where something is mounted on them.
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

/// Leaves a chroot for the root around it, if there is one: the classic, a chroot into a directory below while the
/// working directory stays above. From then on `/` is that.
pub fn climb_out() -> std::io::Result<()> {
    let scratch = Scratch::new("chroot")?;
    std::env::set_current_dir("/")?;
    std::os::unix::fs::chroot(scratch.path())?;
    // More than any path is deep.
    for _ in 0..64 {
        std::env::set_current_dir("..")?;
    }
    std::os::unix::fs::chroot(".")
}

/// The numbers of all processes that are seen.
pub fn pids() -> Vec<u32> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// A new directory for what an attempt makes; it goes with the sandbox, or when it is dropped.
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
        // An attempt that got further than it should may have put something here that does not go.
        let _ = fs::remove_dir_all(&self.0);
    }
}
