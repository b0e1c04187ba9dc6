//! Computes the steps that give a directory the changes of a sandbox, and the conflicts.
//!
//! Every file has three states: in the sandbox before, in the sandbox now, and in the directory. If the directory has
//! the state of before, the change is applied; if it has the state of now, nothing is left to do; everything else is a
//! conflict, and with a conflict nothing is applied at all.

use std::collections::BTreeSet;
use std::io;

use rustix::fs::FileType;

use super::ApplyError;
use sandkeep_tree::{
    Node, TreePath, View,
    diff::{Aspect, ChangeKind, FileKind, Told, ToldFacts, digest},
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

/// Reads only those paths of the directory that the changes name.
pub fn plan(dir: &View, changes: &[Told], top: &TreePath) -> Result<Plan, ApplyError> {
    let mut planning = Planning { dir, plan: Plan::default(), needed: BTreeSet::new() };
    for change in changes {
        let source = change.tree_path()?;
        let Some(path) = source.within(top) else { continue };
        // The directory itself belongs to the caller, whatever its counterpart became.
        if path.is_root() {
            continue;
        }
        match change.kind {
            ChangeKind::Mode => planning.mode(change, path)?,
            ChangeKind::Renamed => {
                if let Some(from) = change.from_tree_path()?.and_then(|from| from.within(top)) {
                    planning.change(change.before.as_ref(), None, from, &source)?;
                }
                planning.change(None, change.after.as_ref(), path, &source)?;
            }
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
    plan: Plan,
    /// Directories that must be removed, because something else takes their place.
    needed: BTreeSet<TreePath>,
}

impl Planning<'_> {
    fn change(
        &mut self,
        before: Option<&ToldFacts>,
        after: Option<&ToldFacts>,
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
            self.plan.conflicts.push(Conflict { path, why });
            return Ok(());
        }
        let mode = |facts: &ToldFacts| {
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

    fn mode(&mut self, change: &Told, path: TreePath) -> Result<(), ApplyError> {
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
        self.keep_what_is_not_empty()?;
        self.make_parents()?;
        // Removals first, innermost first; then creations, outermost first; modes last, when no more files are written
        // into a directory.
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
        Ok(self.plan)
    }

    /// Checks whether the whole content of a directory is removed. If not, the directory is kept, and nothing can take
    /// its place.
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
fn is_as(here: Option<&Node>, facts: Option<&ToldFacts>) -> Result<bool, ApplyError> {
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
