//! Codebases.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::rules::RulesDraft;
use crate::{CodebaseId, CodebaseMode, CodebaseName, Owner, SandboxId, SourceDraft};

/// A codebase to create.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCodebase {
    /// Only one codebase of its owner has it.
    pub name: CodebaseName,
    /// The project it belongs to; default: the key's own project, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// What is in it at first: `dir` or `upload`, without a `path`. Default: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceDraft>,
    /// Size limit of its files, in MiB. Needs a storage with the capability `disk_quota`, where there is a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
}

/// A codebase as the API shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Codebase {
    pub id: CodebaseId,
    /// Usable wherever the id is.
    pub name: CodebaseName,
    pub state: CodebaseState,
    pub owner: Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_mb: Option<u64>,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// The sandboxes that have it, oldest first.
    pub sandboxes: Vec<SandboxId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodebaseState {
    Creating,
    Ready,
    Deleting,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Codebases {
    /// By name.
    pub items: Vec<Codebase>,
}

/// What is in a codebase at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodebaseSize {
    /// Files, directories and links.
    pub entries: u64,
    /// Total size of the files.
    pub bytes: u64,
}

/// How to compare a codebase with what it was created from.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffCodebase {
    /// Include the changed lines of text files.
    pub text: Option<bool>,
    /// Maximum number of changes; 10,000 by default.
    #[param(minimum = 1, maximum = 200_000)]
    pub limit: Option<usize>,
    /// `json`, or `tar`: a list of the changes and the new files.
    #[param(inline)]
    pub format: Option<super::DiffFormat>,
}

/// The codebase of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MountedCodebase {
    pub id: CodebaseId,
    pub name: CodebaseName,
    /// Where it is in the sandbox.
    pub mount: String,
    pub mode: CodebaseMode,
    /// How it comes into the sandbox.
    pub served: ServedBy,
}

/// How the rules of a codebase are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServedBy {
    /// By mounts alone: as fast as any other directory.
    Bind,
    /// By a FUSE server of the sandbox's own, which judges every name. New rules also apply to open files.
    Fuse,
    /// By such a server, while the kernel reads and writes contents by itself. New rules apply to the next open.
    Passthrough,
}

/// The rules of a sandbox's codebase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxRules {
    /// As they were given; `full-access` if none were.
    pub rules: RulesDraft,
    pub served: ServedBy,
    /// When rules apply that replace these.
    pub effect: RulesEffect,
    /// How many processes `revoke` has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub killed: Option<u64>,
}

/// What happens to files that are open and that new rules forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Revoke {
    /// The processes that have them open or mapped are ended.
    Kill,
}

/// When new rules apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RulesEffect {
    /// At once, also to open files and mapped pages.
    AtOnce,
    /// To names at once, to files when they are opened next, as after chmod.
    NextOpen,
    /// When the sandbox starts next.
    NextStart,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceRules {
    pub rules: RulesDraft,
    /// Default: open files stay open where rules apply from the next open on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoke: Option<Revoke>,
}

/// Paths to be judged by rules.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRules {
    /// Relative to the root of the codebase.
    pub paths: Vec<String>,
    /// Judge by these rules. Default: those of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RulesDraft>)]
    pub rules: Option<RulesDraft>,
}

/// What rules say of some paths.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckedRules {
    pub items: Vec<CheckedPath>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CheckedPath {
    pub path: String,
    /// `none`, `view`, `read` or `write`.
    pub permission: String,
    /// The rule that decided; absent if none matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}
