//! The differences between two file trees: a sandbox at two points in time.
//!
//! Pure on two [`View`]s: it reads, and changes nothing. The changes are in the order of a walk in which the names of a
//! directory are sorted by bytes and a directory comes before its content; so the same two trees always give the same
//! result. Times of a file do not count as a change, and neither does the order of names.
//!
//! Reading is avoided as far as that is sound:
//! - A file or directory that is the same in both views, by device and inode, has no differences. For overlays that is
//!   every directory that exists only in layers, with its content.
//! - With [`Lineage::SameInodes`] a file with the same inode number, size, and times is unchanged: no process in a
//!   sandbox can set a change time, and every write, and every change of owner, mode, link or attribute, updates it.
//!   Timestamps have a granularity, so a file that was changed less than [`limits::DIFF_SETTLED`] before the earlier of
//!   the two views is read all the same.

mod bundle;
mod content;
mod renames;
mod report;
mod text;
mod walk;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{TreePath, View};
pub use bundle::{MANIFEST, bundle, told_with_digests};
pub use content::digest;
pub use report::{DiffReport, FileChange, FileFacts, Omitted, Side};
pub(crate) use report::{bytes_of, spelled};
use sandkeep_core::ledger::Reservation;
use sandkeep_core::limits;
pub use text::Text;

/// What to compare, and the limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Mount points, which do not belong to the tree: they and everything below are ignored.
    pub hidden: Vec<TreePath>,
    /// If not empty, only these paths and everything below them.
    pub beneath: Vec<TreePath>,
    pub lineage: Lineage,
    pub renames: Renames,
    /// Further changes set `truncated`.
    pub changes_max: usize,
    /// The owner's reservation for changes kept in memory.
    pub memory: Option<Arc<Reservation>>,
}

/// The relation of the two trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// None: equal files are found by reading them.
    Unrelated,
    /// Both are clones of one tree that keep inode numbers: files with the same number were once the same file.
    SameInodes {
        /// The time of the earlier of the two.
        since: SystemTime,
    },
}

/// Whether a removed and an added file with the same content are reported as a rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renames {
    Found,
    Ignored,
}

/// All differences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    pub changes: Vec<Change>,
    /// There are more, beyond a limit.
    pub truncated: bool,
    /// Number of directories that could not be read for lack of permission.
    pub unreadable: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// The present path, or the former one of a removed file.
    pub path: TreePath,
    /// The former path, if it was renamed.
    pub from_path: Option<TreePath>,
    /// Which aspects differ, if it exists on both sides.
    pub differs: Vec<Aspect>,
    pub before: Option<Facts>,
    pub after: Option<Facts>,
    /// If requested, for a regular file.
    pub text: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    /// Its content, target or type differs; possibly its mode too.
    Modified,
    Deleted,
    /// It has another name; its mode may differ too.
    Renamed,
    /// Only its mode, owner or attributes differ.
    Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aspect {
    Type,
    Content,
    Target,
    Mode,
    Owner,
    Attributes,
}

/// A file's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: FileKind,
    /// The twelve permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    Device,
}

impl FileKind {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Self::File,
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => Self::Device,
        }
    }
}

impl Facts {
    fn of(stat: &Stat) -> Self {
        let kind = FileKind::of(stat);
        // The size of a directory says nothing about its content.
        let sized = kind != FileKind::Directory;
        Self {
            kind,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size_bytes: if sized { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 },
            target: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hidden: Vec::new(),
            beneath: Vec::new(),
            lineage: Lineage::Unrelated,
            renames: Renames::Found,
            changes_max: limits::DIFF_CHANGES_MAX,
            memory: None,
        }
    }
}

/// The changes from `from` to `to`.
pub fn compare(from: &View, to: &View, options: &Options) -> io::Result<Diff> {
    let mut diff = walk::walk(from, to, options)?;
    if options.renames == Renames::Found {
        renames::find(&mut diff, from, to, options.lineage)?;
    }
    Ok(diff)
}

/// Adds line diffs of the files.
pub fn add_text(diff: &mut Diff, from: &View, to: &View) -> io::Result<()> {
    let mut room = limits::DIFF_TEXT_MAX_BYTES;
    for change in &mut diff.changes {
        change.text = text::of(change, from, to, &mut room)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
