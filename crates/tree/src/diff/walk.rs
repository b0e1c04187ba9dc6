//! Walks both trees together, name by name.

use std::cmp::Ordering;
use std::ffi::CString;
use std::io;

use rustix::fs::{FileType, Stat};

use super::content::{is_same, is_same_file, is_untouched};
use super::{Aspect, Change, ChangeKind, Diff, Facts, Options};
use crate::{Entry, Node, TreePath, View};
use sandkeep_core::limits;

/// A directory of either tree or of both.
struct Level {
    before: Option<Node>,
    after: Option<Node>,
    /// In reverse order.
    names: Vec<Pair>,
    path: TreePath,
}

/// A name, and its entries in both trees.
struct Pair {
    name: CString,
    before: Option<Stat>,
    after: Option<Stat>,
}

/// The relation of a path to the requested ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PathRelation {
    Within,
    /// A requested path is below it.
    OnTheWay,
    Outside,
}

/// The entries to descend into.
type Below = Option<(Option<Node>, Option<Node>)>;

struct Walk<'a> {
    options: &'a Options,
    diff: Diff,
    entries: usize,
}

pub(super) fn walk(from: &View, to: &View, options: &Options) -> io::Result<Diff> {
    let mut walk = Walk { options, diff: Diff::default(), entries: 0 };
    let (before, after) = (from.root()?, to.root()?);
    if walk.place(&TreePath::default()) == PathRelation::Within {
        let differs = aspects(&before, &after, &TreePath::default(), options)?;
        walk.note(TreePath::default(), differs, &before, &after)?;
    }
    let top = walk.level(Some(before), Some(after), TreePath::default())?;
    let mut open: Vec<Level> = top.into_iter().collect();
    while let Some(level) = open.last_mut() {
        let Some(pair) = level.names.pop() else {
            open.pop();
            continue;
        };
        if walk.is_full() {
            walk.diff.truncated = true;
            break;
        }
        // A path beyond the kernel's limit cannot be reported.
        let Ok(path) = level.path.join(pair.name.to_bytes()) else {
            walk.diff.truncated = true;
            continue;
        };
        let below = match walk.place(&path) {
            PathRelation::Outside => None,
            place => walk.compare(level, &pair, &path, place)?,
        };
        let Some((before, after)) = below else { continue };
        if open.len() >= limits::WALK_DEPTH_MAX {
            walk.diff.truncated = true;
            continue;
        }
        open.extend(walk.level(before, after, path)?);
    }
    Ok(walk.diff)
}

impl Walk<'_> {
    fn is_full(&mut self) -> bool {
        self.entries += 1;
        self.entries > limits::DIFF_ENTRIES_MAX
            || self.diff.changes.len() >= self.options.changes_max
    }

    fn place(&self, path: &TreePath) -> PathRelation {
        if self.options.hidden.iter().any(|hidden| path.is_beneath(hidden)) {
            return PathRelation::Outside;
        }
        let asked = &self.options.beneath;
        match () {
            () if asked.is_empty() || asked.iter().any(|top| path.is_beneath(top)) => {
                PathRelation::Within
            }
            () if asked.iter().any(|top| top.is_beneath(path)) => PathRelation::OnTheWay,
            () => PathRelation::Outside,
        }
    }

    /// Both directories, merged; `None` if neither has entries.
    fn level(
        &mut self,
        before: Option<Node>,
        after: Option<Node>,
        path: TreePath,
    ) -> io::Result<Option<Level>> {
        let (old, new) = (self.names(before.as_ref())?, self.names(after.as_ref())?);
        let names = merged(old, new);
        Ok((!names.is_empty()).then_some(Level { before, after, names, path }))
    }

    fn names(&mut self, directory: Option<&Node>) -> io::Result<Vec<Entry>> {
        match directory.map(Node::entries) {
            None => Ok(Vec::new()),
            // A non-root daemon cannot read directories that its sandbox's user protects.
            Some(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.diff.unreadable += 1;
                Ok(Vec::new())
            }
            Some(entries) => entries,
        }
    }

    /// Records the differences of a name, and returns what to descend into.
    fn compare(
        &mut self,
        level: &Level,
        pair: &Pair,
        path: &TreePath,
        place: PathRelation,
    ) -> io::Result<Below> {
        if let (Some(before), Some(after)) = (&pair.before, &pair.after)
            && (is_same_file(before, after) && !is_directory(before)
                || !is_directory(before) && is_untouched(before, after, self.options.lineage))
        {
            return Ok(None);
        }
        let child = |directory: &Option<Node>, seen: &Option<Stat>| match (directory, seen) {
            (Some(directory), Some(_)) => directory.child(pair.name.to_bytes()),
            _ => Ok(None),
        };
        let before = child(&level.before, &pair.before)?;
        let after = child(&level.after, &pair.after)?;
        match (&before, &after) {
            (None, None) => return Ok(None),
            (Some(node), None) if place == PathRelation::Within => {
                self.one_sided(ChangeKind::Deleted, path, node)?;
            }
            // Parents of a removed entry may stay.
            (Some(_), None) => {}
            (None, Some(node)) => self.one_sided(ChangeKind::Added, path, node)?,
            (Some(old), Some(new)) if old.is_same_tree(new) => return Ok(None),
            (Some(old), Some(new)) => {
                let differs = aspects(old, new, path, self.options)?;
                if place == PathRelation::Within || differs.contains(&Aspect::Type) {
                    self.note(path.clone(), differs, old, new)?;
                }
            }
        }
        let (before, after) = (only_directory(before), only_directory(after));
        Ok((before.is_some() || after.is_some()).then_some((before, after)))
    }

    fn one_sided(&mut self, kind: ChangeKind, path: &TreePath, node: &Node) -> io::Result<()> {
        let facts = Some(facts(node)?);
        let (before, after) = match kind {
            ChangeKind::Deleted => (facts, None),
            _ => (None, facts),
        };
        let path = path.clone();
        let (from_path, differs, text) = (None, Vec::new(), None);
        self.keep(Change { kind, path, from_path, differs, before, after, text })
    }

    fn keep(&mut self, change: Change) -> io::Result<()> {
        if let Some(memory) = &self.options.memory {
            // In memory, in the answer, and serialized.
            let bytes = 2 * size_of::<Change>() + 3 * change.path.bytes().len();
            memory.take(bytes as u64).map_err(io::Error::other)?;
        }
        self.diff.changes.push(change);
        Ok(())
    }

    fn note(
        &mut self,
        path: TreePath,
        differs: Vec<Aspect>,
        old: &Node,
        new: &Node,
    ) -> io::Result<()> {
        let modified =
            |aspect: &Aspect| matches!(aspect, Aspect::Type | Aspect::Content | Aspect::Target);
        let kind =
            if differs.iter().any(modified) { ChangeKind::Modified } else { ChangeKind::Mode };
        if differs.is_empty() {
            return Ok(());
        }
        let (before, after) = (Some(facts(old)?), Some(facts(new)?));
        let (from_path, text) = (None, None);
        self.keep(Change { kind, path, from_path, differs, before, after, text })
    }
}

/// Which aspects of two entries with one name differ.
fn aspects(old: &Node, new: &Node, path: &TreePath, options: &Options) -> io::Result<Vec<Aspect>> {
    let (before, after) = (old.stat(), new.stat());
    if is_same_file(before, after) || is_untouched(before, after, options.lineage) {
        return Ok(Vec::new());
    }
    let mut differs = Vec::new();
    if old.kind() != new.kind() {
        differs.push(Aspect::Type);
    } else {
        match old.kind() {
            FileType::RegularFile => {
                let same = is_same(old, new).map_err(|error| named(error, path))?;
                differs.extend((!same).then_some(Aspect::Content));
            }
            FileType::Symlink if old.read_link()? != new.read_link()? => {
                differs.push(Aspect::Target);
            }
            FileType::CharacterDevice | FileType::BlockDevice
                if before.st_rdev != after.st_rdev =>
            {
                differs.push(Aspect::Content);
            }
            _ => {}
        }
        if old.attributes()? != new.attributes()? {
            differs.push(Aspect::Attributes);
        }
    }
    // The mode of a link cannot be set.
    let link = new.kind() == FileType::Symlink;
    if !link && (before.st_mode & 0o7777) != (after.st_mode & 0o7777) {
        differs.push(Aspect::Mode);
    }
    if (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid) {
        differs.push(Aspect::Owner);
    }
    Ok(differs)
}

pub(super) fn named(error: io::Error, path: &TreePath) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.shown()))
}

fn facts(node: &Node) -> io::Result<Facts> {
    let target = match node.kind() {
        FileType::Symlink => Some(node.read_link()?),
        _ => None,
    };
    Ok(Facts { target, ..Facts::of(node.stat()) })
}

fn only_directory(node: Option<Node>) -> Option<Node> {
    node.filter(|node| node.kind() == FileType::Directory)
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// The names of two sorted lists, in reverse order.
fn merged(old: Vec<Entry>, new: Vec<Entry>) -> Vec<Pair> {
    let mut names = Vec::with_capacity(old.len().max(new.len()));
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(one), Some(other)) => one.name.cmp(&other.name),
        };
        let before = if order.is_le() { old.next() } else { None };
        let after = if order.is_ge() { new.next() } else { None };
        let (before, after) = (before.map(split), after.map(split));
        let name = before.as_ref().or(after.as_ref()).map(|(name, _)| name.clone());
        let Some(name) = name else { break };
        names.push(Pair { name, before: before.map(|b| b.1), after: after.map(|a| a.1) });
    }
    names.reverse();
    names
}

fn split(entry: Entry) -> (CString, Stat) {
    (entry.name, entry.stat)
}
