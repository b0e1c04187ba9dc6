//! Rename detection: a removed and an added file may be the same one, by inode number if the trees are clones, or by
//! content.
//!
//! The effort is bounded: beyond [`limits::DIFF_RENAME_FILES_MAX`] files, or [`limits::DIFF_RENAME_MAX_BYTES`] of
//! content, the rest is reported as removed and added, which is also correct.

use std::collections::HashMap;
use std::io;

use super::{Aspect, Change, ChangeKind, Diff, FileKind, Lineage, content};
use crate::digest::Digest;
use crate::{Node, TreePath, View};
use sandkeep_core::limits;

/// Identifies a file: its inode number, and when that was assigned.
type Identity = (u64, i64, u32);

/// The change of the removed file, and whether its content is the same.
struct Origin {
    at: usize,
    same_content: bool,
}

pub(super) fn find(diff: &mut Diff, from: &View, to: &View, lineage: Lineage) -> io::Result<()> {
    let gone = candidates(diff, ChangeKind::Deleted);
    let new = candidates(diff, ChangeKind::Added);
    if gone.is_empty() || new.is_empty() {
        return Ok(());
    }
    let mut origins: HashMap<usize, Origin> = HashMap::new();
    if let Lineage::SameInodes { .. } = lineage {
        by_number(diff, from, to, (&gone, &new), &mut origins)?;
    }
    by_content(diff, from, to, (&gone, &new), &mut origins)?;
    join(diff, &origins);
    Ok(())
}

/// Nonempty files of one kind of change: empty ones are all equal.
fn candidates(diff: &Diff, kind: ChangeKind) -> Vec<usize> {
    let is_one = |change: &Change| {
        let facts = change.before.as_ref().or(change.after.as_ref());
        change.kind == kind
            && facts.is_some_and(|facts| facts.kind == FileKind::File && facts.size_bytes > 0)
    };
    let all = diff.changes.iter().enumerate().filter(|(_, change)| is_one(change));
    all.map(|(at, _)| at).take(limits::DIFF_RENAME_FILES_MAX).collect()
}

fn by_number(
    diff: &Diff,
    from: &View,
    to: &View,
    (gone, new): (&[usize], &[usize]),
    origins: &mut HashMap<usize, Origin>,
) -> io::Result<()> {
    let mut numbers: HashMap<Identity, usize> = HashMap::new();
    for at in gone {
        if let Some(identity) = identity(from, &diff.changes[*at].path)? {
            numbers.insert(identity, *at);
        }
    }
    for at in new {
        let Some(identity) = identity(to, &diff.changes[*at].path)? else { continue };
        let Some(origin) = numbers.remove(&identity) else { continue };
        let nodes = (look(from, diff, origin)?, look(to, diff, *at)?);
        let (Some(before), Some(after)) = nodes else { continue };
        let same_content = content::is_same(&before, &after)?;
        origins.insert(*at, Origin { at: origin, same_content });
    }
    Ok(())
}

fn identity(view: &View, path: &TreePath) -> io::Result<Option<Identity>> {
    let Some(node) = view.look(path)? else { return Ok(None) };
    Ok(node.born()?.map(|(secs, nanos)| (node.stat().st_ino, secs, nanos)))
}

fn look(view: &View, diff: &Diff, at: usize) -> io::Result<Option<Node>> {
    view.look(&diff.changes[at].path)
}

fn by_content(
    diff: &Diff,
    from: &View,
    to: &View,
    (gone, new): (&[usize], &[usize]),
    origins: &mut HashMap<usize, Origin>,
) -> io::Result<()> {
    let taken: Vec<usize> = origins.values().map(|origin| origin.at).collect();
    let gone: Vec<usize> = gone.iter().copied().filter(|at| !taken.contains(at)).collect();
    let mut room = limits::DIFF_RENAME_MAX_BYTES;
    let mut known: HashMap<(u64, Digest), Vec<usize>> = HashMap::new();
    let sizes: Vec<u64> = new.iter().map(|at| size(diff, *at)).collect();
    for at in gone.into_iter().filter(|at| sizes.contains(&size(diff, *at))) {
        if let Some(digest) = digest(from, diff, at, &mut room)? {
            known.entry((size(diff, at), digest)).or_default().push(at);
        }
    }
    for at in new {
        if origins.contains_key(at) || !known.keys().any(|(bytes, _)| *bytes == size(diff, *at)) {
            continue;
        }
        let Some(digest) = digest(to, diff, *at, &mut room)? else { continue };
        let Some(alike) = known.get_mut(&(size(diff, *at), digest)) else { continue };
        // Preferably one that kept its name and only moved.
        let name = |at: usize| diff.changes[at].path.split().map(|(_, name)| name.to_vec());
        let best = alike.iter().position(|origin| name(*origin) == name(*at)).unwrap_or(0);
        if !alike.is_empty() {
            origins.insert(*at, Origin { at: alike.remove(best), same_content: true });
        }
    }
    Ok(())
}

fn size(diff: &Diff, at: usize) -> u64 {
    let change = &diff.changes[at];
    change.before.as_ref().or(change.after.as_ref()).map_or(0, |facts| facts.size_bytes)
}

/// `None` if it is gone meanwhile, or too much was read already.
fn digest(view: &View, diff: &Diff, at: usize, room: &mut u64) -> io::Result<Option<Digest>> {
    let Some(left) = room.checked_sub(size(diff, at)) else { return Ok(None) };
    *room = left;
    look(view, diff, at)?.map(|node| content::digest(&node)).transpose()
}

/// Merges two changes into one, at the position of the new name.
fn join(diff: &mut Diff, origins: &HashMap<usize, Origin>) {
    let mut gone: Vec<usize> = Vec::new();
    for (at, origin) in origins {
        let before = diff.changes[origin.at].clone();
        let change = &mut diff.changes[*at];
        change.kind = ChangeKind::Renamed;
        change.from_path = Some(before.path);
        change.before = before.before;
        if !origin.same_content {
            change.differs.push(Aspect::Content);
        }
        if let (Some(old), Some(new)) = (&change.before, &change.after) {
            change.differs.extend((old.mode != new.mode).then_some(Aspect::Mode));
            let owners = ((old.uid, old.gid), (new.uid, new.gid));
            change.differs.extend((owners.0 != owners.1).then_some(Aspect::Owner));
        }
        gone.push(origin.at);
    }
    gone.sort_unstable();
    for at in gone.into_iter().rev() {
        diff.changes.remove(at);
    }
}
