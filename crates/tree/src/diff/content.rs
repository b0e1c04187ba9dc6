//! Comparing file contents, and digests.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::Stat;

use super::Lineage;
use crate::Node;
use crate::digest::{Digest, Hasher};
use sandkeep_core::limits;

const CHUNK_BYTES: usize = 64 * 1024;

/// Whether it is the same file, so that nothing can differ.
pub(super) fn is_same_file(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether a file is unchanged since the two trees diverged; the parent module explains why this is sound.
pub(super) fn is_untouched(one: &Stat, other: &Stat, lineage: Lineage) -> bool {
    let Lineage::SameInodes { since } = lineage else { return false };
    let key = |stat: &Stat| {
        let modified = (stat.st_mtime, stat.st_mtime_nsec);
        (stat.st_ino, stat.st_mode, stat.st_size, modified, stat.st_ctime, stat.st_ctime_nsec)
    };
    let changed = u64::try_from(one.st_ctime).unwrap_or(0);
    let settled = UNIX_EPOCH + Duration::from_secs(changed) + limits::DIFF_SETTLED;
    key(one) == key(other) && settled <= since
}

/// Whether two regular files have the same content.
pub(super) fn is_same(one: &Node, other: &Node) -> io::Result<bool> {
    if one.stat().st_size != other.stat().st_size {
        return Ok(false);
    }
    let (one, other) = (one.open()?, other.open()?);
    one.check()?;
    other.check()?;
    let (mut left, mut right) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut at = 0;
    // Common holes are equal, however long they are.
    while let Some(start) = one.data_from(at)?.into_iter().chain(other.data_from(at)?).min() {
        let (read, also) = (one.fill_at(start, &mut left)?, other.fill_at(start, &mut right)?);
        if left[..read] != right[..also] {
            return Ok(false);
        }
        if read < CHUNK_BYTES {
            return Ok(true);
        }
        at = start + read as u64;
    }
    Ok(true)
}

/// The digest of a regular file, up to its size when it was looked up.
pub fn digest(node: &Node) -> io::Result<Digest> {
    let mut hasher = Hasher::new();
    io::copy(&mut node.open_whole()?, &mut hasher)?;
    Ok(hasher.finish())
}
