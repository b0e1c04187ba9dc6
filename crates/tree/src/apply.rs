//! Computes the steps that give a directory the changes of a sandbox, and the conflicts.
//!
//! Three states of every file are compared: as it was in the sandbox before, as it is there now, and as it is in the
//! directory. Where the directory has it as it was, the change is carried out; where it has it as it is now,
//! nothing is left to do; anything else is a conflict, unless the caller has said whose version wins. A path in conflict
//! stays as it is in the directory, with everything beneath it; a rename is carried out whole or not at all.

use std::collections::BTreeSet;
use std::io;

use rustix::fs::FileType;

use super::ApplyError;
use super::select::{Left, PathKind, Selection, Winner};
use sandkeep_tree::{
    Node, TreePath, View,
    diff::{Aspect, ChangeKind, FileChange, FileFacts, FileKind, digest},
    digest::Digest,
};

/// Mode bits that are applied: set-id bits from a sandbox are not.
const MODE_MASK: u32 = 0o777;

#[derive(Debug, Default)]
pub struct Plan {
    /// In an order in which they can be executed.
    pub steps: Vec<Step>,
    pub conflicts: Vec<Conflict>,
    /// Directories that are kept, because the caller has files of its own in them.
    pub kept: Vec<TreePath>,
    /// From where to where files were renamed; both halves are steps.
    pub renamed: Vec<(TreePath, TreePath)>,
    /// How many changes were not looked at, because ignore files name them.
    pub ignored: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub path: TreePath,
    pub act: Act,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Remove,
    RemoveDirectory,
    MakeDirectory {
        mode: u32,
    },
    Write {
        mode: u32,
        digest: Digest,
        /// Its path in the sandbox.
        source: TreePath,
    },
    Link {
        target: Vec<u8>,
    },
    Mode {
        mode: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub path: TreePath,
    pub why: &'static str,
}

/// Looks at the directory, and at nothing but what the changes name.
pub fn plan(
    dir: &View,
    changes: &[FileChange],
    top: &TreePath,
    selection: &Selection,
) -> Result<Plan, ApplyError> {
    let mut planning = Planning {
        dir,
        selection,
        plan: Plan::default(),
        needed: BTreeSet::new(),
        renamed: Vec::new(),
    };
    for change in changes {
        let source = change.tree_path()?;
        let Some(path) = source.within(top) else { continue };
        // The directory itself belongs to the caller, whatever its counterpart became.
        if path.is_root() {
            match change.after.as_ref().or(change.before.as_ref()).map(|facts| facts.kind) {
                Some(FileKind::Directory) | None => continue,
                Some(_) => return Err(ApplyError::NoDirectory { path: source.shown() }),
            }
        }
        let from = change.from_tree_path()?.and_then(|from| from.within(top));
        if planning.leaves(change, &path, from.as_ref()) {
            continue;
        }
        match change.kind {
            ChangeKind::Mode => planning.mode(change, path)?,
            ChangeKind::Renamed => planning.rename(change, from, path, &source)?,
            ChangeKind::Added | ChangeKind::Modified | ChangeKind::Deleted => {
                let (before, after) = (change.before.as_ref(), change.after.as_ref());
                planning.change(before, after, path, &source)?;
            }
        }
    }
    planning.finish()
}

struct Planning<'a> {
    dir: &'a View,
    selection: &'a Selection,
    plan: Plan,
    /// Directories that must be removed, because something else takes their place.
    needed: BTreeSet<TreePath>,
    /// From where to where files were renamed.
    renamed: Vec<(TreePath, TreePath)>,
}

impl Planning<'_> {
    /// Whether the caller does not want a change. One half of a rename would lose the file.
    fn leaves(&mut self, change: &FileChange, path: &TreePath, from: Option<&TreePath>) -> bool {
        let kind = |facts: &Option<FileFacts>| match facts.as_ref().map(|facts| facts.kind) {
            Some(FileKind::Directory) => PathKind::Directory,
            Some(_) | None => PathKind::Other,
        };
        let now = if change.after.is_some() { kind(&change.after) } else { kind(&change.before) };
        let left = self.selection.leaves(path, now);
        let left = left
            .or_else(|| from.and_then(|from| self.selection.leaves(from, kind(&change.before))));
        self.plan.ignored += usize::from(left == Some(Left::Ignored));
        left.is_some()
    }

    fn rename(
        &mut self,
        change: &FileChange,
        from: Option<TreePath>,
        path: TreePath,
        source: &TreePath,
    ) -> Result<(), ApplyError> {
        let conflicts = self.plan.conflicts.len();
        self.change(None, change.after.as_ref(), path.clone(), source)?;
        let Some(from) = from else { return Ok(()) };
        if self.plan.conflicts.len() == conflicts {
            self.change(change.before.as_ref(), None, from.clone(), source)?;
        }
        self.renamed.push((from, path));
        Ok(())
    }

    fn change(
        &mut self,
        before: Option<&FileFacts>,
        after: Option<&FileFacts>,
        path: TreePath,
        source: &TreePath,
    ) -> Result<(), ApplyError> {
        let here = self.dir.look(&path)?;
        if is_as(here.as_ref(), after)? {
            return Ok(());
        }
        if !is_as(here.as_ref(), before)? {
            let why = match (&here, before) {
                (None, _) => "it was removed here and changed in the sandbox",
                (Some(_), None) => "it is new in the sandbox and something else here",
                (Some(_), Some(_)) => "it was changed here and in the sandbox",
            };
            match self.selection.winner(&path) {
                Winner::Ours => return Ok(()),
                Winner::Theirs => {}
                Winner::Undecided => {
                    self.plan.conflicts.push(Conflict { path, why });
                    return Ok(());
                }
            }
        }
        let mode = |facts: &FileFacts| {
            let as_here = here.as_ref().filter(|node| node.kind() == FileType::RegularFile);
            let same = before.is_some_and(|before| before.mode == facts.mode);
            match as_here.filter(|_| same) {
                Some(node) => node.stat().st_mode & MODE_MASK,
                None => facts.permissions() & MODE_MASK,
            }
        };
        let act = match after {
            None => None,
            Some(facts) => match facts.kind {
                FileKind::Directory => Some(Act::MakeDirectory { mode: mode(facts) }),
                FileKind::File => {
                    let digest = facts.digest.ok_or(ApplyError::Manifest("a digest is missing"))?;
                    Some(Act::Write { mode: mode(facts), digest, source: source.clone() })
                }
                FileKind::Symlink => {
                    let target = facts.target_bytes()?;
                    let target = target.ok_or(ApplyError::Manifest("a target is missing"))?;
                    Some(Act::Link { target })
                }
                // They have no meaning outside of the sandbox.
                FileKind::Fifo | FileKind::Socket | FileKind::Device => return Ok(()),
            },
        };
        self.remove_first(here.as_ref(), &path, act.as_ref());
        match act {
            // Its contents could not be written if the caller had no write permission.
            Some(Act::MakeDirectory { mode }) if mode & 0o700 != 0o700 => {
                let open = Act::MakeDirectory { mode: mode | 0o700 };
                self.plan.steps.push(Step { path: path.clone(), act: open });
                self.plan.steps.push(Step { path, act: Act::Mode { mode } });
            }
            Some(act) => self.plan.steps.push(Step { path, act }),
            None => {}
        }
        Ok(())
    }

    /// An existing entry is removed before one of another kind is created. A file is replaced in one step.
    fn remove_first(&mut self, here: Option<&Node>, path: &TreePath, next: Option<&Act>) {
        let Some(node) = here else { return };
        let directory = node.kind() == FileType::Directory;
        let act = match next {
            Some(Act::Write { .. } | Act::Link { .. }) if !directory => return,
            _ if directory => Act::RemoveDirectory,
            _ => Act::Remove,
        };
        if directory && next.is_some() {
            self.needed.insert(path.clone());
        }
        self.plan.steps.push(Step { path: path.clone(), act });
    }

    fn mode(&mut self, change: &FileChange, path: TreePath) -> Result<(), ApplyError> {
        let Some(after) = change.after.as_ref() else { return Ok(()) };
        let settable = matches!(after.kind, FileKind::File | FileKind::Directory);
        if !settable || !change.differs.contains(&Aspect::Mode) {
            return Ok(());
        }
        let mode = after.permissions() & MODE_MASK;
        match self.dir.look(&path)? {
            Some(node) if kind_of(&node) == Some(after.kind) => {
                if node.stat().st_mode & MODE_MASK != mode {
                    self.plan.steps.push(Step { path, act: Act::Mode { mode } });
                }
            }
            Some(_) => {
                let why = "its mode was changed in the sandbox, and it is something else here";
                self.plan.conflicts.push(Conflict { path, why });
            }
            None => {
                let why = "its mode was changed in the sandbox, and it is not here";
                self.plan.conflicts.push(Conflict { path, why });
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Plan, ApplyError> {
        loop {
            self.keep_what_is_not_empty()?;
            self.make_parents()?;
            if !self.drop_what_conflicts() {
                break;
            }
        }
        // What goes goes first, from within; then all comes, from without; modes are set when nothing more is
        // written into a directory.
        let rank = |step: &Step| match step.act {
            Act::Remove | Act::RemoveDirectory => 0,
            Act::MakeDirectory { .. } | Act::Write { .. } | Act::Link { .. } => 1,
            Act::Mode { .. } => 2,
        };
        self.plan.steps.sort_by(|one, other| {
            let within_first = other.path.cmp(&one.path);
            rank(one).cmp(&rank(other)).then(match rank(one) {
                1 => within_first.reverse(),
                _ => within_first,
            })
        });
        self.plan.renamed = self.renamed;
        Ok(self.plan)
    }

    /// Nothing is done at or beneath a path in conflict, and neither to the other name of what was renamed. Returns
    /// whether steps went, which may leave a directory that is not empty.
    fn drop_what_conflicts(&mut self) -> bool {
        let planned = self.plan.steps.len();
        let blocked: BTreeSet<TreePath> =
            self.plan.conflicts.iter().map(|conflict| conflict.path.clone()).collect();
        let is_blocked = |path: &TreePath| {
            let mut above = Some(path.clone());
            while let Some(path) = above {
                if blocked.contains(&path) {
                    return true;
                }
                above = path.split().map(|(parent, _)| parent);
            }
            false
        };
        let halves: BTreeSet<TreePath> = self
            .renamed
            .iter()
            .filter(|(from, to)| is_blocked(from) || is_blocked(to))
            .flat_map(|(from, to)| [from.clone(), to.clone()])
            .collect();
        self.plan.steps.retain(|step| !is_blocked(&step.path) && !halves.contains(&step.path));
        self.plan.steps.len() < planned
    }

    /// Whether all that is in a directory goes. If not, it stays, or nothing can take its place.
    fn keep_what_is_not_empty(&mut self) -> io::Result<()> {
        let is_removal = |step: &&Step| matches!(step.act, Act::Remove | Act::RemoveDirectory);
        let removed = self.plan.steps.iter().filter(is_removal).map(|step| step.path.clone());
        let mut removed: BTreeSet<TreePath> = removed.collect();
        // Inner directories come after the ones that contain them.
        let candidates: Vec<TreePath> = removed.iter().rev().cloned().collect();
        for path in candidates {
            let Some(node) = self.dir.look(&path)? else { continue };
            if node.kind() != FileType::Directory {
                continue;
            }
            let goes = |name: &[u8]| path.join(name).is_ok_and(|path| removed.contains(&path));
            if node.entries()?.iter().all(|entry| goes(entry.name.to_bytes())) {
                continue;
            }
            removed.remove(&path);
            self.plan.steps.retain(|step| step.path != path);
            match self.needed.contains(&path) {
                true => {
                    let why = "the sandbox has a file in its place, and there is more in it here";
                    self.plan.conflicts.push(Conflict { path, why });
                }
                false => self.plan.kept.push(path),
            }
        }
        Ok(())
    }

    /// Missing parent directories of new entries.
    fn make_parents(&mut self) -> io::Result<()> {
        let comes = |step: &&Step| {
            matches!(step.act, Act::MakeDirectory { .. } | Act::Write { .. } | Act::Link { .. })
        };
        let gone: BTreeSet<TreePath> = self
            .plan
            .steps
            .iter()
            .filter(|step| matches!(step.act, Act::Remove | Act::RemoveDirectory))
            .map(|step| step.path.clone())
            .collect();
        let mut made: BTreeSet<TreePath> = self
            .plan
            .steps
            .iter()
            .filter(|step| matches!(step.act, Act::MakeDirectory { .. }))
            .map(|step| step.path.clone())
            .collect();
        let coming: Vec<TreePath> =
            self.plan.steps.iter().filter(comes).map(|step| step.path.clone()).collect();
        for path in coming {
            let mut above = path.split().map(|(parent, _)| parent);
            while let Some(parent) = above.filter(|parent| !parent.is_root()) {
                above = parent.split().map(|(parent, _)| parent);
                if made.contains(&parent) {
                    break;
                }
                match self.dir.look(&parent)? {
                    Some(node) if node.kind() == FileType::Directory => break,
                    Some(_) if !gone.contains(&parent) => {
                        let why = "the sandbox has a directory in its place";
                        self.plan.conflicts.push(Conflict { path: parent, why });
                        break;
                    }
                    Some(_) | None => {
                        let act = Act::MakeDirectory { mode: 0o755 };
                        self.plan.steps.push(Step { path: parent.clone(), act });
                        made.insert(parent);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Whether an entry matches the facts, as far as the directory is concerned.
fn is_as(here: Option<&Node>, facts: Option<&FileFacts>) -> Result<bool, ApplyError> {
    let (Some(node), Some(facts)) = (here, facts) else {
        return Ok(here.is_none() && facts.is_none());
    };
    if kind_of(node) != Some(facts.kind) {
        return Ok(false);
    }
    Ok(match facts.kind {
        FileKind::File => {
            let size = u64::try_from(node.stat().st_size).unwrap_or(0);
            size == facts.bytes && Some(digest(node)?) == facts.digest
        }
        FileKind::Symlink => Some(node.read_link()?) == facts.target_bytes()?,
        FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => true,
    })
}

fn kind_of(node: &Node) -> Option<FileKind> {
    match node.kind() {
        FileType::RegularFile => Some(FileKind::File),
        FileType::Directory => Some(FileKind::Directory),
        FileType::Symlink => Some(FileKind::Symlink),
        FileType::Fifo => Some(FileKind::Fifo),
        FileType::Socket => Some(FileKind::Socket),
        FileType::CharacterDevice | FileType::BlockDevice => Some(FileKind::Device),
        FileType::Unknown => None,
    }
}
