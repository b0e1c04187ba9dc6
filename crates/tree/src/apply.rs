//! The decision of `apply`: the steps that give a caller's directory the changes of a sandbox, and the conflicts.
//!
//! Three states of every file are compared: as it was in the sandbox before, as it is there now, and as the caller says
//! that it is in the directory. Where the directory has it as it was, the change is carried out; where it has it as it
//! is now, nothing is left to do; anything else is a conflict, unless the caller has said whose version wins. A path in
//! conflict stays as it is in the directory, with everything beneath it; a rename is carried out whole or not at all.
//!
//! Nothing is read here: the caller describes the directory, and carries out the steps.

mod here;
mod wire;

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::TreePath;
use crate::diff::{Aspect, ChangeKind, FileChange, FileFacts, FileKind};
use crate::digest::Digest;
use crate::tree_path::PathProblem;

pub use here::{Here, LocalFile, LocalKind, OnConflict, Scope};
pub use wire::{
    ActionKind, ApplyAction, ApplyPlan, PlanConflict, PlanPath, PlanRename, PlanRequest,
};

/// The name of the first file of a plan's archive; the files that the plan writes follow, under their paths in the
/// sandbox.
pub const PLAN: &str = "sandkeep-plan.json";

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
    /// What the directory has already as the sandbox has it.
    pub same: Vec<TreePath>,
    /// How many changes were left out, because the caller does not list their paths.
    pub left_out: usize,
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
        bytes: u64,
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
    pub why: Cow<'static, str>,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanProblem {
    #[error(transparent)]
    Path(#[from] PathProblem),
    #[error("the diff is invalid: {0}")]
    Diff(&'static str),
    #[error(
        "/{path} is not a directory in the sandbox; give the directory that it is in, and select the file"
    )]
    NoDirectory { path: String },
    #[error("{path} is listed twice")]
    Twice { path: String },
    #[error("the {what} of {path} is needed")]
    Needed { what: &'static str, path: String },
}

/// Compares the changes with what the caller has.
pub fn plan(here: &Here, changes: &[FileChange], top: &TreePath) -> Result<Plan, PlanProblem> {
    let mut planning = Planning {
        here,
        plan: Plan::default(),
        needed: BTreeSet::new(),
        renamed: Vec::new(),
        blocked: BTreeSet::new(),
    };
    for change in changes {
        let source = change.tree_path()?;
        let Some(path) = source.within(top) else { continue };
        // The directory itself belongs to the caller, whatever its counterpart became.
        if path.is_root() {
            match change.after.as_ref().or(change.before.as_ref()).map(|facts| facts.kind) {
                Some(FileKind::Directory) | None => continue,
                Some(_) => return Err(PlanProblem::NoDirectory { path: source.shown() }),
            }
        }
        let from = change.from_tree_path()?.and_then(|from| from.within(top));
        // One half of a rename would lose the file.
        if ![Some(&path), from.as_ref()].into_iter().flatten().all(|path| here.covers(path)) {
            planning.plan.left_out += 1;
            continue;
        }
        match change.kind {
            ChangeKind::Mode => planning.mode(change, path),
            ChangeKind::Renamed => planning.rename(change, from, path, &source)?,
            ChangeKind::Added | ChangeKind::Modified | ChangeKind::Deleted => {
                let (before, after) = (change.before.as_ref(), change.after.as_ref());
                planning.change(before, after, path, &source)?;
            }
        }
    }
    Ok(planning.finish())
}

struct Planning<'a> {
    here: &'a Here,
    plan: Plan,
    /// Directories that must be removed, because something else takes their place.
    needed: BTreeSet<TreePath>,
    /// From where to where files were renamed.
    renamed: Vec<(TreePath, TreePath)>,
    /// The paths in conflict.
    blocked: BTreeSet<TreePath>,
}

impl Planning<'_> {
    fn rename(
        &mut self,
        change: &FileChange,
        from: Option<TreePath>,
        path: TreePath,
        source: &TreePath,
    ) -> Result<(), PlanProblem> {
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
    ) -> Result<(), PlanProblem> {
        let here = self.here.at(&path);
        if self.here.is_as(&path, after)? {
            self.plan.same.push(path);
            return Ok(());
        }
        if !self.here.is_as(&path, before)? && !self.here.was_applied(&path) {
            let why = match (here, before) {
                (None, _) => "it was removed here and changed in the sandbox",
                (Some(_), None) => "it is new in the sandbox and something else here",
                (Some(_), Some(_)) => "it was changed here and in the sandbox",
            };
            match self.here.on_conflict(&path) {
                OnConflict::Ours => return Ok(()),
                OnConflict::Theirs => {}
                OnConflict::Report => {
                    self.conflict(path, why);
                    return Ok(());
                }
            }
        }
        let mode = |facts: &FileFacts| {
            let as_here = here.filter(|here| here.kind == LocalKind::File);
            let same = before.is_some_and(|before| before.mode == facts.mode);
            let own = as_here.filter(|_| same).and_then(|here| here.mode);
            own.unwrap_or_else(|| facts.permissions()) & MODE_MASK
        };
        let act = match after {
            None => None,
            Some(facts) => match facts.kind {
                FileKind::Directory => Some(Act::MakeDirectory { mode: mode(facts) }),
                FileKind::File => {
                    let digest = facts.digest.ok_or(PlanProblem::Diff("a digest is missing"))?;
                    let (mode, source) = (mode(facts), source.clone());
                    Some(Act::Write { mode, bytes: facts.bytes, digest, source })
                }
                FileKind::Symlink => {
                    let target = facts.target_bytes()?;
                    let target = target.ok_or(PlanProblem::Diff("a target is missing"))?;
                    Some(Act::Link { target })
                }
                // They have no meaning outside of the sandbox.
                FileKind::Fifo | FileKind::Socket | FileKind::Device => return Ok(()),
            },
        };
        self.remove_first(here, &path, act.as_ref());
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
    fn remove_first(&mut self, here: Option<&LocalFile>, path: &TreePath, next: Option<&Act>) {
        let Some(here) = here else { return };
        let directory = here.kind == LocalKind::Directory;
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

    fn mode(&mut self, change: &FileChange, path: TreePath) {
        let Some(after) = change.after.as_ref() else { return };
        let settable = matches!(after.kind, FileKind::File | FileKind::Directory);
        if !settable || !change.differs.contains(&Aspect::Mode) {
            return;
        }
        let mode = after.permissions() & MODE_MASK;
        match self.here.at(&path) {
            Some(here) if here.kind.is(after.kind) => {
                if here.mode.map(|mode| mode & MODE_MASK) != Some(mode) {
                    self.plan.steps.push(Step { path, act: Act::Mode { mode } });
                }
            }
            Some(_) => {
                let why = "its mode was changed in the sandbox, and it is something else here";
                self.conflict(path, why);
            }
            None => self.conflict(path, "its mode was changed in the sandbox, and it is not here"),
        }
    }

    /// A path is in conflict once, with the first reason for it.
    fn conflict(&mut self, path: TreePath, why: &'static str) {
        if self.blocked.insert(path.clone()) {
            self.plan.conflicts.push(Conflict { path, why: why.into() });
        }
    }

    fn finish(mut self) -> Plan {
        loop {
            self.keep_what_is_not_empty();
            self.make_parents();
            if !self.drop_what_conflicts() {
                break;
            }
        }
        // Removals come first, from within; then all comes, from without; modes are set when nothing more is written
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
        self.plan.renamed = self.renamed;
        self.plan
    }

    /// Nothing is done at or beneath a path in conflict, and neither to the other name of what was renamed. Returns
    /// whether steps went, which may leave a directory that is not empty.
    fn drop_what_conflicts(&mut self) -> bool {
        let planned = self.plan.steps.len();
        let blocked = &self.blocked;
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
    fn keep_what_is_not_empty(&mut self) {
        let is_removal = |step: &&Step| matches!(step.act, Act::Remove | Act::RemoveDirectory);
        let removed = self.plan.steps.iter().filter(is_removal).map(|step| step.path.clone());
        let mut removed: BTreeSet<TreePath> = removed.collect();
        // Inner directories come after the ones that contain them.
        let candidates: Vec<TreePath> = removed.iter().rev().cloned().collect();
        for path in candidates {
            if self.here.holds_only(&path, &removed) {
                continue;
            }
            removed.remove(&path);
            self.plan.steps.retain(|step| step.path != path);
            if self.needed.contains(&path) {
                let why = "the sandbox has a file in its place, and there is more in it here";
                self.conflict(path, why);
            } else {
                self.plan.kept.push(path)
            }
        }
    }

    /// Missing parent directories of new entries.
    fn make_parents(&mut self) {
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
                match self.here.at(&parent) {
                    Some(here) if here.kind == LocalKind::Directory => break,
                    Some(_) if !gone.contains(&parent) => {
                        let why = "the sandbox has a directory in its place";
                        self.conflict(parent, why);
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
    }
}
