//! Requests for a plan, and plans, in the format of the API. A path that is not UTF-8 is given as in a diff.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::here::octal;
use super::{Act, Conflict, LocalFile, OnConflict, Plan, PlanProblem, Scope, Step};
use crate::TreePath;
use crate::diff::{Side, bytes_of, spelled};
use crate::digest::Digest;

/// A directory of the caller, and the changes that it is to be given.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlanApply)]
pub struct PlanRequest {
    /// The directory in the sandbox that corresponds to the caller's [default: the workspace, or the working directory]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The snapshot that the caller's directory corresponds to [default: base]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The caller's files.
    pub files: Vec<LocalFile>,
    #[serde(default)]
    pub scope: Scope,
    #[serde(default)]
    pub on_conflict: OnConflict,
}

/// What a caller does to give its directory the changes of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplyPlan)]
pub struct ApplyPlan {
    pub from: Side,
    /// Whether nothing was being written meanwhile, as in a diff.
    pub frozen: bool,
    /// In an order in which they can be carried out.
    pub actions: Vec<ApplyAction>,
    /// Files that changed on both sides. No action concerns them, or what is beneath them.
    pub conflicts: Vec<PlanConflict>,
    /// Directories that the sandbox removed, and that stay because they hold other files of the caller.
    pub kept: Vec<PlanPath>,
    /// Paths that the caller has already as the sandbox has them.
    pub same: Vec<PlanPath>,
    /// Renames. Both halves are among the actions.
    pub renamed: Vec<PlanRename>,
    /// With `scope: listed`: how many changes were left out because their paths are not listed.
    pub left_out: usize,
}

/// One step.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplyAction)]
pub struct ApplyAction {
    pub action: ActionKind,
    /// Relative to the caller's directory.
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
    /// Permissions, of `make_directory`, `write` and `mode`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "octal")]
    #[schema(value_type = Option<String>)]
    pub mode: Option<u32>,
    /// Of `write`: the size of the new content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Of `write`: the digest of the new content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
    /// Of `write`: the absolute path of the content in the sandbox. With `format=tar` the content is in the archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_b64: Option<String>,
    /// Of `link`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_b64: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ApplyActionKind)]
pub enum ActionKind {
    Remove,
    RemoveDirectory,
    MakeDirectory,
    /// Create or replace a regular file.
    Write,
    /// Create or replace a symbolic link.
    Link,
    Mode,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplyConflict)]
pub struct PlanConflict {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplyPath)]
pub struct PlanPath {
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = ApplyRename)]
pub struct PlanRename {
    pub from_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path_b64: Option<String>,
    pub path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
}

impl PlanPath {
    fn of(path: &TreePath) -> Self {
        let (path, path_b64) = spelled(path.bytes());
        Self { path, path_b64 }
    }
}

impl ApplyPlan {
    pub fn of(plan: &Plan, from: Side, frozen: bool) -> Self {
        let conflict = |Conflict { path, why }: &Conflict| {
            let PlanPath { path, path_b64 } = PlanPath::of(path);
            PlanConflict { path, path_b64, reason: why.to_string() }
        };
        let rename = |(from, to): &(TreePath, TreePath)| {
            let (from, PlanPath { path, path_b64 }) = (PlanPath::of(from), PlanPath::of(to));
            PlanRename { from_path: from.path, from_path_b64: from.path_b64, path, path_b64 }
        };
        Self {
            from,
            frozen,
            actions: plan.steps.iter().map(ApplyAction::of).collect(),
            conflicts: plan.conflicts.iter().map(conflict).collect(),
            kept: plan.kept.iter().map(PlanPath::of).collect(),
            same: plan.same.iter().map(PlanPath::of).collect(),
            renamed: plan.renamed.iter().map(rename).collect(),
            left_out: plan.left_out,
        }
    }

    /// The plan that was sent. Its paths are checked; whether they are wanted is up to the caller.
    pub fn plan(self) -> Result<Plan, PlanProblem> {
        let clean = |path: &str, base64: &Option<String>| {
            let bytes = bytes_of(path, base64.as_deref())?;
            Ok::<_, PlanProblem>(TreePath::clean(&bytes)?)
        };
        let all = |paths: &[PlanPath]| {
            paths.iter().map(|path| clean(&path.path, &path.path_b64)).collect::<Result<_, _>>()
        };
        let conflict = |conflict: PlanConflict| {
            let path = clean(&conflict.path, &conflict.path_b64)?;
            Ok::<_, PlanProblem>(Conflict { path, why: conflict.reason.into() })
        };
        let rename = |rename: PlanRename| {
            let from = clean(&rename.from_path, &rename.from_path_b64)?;
            Ok::<_, PlanProblem>((from, clean(&rename.path, &rename.path_b64)?))
        };
        Ok(Plan {
            steps: self.actions.into_iter().map(ApplyAction::step).collect::<Result<_, _>>()?,
            conflicts: self.conflicts.into_iter().map(conflict).collect::<Result<_, _>>()?,
            kept: all(&self.kept)?,
            renamed: self.renamed.into_iter().map(rename).collect::<Result<_, _>>()?,
            same: all(&self.same)?,
            left_out: self.left_out,
        })
    }
}

impl ApplyAction {
    fn of(step: &Step) -> Self {
        let (path, path_b64) = spelled(step.path.bytes());
        let (action, mode) = match &step.act {
            Act::Remove => (ActionKind::Remove, None),
            Act::RemoveDirectory => (ActionKind::RemoveDirectory, None),
            Act::MakeDirectory { mode } => (ActionKind::MakeDirectory, Some(*mode)),
            Act::Write { mode, .. } => (ActionKind::Write, Some(*mode)),
            Act::Link { .. } => (ActionKind::Link, None),
            Act::Mode { mode } => (ActionKind::Mode, Some(*mode)),
        };
        let mut told = Self {
            action,
            path,
            path_b64,
            mode,
            bytes: None,
            digest: None,
            source: None,
            source_b64: None,
            target: None,
            target_b64: None,
        };
        match &step.act {
            Act::Write { bytes, digest, source, .. } => {
                let (source, source_b64) = spelled(&[b"/", source.bytes()].concat());
                (told.bytes, told.digest) = (Some(*bytes), Some(*digest));
                (told.source, told.source_b64) = (Some(source), source_b64);
            }
            Act::Link { target } => {
                let (target, target_b64) = spelled(target);
                (told.target, told.target_b64) = (Some(target), target_b64);
            }
            Act::Remove | Act::RemoveDirectory | Act::MakeDirectory { .. } | Act::Mode { .. } => {}
        }
        told
    }

    fn step(self) -> Result<Step, PlanProblem> {
        let path = TreePath::clean(&bytes_of(&self.path, self.path_b64.as_deref())?)?;
        let needed = |what| PlanProblem::Needed { what, path: path.shown() };
        let mode = || self.mode.map(|mode| mode & super::MODE_MASK).ok_or_else(|| needed("mode"));
        let act = match self.action {
            ActionKind::Remove => Act::Remove,
            ActionKind::RemoveDirectory => Act::RemoveDirectory,
            ActionKind::MakeDirectory => Act::MakeDirectory { mode: mode()? },
            ActionKind::Mode => Act::Mode { mode: mode()? },
            ActionKind::Write => {
                let source = self.source.as_deref().ok_or_else(|| needed("source"))?;
                Act::Write {
                    mode: mode()?,
                    bytes: self.bytes.ok_or_else(|| needed("size"))?,
                    digest: self.digest.ok_or_else(|| needed("digest"))?,
                    source: TreePath::clean(&bytes_of(source, self.source_b64.as_deref())?)?,
                }
            }
            ActionKind::Link => {
                let target = self.target.as_deref().ok_or_else(|| needed("target"))?;
                Act::Link { target: bytes_of(target, self.target_b64.as_deref())? }
            }
        };
        Ok(Step { path, act })
    }
}
