//! Applies a layer: an untrusted archive of changes to a file tree.
//!
//! Everything is written below one directory, which the caller creates and, on failure, removes. The kernel never
//! follows a link on the way. A layer has the same meaning in both kinds of [`Whiteouts`]: the overlay view of one
//! equals the tree of the other.
//!
//! - An entry replaces one with the same name, of this layer or of one below; only two directories are merged.
//! - A whiteout hides lower entries, never those of the same layer, whichever comes first.
//! - The overlay directory of a layer depends on the layer alone, so that all images that contain it can share it. If
//!   that is impossible, [`Applied::stands`] says so.
//! - Directories get their modes and times at the end, when no more entries are written into them.

mod applying;
pub(super) mod attributes;
mod directory;
mod hardlink;
mod removing;
mod view;
mod whiteout;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
#[cfg(test)]
mod tests;

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::image::Progress;
use applying::{Applying, Meter, Names};
use sandkeep_storage::Whiteouts;
use sandkeep_tree::{
    Ids,
    archive::{ArchiveError, Attributes, Entries, Entry, attributes::CAPABILITY, decoded},
    digest::{Digest, Hasher, Mismatch, Verified},
};

/// Where a layer is applied.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The directory that becomes the layer's root.
    pub root: BorrowedFd<'a>,
    pub whiteouts: Whiteouts,
    /// How owners are stored.
    pub ids: Ids,
    /// The directories of the layers below, lowest first, if `whiteouts` is `Overlay`; otherwise none. A layer may
    /// hard-link to their files, and its paths may go through their links. If the root of one is opaque, it comes
    /// first.
    pub lowers: &'a [OwnedFd],
}

/// Called before each write to check the space: this many bytes, this many files. A refusal becomes
/// [`LayerError::Write`].
#[derive(Clone)]
pub struct SpaceCheck(Arc<dyn Fn(u64, u64) -> io::Result<()> + Send + Sync>);

impl SpaceCheck {
    pub fn asking(whom: impl Fn(u64, u64) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(whom))
    }

    /// Unlimited.
    pub fn endless() -> Self {
        Self::asking(|_, _| Ok(()))
    }

    pub fn take(&self, bytes: u64, entries: u64) -> io::Result<()> {
        (self.0)(bytes, entries)
    }
}

impl std::fmt::Debug for SpaceCheck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SpaceCheck")
    }
}

/// The result of applying a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub entries: u64,
    /// Bytes of files that were written.
    pub bytes: u64,
    /// Device nodes, which are never created.
    pub devices_skipped: u64,
    /// Dropped extended attributes: all but `user.*` and `security.capability`.
    pub xattrs_skipped: u64,
    pub owners: Owners,
    pub stands: Stands,
}

impl Applied {
    /// The result before anything was done.
    pub(super) fn nothing(ids: Ids) -> Self {
        let owners =
            if rustix::process::geteuid().is_root() { Owners::Kept(ids) } else { Owners::Ours };
        Self {
            entries: 0,
            bytes: 0,
            devices_skipped: 0,
            xattrs_skipped: 0,
            owners,
            stands: Stands::Alone,
        }
    }
}

/// Whether the result would be the same above other layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Alone,
    /// The layer depends on the layers below: for the mode of a directory, for whether that is a link, or for the
    /// target of a hard link. It must not be shared with an image that has other layers below, because their supplier
    /// could determine what the other image gets. It is stored as [`id_above`].
    OnWhatIsBelow,
}

/// The name of a layer above specific others, lowest first, which may have such names themselves.
pub fn id_above(below: &[Digest], diff_id: &Digest) -> Digest {
    let mut hasher = Hasher::new();
    for id in below.iter().chain([diff_id]) {
        hasher.update(format!("above {id}\n").as_bytes());
    }
    hasher.finish()
}

/// The owners of a layer's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// The layer's own owners, as ids on disk.
    Kept(Ids),
    /// Only root can change owners: everything belongs to the daemon's user.
    Ours,
}

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error(transparent)]
    Archive(ArchiveError),
    #[error("the layer is not the one that was announced")]
    Mismatch(#[source] Mismatch),
    #[error("{path:?} of the layer cannot be applied: {what}")]
    Entry { path: String, what: String },
    #[error("cannot write {path:?} of the layer")]
    Write {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error("the layer is too large: more than {max} {what}")]
    TooLarge { what: &'static str, max: u64 },
}

impl From<ArchiveError> for LayerError {
    fn from(error: ArchiveError) -> Self {
        match error {
            ArchiveError::Io(error) => match error.downcast::<Mismatch>() {
                Ok(mismatch) => Self::Mismatch(mismatch),
                Err(error) => Self::Archive(ArchiveError::Io(error)),
            },
            other => Self::Archive(other),
        }
    }
}

/// Applies a layer: plain, gzip or zstd, detected by its first bytes. `progress` receives the number of processed bytes
/// of `blob`. Blocks while it reads and writes, and syncs nothing.
///
/// After an error the target contains a part of the layer and must be removed.
pub fn apply(
    blob: impl Read + Send + 'static,
    diff_id: &Digest,
    target: &Target<'_>,
    room: &SpaceCheck,
    progress: &Progress,
) -> Result<Applied, LayerError> {
    let archive = decoded(blob)?;
    let mut meter = Meter::new(archive.taken(), progress);
    let mut entries = Entries::new(Verified::new(archive, *diff_id, None));
    let mut applying = Applying::new(target, Names::OfLayer, room.clone());
    while let Some(entry) = entries.next()? {
        applying.take(entry, &mut entries, &mut meter)?;
        meter.look();
    }
    entries.finish()?;
    let applied = applying.finish()?;
    meter.end();
    Ok(applied)
}

/// Reads a layer to its end, with the same limits as if it were applied, and writes nothing: an owner who has supplied
/// the exact bytes may use the stored one. Returns the size of its files. Blocks.
pub fn prove(
    blob: impl Read + Send + 'static,
    diff_id: &Digest,
    progress: &Progress,
) -> Result<u64, LayerError> {
    let archive = decoded(blob)?;
    let mut meter = Meter::new(archive.taken(), progress);
    let mut entries = Entries::new(Verified::new(archive, *diff_id, None));
    let mut bytes = 0;
    while entries.next()?.is_some() {
        bytes += entries.data_left();
        meter.look();
    }
    entries.finish()?;
    meter.end();
    Ok(bytes)
}

/// Unpacks an archive of plain files: names have no special meaning, and everything belongs to `owner`, without
/// capabilities and set-id bits. Compressed like a layer. Blocks, and syncs nothing.
pub fn unpack(
    blob: impl Read + Send + 'static,
    root: BorrowedFd<'_>,
    ids: Ids,
    owner: FileOwner,
    room: &SpaceCheck,
) -> Result<Applied, LayerError> {
    let archive = decoded(blob)?;
    let progress = Progress::unheard();
    let mut meter = Meter::new(archive.taken(), &progress);
    let mut entries = Entries::new(archive);
    let target = Target { root, whiteouts: Whiteouts::Remove, lowers: &[], ids };
    let mut applying = Applying::new(&target, Names::Plain, room.clone());
    while let Some(entry) = entries.next()? {
        let attributes = owner.of(entry.attributes);
        applying.take(Entry { attributes, ..entry }, &mut entries, &mut meter)?;
    }
    entries.finish()?;
    applying.finish()
}

/// The owner of all files of a workspace, with ids used inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
}

impl FileOwner {
    /// The same attributes with this owner.
    pub(super) fn of(self, found: Attributes) -> Attributes {
        let mut xattrs = found.xattrs;
        xattrs.retain(|(name, _)| name.as_c_str() != CAPABILITY);
        let (uid, gid) = (self.uid.into(), self.gid.into());
        Attributes { mode: found.mode & 0o777, uid, gid, modified: found.modified, xattrs }
    }
}
