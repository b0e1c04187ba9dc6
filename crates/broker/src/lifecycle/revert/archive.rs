//! The differences as an archive for the toolbox: first removals, innermost first; then additions.

use std::io::{self, Read};

use sandkeep_core::limits;
use sandkeep_tree::{
    GivenUp, TreePath, View,
    archive::{ChosenArchive, Hardlinks, Piece},
    diff::{Aspect, Change, ChangeKind, Diff, FileKind},
};

/// `diff` leads from the present to `then`.
pub(super) fn of(diff: Diff, then: View) -> impl Read + Send {
    let goes = |change: &Change| match change.kind {
        ChangeKind::Deleted => true,
        // A file is replaced atomically; nothing else can be.
        ChangeKind::Modified => {
            let is_file = |facts: &Option<sandkeep_tree::diff::Facts>| {
                facts.as_ref().is_some_and(|facts| facts.kind == FileKind::File)
            };
            change.differs.contains(&Aspect::Type)
                && (is_directory(change) || !is_file(&change.after))
        }
        ChangeKind::Added | ChangeKind::Renamed | ChangeKind::Mode => false,
    };
    let gone: Vec<TreePath> =
        diff.changes.iter().rev().filter(|change| goes(change)).map(|c| c.path.clone()).collect();
    let gone = gone.into_iter().map(|path| Ok(Piece::Gone { path: path.bytes().to_vec() }));
    let comes = diff.changes.into_iter().filter(|change| change.kind != ChangeKind::Deleted);
    let comes = comes.filter_map(move |change| {
        let path = change.path.bytes().to_vec();
        match (then.look(&change.path), change.kind) {
            (Err(error), _) => Some(Err(error)),
            (Ok(None), _) => None,
            (Ok(Some(node)), ChangeKind::Mode) => Some(Ok(Piece::Metadata { path, node })),
            (Ok(Some(node)), _) => Some(Ok(Piece::Node { path, node })),
        }
    });
    ChosenArchive::new(gone.chain(comes), Hardlinks::Kept)
}

fn is_directory(change: &Change) -> bool {
    change.before.as_ref().is_some_and(|facts| facts.kind == FileKind::Directory)
}

/// Checks that the added data is small enough for one transfer.
pub(super) fn check_size(diff: &Diff) -> io::Result<()> {
    let brought = |change: &&Change| !matches!(change.kind, ChangeKind::Deleted | ChangeKind::Mode);
    let sizes = diff.changes.iter().filter(brought).filter_map(|change| change.after.as_ref());
    let all = sizes.fold(0_u64, |all, facts| all.saturating_add(facts.size_bytes));
    let max = limits::TREE_WORK_MAX_BYTES;
    if all > max { Err(GivenUp::Bytes { max }.into()) } else { Ok(()) }
}
