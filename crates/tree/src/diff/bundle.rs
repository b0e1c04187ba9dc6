//! A diff with everything needed to apply it elsewhere: a tar whose first file, [`MANIFEST`], is the serialized diff,
//! with the digests of the files before and after, and whose other entries are the new and changed files in their
//! present state, under their paths without the leading slash.

use std::io::{self, Read};

use super::{Change, ChangeKind, Diff, FileChange, FileFacts, FileKind, content};
use crate::archive::{ChosenArchive, Hardlinks, Piece};
use crate::{TreePath, View};

/// The name of a bundle's first file.
pub const MANIFEST: &str = "sandkeep-diff.json";

/// The changes with the digests of all regular files in them.
pub fn told_with_digests(diff: &Diff, from: &View, to: &View) -> io::Result<Vec<FileChange>> {
    let one = |change: &Change| {
        let mut told = FileChange::of(change);
        let old_path = change.from_path.as_ref().unwrap_or(&change.path);
        add_digest(told.before.as_mut(), from, old_path)?;
        add_digest(told.after.as_mut(), to, &change.path)?;
        Ok(told)
    };
    diff.changes.iter().map(one).collect()
}

fn add_digest(facts: Option<&mut FileFacts>, view: &View, path: &TreePath) -> io::Result<()> {
    if let Some(facts) = facts.filter(|facts| facts.kind == FileKind::File)
        && let Some(node) = view.look(path)?
    {
        facts.digest = Some(content::digest(&node)?);
    }
    Ok(())
}

/// A reader of the bundle, whose first file has this name and content.
pub fn bundle((name, manifest): (&'static str, Vec<u8>), diff: Diff, to: View) -> impl Read + Send {
    let note = Piece::Note { path: name.as_bytes().to_vec(), bytes: manifest };
    let brought = |change: &Change| match change.kind {
        ChangeKind::Added | ChangeKind::Modified | ChangeKind::Renamed => change.after.is_some(),
        ChangeKind::Deleted | ChangeKind::Mode => false,
    };
    let changes = diff.changes.into_iter().filter(brought);
    let files = changes.filter_map(move |change| match to.look(&change.path) {
        Ok(node) => Some(Ok(Piece::Node { path: change.path.bytes().to_vec(), node: node? })),
        Err(error) => Some(Err(error)),
    });
    ChosenArchive::new(std::iter::once(Ok(note)).chain(files), Hardlinks::Separate)
}
