//! What the REST API is asked. `/openapi.json`, the tools that a model is shown and the client all have these types, so
//! none of them can say something else than the others.

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
    /// `name=value`: only those with this label; several for those with all of them.
    #[serde(default)]
    #[param(required = false)]
    pub label: Vec<String>,
    /// Only those in one of these states: `state=running&state=paused` or `state=running,paused`.
    #[serde(default)]
    #[param(required = false)]
    pub state: Vec<State>,
    /// Only those of this project.
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

/// The order of a list, by creation; the id decides between sandboxes of the same moment.
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
    /// Freeze commands that run instead of waiting for their end.
    #[serde(default)]
    pub force: bool,
    /// How many seconds to wait for commands that run before the pause is refused; 10 if it is left out.
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
    /// The directory, absolute or relative to the working directory, which it is if it is left out.
    pub path: Option<String>,
    /// How many levels to list: 1, the default, is the directory alone.
    #[param(minimum = 1)]
    pub depth: Option<u64>,
    /// How many entries at most; 1000 if it is left out.
    #[param(minimum = 1, maximum = 10_000)]
    pub limit: Option<u64>,
    /// The `next_cursor` of the page before.
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct DeleteFile {
    /// Absolute, or relative to the working directory. Of a symbolic link, the link itself is deleted.
    pub path: String,
    /// Also a directory that is not empty, with all that is in it.
    #[serde(default)]
    #[param(required = false)]
    pub recursive: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MakeDirectory {
    /// Absolute, or relative to the working directory.
    pub path: Option<String>,
    /// In its place where it is no UTF-8; base64.
    pub path_b64: Option<String>,
    /// Such as `0755`.
    pub mode: Option<String>,
    /// Make the directories above that are missing; and it is no error if it is there already.
    #[serde(default)]
    pub parents: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// What to move: absolute, or relative to the working directory.
    pub from: Option<String>,
    /// In place of `from`, where that is no UTF-8; base64.
    pub from_b64: Option<String>,
    /// The new name itself, also if it is that of a directory.
    pub to: Option<String>,
    pub to_b64: Option<String>,
    /// Whether a file may be in its place already, and goes.
    #[serde(default)]
    pub overwrite: bool,
    /// Make the directories above that are missing.
    #[serde(default)]
    pub parents: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateProcess {
    /// Run by `/bin/sh -c`; or `argv`.
    pub command: Option<String>,
    pub argv: Option<Vec<String>>,
    /// Variables for it alone.
    pub env: Option<BTreeMap<String, String>>,
    /// The directory that it runs in.
    pub cwd: Option<String>,
    pub user: Option<String>,
    /// The port that it serves: it gets a `url`, a raw `address` in local mode, and is `running` once the
    /// port accepts connections.
    #[schema(value_type = Option<u16>)]
    pub port: Option<Port>,
    pub ready: Option<ProcessReady>,
}

/// What to wait for before the answer: give `http_path` or `tcp`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ProcessReady {
    /// A GET of this path is answered with a status below 400.
    pub http_path: Option<String>,
    /// `true`: the port accepts a connection.
    pub tcp: Option<bool>,
    /// 30 by default, at most 600. A process that is not ready by then is reported as
    /// `starting` and continues.
    pub timeout_secs: Option<u64>,
}

/// Which part of what was printed to read.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadOutput {
    /// Only this one; both, in order of arrival, if it is left out.
    #[param(inline)]
    pub stream: Option<OutputStream>,
    /// The first byte of `stream` that is wanted.
    pub offset: Option<u64>,
    /// The first byte of each that is wanted, without `stream`.
    pub stdout_offset: Option<u64>,
    pub stderr_offset: Option<u64>,
    /// Wait for what is not said yet, until the exec ends.
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
    /// Unique in the sandbox; its id, if it is left out. Names of turns, ids and `now` are taken.
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
    /// End execs that run, too.
    #[serde(default)]
    pub force: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkSandbox {
    /// The name or the id of a snapshot; the sandbox as it is now, if it is left out.
    pub snapshot: Option<SnapshotName>,
    /// How many; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<usize>,
    /// Labels besides those of the sandbox; one that is `null` is left out.
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
    /// A snapshot, by id or name, `base` for what the sandbox was made from, or `now`. The newest snapshot if it
    /// is not said, and `base` if there is none.
    pub from: Option<String>,
    /// The same; `now` if it is not said.
    pub to: Option<String>,
    /// Only this file or directory and what is in it; absolute.
    pub path: Option<String>,
    /// Include the changed lines, as `diff -u` does.
    pub text: Option<bool>,
    /// Maximum number of changes: 10,000 by default, at most 200,000.
    #[param(minimum = 1, maximum = 200_000)]
    pub limit: Option<usize>,
    /// `json` by default.
    pub format: Option<DiffFormat>,
}

/// How a diff is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffFormat {
    Json,
    /// A tar with the files that are new or hold something new, as they are in `to`, under their paths without the
    /// slash. Its first file is `sandkeep-diff.json`: the diff, with a `digest` of every regular file before
    /// and after. One moment of the sandbox, in constant memory; `text` and `limit` do not apply.
    Tar,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Revert {
    /// The name or the id of a snapshot.
    pub snapshot: SnapshotName,
    /// Absolute paths of files and directories; of a directory all that is in it.
    #[schema(min_items = 1, max_items = 1000)]
    pub paths: Vec<String>,
}
