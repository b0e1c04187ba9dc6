//! Applying a layer: an untrusted archive of changes to a tree of files.
//!
//! All that is written lies beneath one directory, which the caller makes and, if anything fails, throws
//! away. No link is ever followed by the kernel on the way. A layer means the same in both kinds of
//! [`Whiteouts`]: what an overlay shows of the one is what the tree of the other is.
//!
//! - An entry replaces what has its name, of this layer or of one below; only two directories become one.
//! - A whiteout hides what is below, never what the same layer brings, whichever comes first.
//! - What a layer's directory for an overlay holds follows from the layer alone, so that all images that
//!   have it can share it. Where that is impossible [`Applied::stands`] says so.
//! - Directories get their modes and times at the end, when nothing is written into them any more.

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
    /// How owners are written down.
    pub ids: Ids,
    /// The directories of the layers below, lowest first, where `whiteouts` is `Overlay`; none otherwise. A
    /// layer may link to files in them, and may go by links in them. One whose root hides all below it
    /// comes first.
    pub lowers: &'a [OwnedFd],
}

/// Asked before anything is written whether there is room for it: so many bytes, so many files. What it refuses is an
/// error of [`LayerError::Write`].
#[derive(Clone)]
pub struct Room(Arc<dyn Fn(u64, u64) -> io::Result<()> + Send + Sync>);

impl Room {
    pub fn asking(whom: impl Fn(u64, u64) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self(Arc::new(whom))
    }

    /// There is enough.
    pub fn endless() -> Self {
        Self::asking(|_, _| Ok(()))
    }

    pub fn take(&self, bytes: u64, entries: u64) -> io::Result<()> {
        (self.0)(bytes, entries)
    }
}

impl std::fmt::Debug for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Room")
    }
}

/// What came of applying a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    pub entries: u64,
    /// Bytes of files that were written.
    pub bytes: u64,
    /// Device nodes, which are never made.
    pub devices_skipped: u64,
    /// Extended attributes that are not kept: all but `user.*` and `security.capability`.
    pub xattrs_skipped: u64,
    pub owners: Owners,
    pub stands: Stands,
}

impl Applied {
    /// What has come of it before anything was done.
    pub(super) fn nothing(ids: Ids) -> Self {
        let owners = match rustix::process::geteuid().is_root() {
            true => Owners::Kept(ids),
            false => Owners::Ours,
        };
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

/// Whether what was made would be the same above other layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Alone,
    /// The layer leaves open what only the layers below can tell: the mode of a directory, whether that is
    /// a link, what a hard link is about. It must not be shared with an image that has others below:
    /// whoever brought those could choose what the other gets. It is kept as [`id_above`].
    OnWhatIsBelow,
}

/// The name of a layer as it is above others, lowest first, which themselves may have such names.
pub fn id_above(below: &[Digest], diff_id: &Digest) -> Digest {
    let mut hasher = Hasher::new();
    for id in below.iter().chain([diff_id]) {
        hasher.update(format!("above {id}\n").as_bytes());
    }
    hasher.finish()
}

/// Whose the files of a layer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owners {
    /// Those the layer says, as ids on the disk.
    Kept(Ids),
    /// Only root can give files away: everything belongs to the daemon's one user.
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

/// Applies a layer: plain, gzip or zstd, whichever the first bytes say. `progress` is told how many bytes of
/// `blob` are done. Blocks while it reads and writes, and syncs nothing.
///
/// After an error the target holds some part of the layer and must be thrown away.
pub fn apply(
    blob: impl Read + Send + 'static,
    diff_id: &Digest,
    target: &Target<'_>,
    room: &Room,
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

/// Reads a layer to its end, as bounded as if it were applied, and writes nothing: whoever has brought its very bytes
/// may use the one that is kept. Returns how many bytes its files have. Blocks.
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

/// Unpacks an archive of plain files: a name means nothing but itself, and everything belongs to `owner`, has
/// no capabilities and acts for nobody else. Compressed as a layer may be. Blocks, and syncs nothing.
pub fn unpack(
    blob: impl Read + Send + 'static,
    root: BorrowedFd<'_>,
    ids: Ids,
    owner: FileOwner,
    room: &Room,
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

/// The one to whom all of a workspace belongs, as it is called inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
}

impl FileOwner {
    /// The same attributes on a file of this owner.
    pub(super) fn of(self, found: Attributes) -> Attributes {
        let mut xattrs = found.xattrs;
        xattrs.retain(|(name, _)| name.as_c_str() != CAPABILITY);
        let (uid, gid) = (self.uid.into(), self.gid.into());
        Attributes { mode: found.mode & 0o777, uid, gid, modified: found.modified, xattrs }
    }
}
