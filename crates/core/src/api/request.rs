//! Request types of the REST API. `/openapi.json`, the tools for models and the client share these types, so they
//! cannot disagree.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::OutputStream;
use crate::{Port, SandboxName, SnapshotName, State};

/// Which sandboxes to list.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// `name=value`: only sandboxes with this label; give several to require all of them.
    #[serde(default)]
    #[param(required = false)]
    pub label: Vec<String>,
    /// Only sandboxes in one of these states: `state=running&state=paused` or `state=running,paused`.
    #[serde(default)]
    #[param(required = false)]
    pub state: Vec<State>,
    /// Only sandboxes of this project.
    pub project: Option<String>,
    /// `created_at` for oldest first, the default; `-created_at` for newest first.
    #[serde(default)]
    #[param(required = false, inline)]
    pub sort: Order,
    /// Length of a page; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page; `sort` must be the same.
    pub cursor: Option<String>,
}

/// The order of a list, by creation time; equal times are ordered by id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Order {
    #[default]
    #[serde(rename = "created_at")]
    OldestFirst,
    #[serde(rename = "-created_at")]
    NewestFirst,
}

impl Order {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OldestFirst => "created_at",
            Self::NewestFirst => "-created_at",
        }
    }

    /// The same for a list that is in order, the oldest first.
    pub fn of_oldest_first<T>(self, mut all: Vec<T>) -> Vec<T> {
        if self == Self::NewestFirst {
            all.reverse();
        }
        all
    }

    pub fn compare<T: Ord>(self, a: &T, b: &T) -> Ordering {
        match self {
            Self::OldestFirst => a.cmp(b),
            Self::NewestFirst => b.cmp(a),
        }
    }
}

/// In which order to list what has no pages.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Sorting {
    /// `created_at` for oldest first, `-created_at` for newest first.
    #[param(inline)]
    pub sort: Option<Order>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PauseSandbox {
    /// Freeze running commands instead of waiting for their end.
    #[serde(default)]
    pub force: bool,
    /// How many seconds to wait for running commands before the pause is refused; 10 by default.
    #[schema(maximum = 600)]
    pub drain_secs: Option<u64>,
}

/// A path in a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FilePath {
    /// Absolute, or relative to the working directory.
    pub path: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ListFiles {
    /// The directory, absolute or relative to the working directory; default: the working directory.
    pub path: Option<String>,
    /// How many levels to list: 1, the default, lists only the directory itself.
    #[param(minimum = 1)]
    pub depth: Option<u64>,
    /// Maximum number of entries; 1000 by default.
    #[param(minimum = 1, maximum = 10_000)]
    pub limit: Option<u64>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeleteFile {
    /// Absolute, or relative to the working directory. A symbolic link itself is deleted, not its target.
    pub path: String,
    /// Also delete a directory that is not empty, with its contents.
    #[serde(default)]
    #[param(required = false)]
    pub recursive: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectory {
    /// Absolute, or relative to the working directory.
    pub path: Option<String>,
    /// Instead of `path` if it is not UTF-8; base64.
    pub path_b64: Option<String>,
    /// Such as `0755`.
    pub mode: Option<String>,
    /// Also create missing parent directories; an existing directory is not an error.
    #[serde(default)]
    pub parents: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// The path to move: absolute, or relative to the working directory.
    pub from: Option<String>,
    /// Instead of `from` if it is not UTF-8; base64.
    pub from_b64: Option<String>,
    /// The new path itself, even if a directory of that name exists.
    pub to: Option<String>,
    pub to_b64: Option<String>,
    /// Replace an existing file at the new path.
    #[serde(default)]
    pub overwrite: bool,
    /// Create missing parent directories.
    #[serde(default)]
    pub parents: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProcess {
    /// Run by `/bin/sh -c`; alternatively `argv`.
    pub command: Option<String>,
    pub argv: Option<Vec<String>>,
    /// Environment of this process.
    pub env: Option<BTreeMap<String, String>>,
    /// Its working directory.
    pub cwd: Option<String>,
    pub user: Option<String>,
    /// The port that it serves: it gets a `url`, a raw `address` in local mode, and is `running` once the port accepts
    /// connections.
    #[schema(value_type = Option<u16>)]
    pub port: Option<Port>,
    pub ready: Option<ProcessReady>,
}

/// Condition for being ready: give `http_path` or `tcp`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessReady {
    /// Ready when a GET of this path is answered with a status below 400.
    pub http_path: Option<String>,
    /// `true`: ready when the port accepts a connection.
    pub tcp: Option<bool>,
    /// 30 by default, at most 600. A process that is not ready by then is reported as
    /// `starting` and continues.
    pub timeout_secs: Option<u64>,
}

/// The part of the output to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadOutput {
    /// Only this stream; both, in order of arrival, if left out.
    #[param(inline)]
    pub stream: Option<OutputStream>,
    /// The first byte of `stream` to read.
    pub offset: Option<u64>,
    /// The first byte of each stream to read, without `stream`.
    pub stdout_offset: Option<u64>,
    pub stderr_offset: Option<u64>,
    /// Wait for further output, until the exec ends.
    #[serde(default)]
    #[param(required = false)]
    pub follow: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignPortUrl {
    /// How long the URL is valid: an hour by default, at most a week.
    pub expires_secs: Option<u64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Unique in the sandbox; default: its id. Names of turns, ids and `now` are reserved.
    pub name: Option<SnapshotName>,
    /// Description.
    #[schema(max_length = 1024)]
    pub note: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SealTurn {
    /// Note about the turn.
    #[schema(max_length = 1024)]
    pub note: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackSandbox {
    /// The name or the id of a snapshot or a turn, such as `turn-0001`.
    pub snapshot: SnapshotName,
    /// End running execs as well.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// The name or the id of a snapshot; default: the current state of the sandbox.
    pub snapshot: Option<SnapshotName>,
    /// Number of forks; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<usize>,
    /// Labels in addition to those of the sandbox; `null` removes one.
    #[schema(value_type = Option<BTreeMap<String, Option<String>>>)]
    pub labels: Option<BTreeMap<String, Option<String>>>,
    /// The name of the fork, if there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<SandboxName>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffSandbox {
    /// A snapshot, by id or name, also of a sandbox that this one is a fork of; `base` for what the sandbox started with;
    /// or `now`. Default: `base`.
    pub from: Option<String>,
    /// As `from`; default: `now`.
    pub to: Option<String>,
    /// Only this file, or this directory and its contents: absolute, or relative to the working directory.
    pub path: Option<String>,
    /// Include the changed lines, as `diff -u` does.
    pub text: Option<bool>,
    /// Maximum number of changes: 10,000 by default, at most 200,000.
    #[param(minimum = 1, maximum = 200_000)]
    pub limit: Option<usize>,
    /// `json` by default.
    #[param(inline)]
    pub format: Option<DiffFormat>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PlanFormat {
    /// `tar` adds the files; `json` by default.
    #[param(inline)]
    pub format: Option<DiffFormat>,
}

/// The format of a diff.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffFormat {
    Json,
    /// A tar with the new and changed files as in `to`, under their paths without the leading slash. Its first file is
    /// `sandkeep-diff.json`: the diff, with a `digest` of every regular file before and after. The sandbox at one
    /// moment, in constant memory; `text` and `limit` do not apply.
    Tar,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revert {
    /// The name or the id of a snapshot.
    pub snapshot: SnapshotName,
    /// Files and directories, absolute or relative to the working directory; a directory includes its contents.
    #[schema(min_items = 1, max_items = 1000)]
    pub paths: Vec<String>,
}
