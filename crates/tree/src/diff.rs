//! What differs between two trees of files: a sandbox then, and a sandbox now.
//!
//! Pure on two [`View`]s: it reads, and changes nothing. The changes come in one order, that of a walk in which
//! the names of a directory are sorted by their bytes and a directory comes before what is in it; so the same
//! two trees always give the same answer. A file's times are no change, and neither is the order of names.
//!
//! What need not be read is not, as far as that is sound:
//! - A file or directory that is the same one in both views, by device and inode, is not different from itself. Of
//!   overlays that is every directory that only layers have, with all in it.
//! - With [`Lineage::SameInodes`] a file of the same number, size, and times is the same: nobody in a sandbox can
//!   set a change time, and every write, and every change of owner, mode, link or attribute, sets it. The clock
//!   of these times has ticks; so a file that was changed less than [`limits::DIFF_SETTLED`] before the earlier
//!   of the two views was made is read all the same.

mod bundle;
mod content;
mod renames;
mod text;
mod told;
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
use sandkeep_core::ledger::Reservation;
use sandkeep_core::limits;
pub use text::Text;
pub use told::{Omitted, Side, Told, ToldDiff, ToldFacts};

/// What to compare, and how far.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nothing beneath these is looked at: what is mounted there is not the tree's.
    pub hidden: Vec<TreePath>,
    /// If any, only these and what is beneath them.
    pub beneath: Vec<TreePath>,
    pub lineage: Lineage,
    pub renames: Renames,
    /// More are counted as truncated.
    pub changes_max: usize,
    /// Whom the changes that are kept in memory count to.
    pub memory: Option<Arc<Reservation>>,
}

/// How the two trees came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lineage {
    /// What is the same is found by reading it.
    Unrelated,
    /// Both are clones of one tree that keep the numbers of files: what has the same number was once the same file.
    SameInodes {
        /// When the earlier of the two was made.
        since: SystemTime,
    },
}

/// Whether a file that is gone and one that is new are one that was renamed, if they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renames {
    Found,
    Ignored,
}

/// All that differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    pub changes: Vec<Change>,
    /// There is more, beyond a limit.
    pub truncated: bool,
    /// Directories that could not be read, for want of rights.
    pub unreadable: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub kind: ChangeKind,
    /// Where it is now, or was if it is gone.
    pub path: TreePath,
    /// What it was called before, if it is renamed.
    pub from_path: Option<TreePath>,
    /// In which respects it is another, if it was and is there.
    pub differs: Vec<Aspect>,
    pub before: Option<Facts>,
    pub after: Option<Facts>,
    /// If it was asked for, and it is about a regular file.
    pub text: Option<Text>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    Added,
    /// Its content, its target or its type is another; maybe its mode too.
    Modified,
    Deleted,
    /// It has another name; its mode may be another too.
    Renamed,
    /// Only its mode, its owner or its attributes are others.
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

/// What there is to a file besides its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    pub kind: FileKind,
    /// The twelve bits of permissions.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    /// Where a symbolic link leads.
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
        // What a directory takes says nothing about what is in it.
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

/// What is different in `to` from what it was in `from`.
pub fn compare(from: &View, to: &View, options: &Options) -> io::Result<Diff> {
    let mut diff = walk::walk(from, to, options)?;
    if options.renames == Renames::Found {
        renames::find(&mut diff, from, to, options.lineage)?;
    }
    Ok(diff)
}

/// Adds how the files differ, line by line.
pub fn add_text(diff: &mut Diff, from: &View, to: &View) -> io::Result<()> {
    let mut room = limits::DIFF_TEXT_MAX_BYTES;
    for change in &mut diff.changes {
        change.text = text::of(change, from, to, &mut room)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
