//! Races: forks of a sandbox each try something, a judge gives each a number, and the files of the best are kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ExecStatus, Problem, Snapshot};
use crate::{SandboxId, SnapshotName};

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RaceSandbox {
    /// Number of racers, each a fork of the sandbox. Default: the number of `commands` or `patches`.
    #[schema(minimum = 1, maximum = 100)]
    pub count: Option<usize>,
    /// What every racer runs, by `sh -c`; or `argv`, or `commands`.
    #[schema(example = "./try.sh")]
    pub command: Option<String>,
    /// The program that every racer runs, with its arguments.
    pub argv: Option<Vec<String>>,
    /// What each racer runs, by `sh -c`, in the order of their numbers.
    #[schema(max_items = 100)]
    pub commands: Option<Vec<String>>,
    /// A unified diff for each racer, applied in its working directory before anything runs.
    #[schema(max_items = 100)]
    pub patches: Option<Vec<String>>,
    /// Run by `sh -c` in each racer afterwards. The last line that it prints to stdout is the racer's score, a number:
    /// the highest wins, of equal ones that of the racer with the lowest number.
    #[schema(example = "./score.sh")]
    pub judge: String,
    /// Added to the environment of commands and judge. `SANDKEEP_RACER` is the racer's number, from 1.
    pub env: Option<BTreeMap<String, String>>,
    /// Working directory of commands and judge; default: the sandbox's.
    pub cwd: Option<String>,
    /// Kill a racer's command after this many milliseconds; never if left out.
    #[schema(minimum = 1)]
    pub timeout_ms: Option<u64>,
    /// Kill a judge after this many milliseconds; 600,000 by default.
    #[schema(minimum = 1)]
    pub judge_timeout_ms: Option<u64>,
    /// The name or the id of a snapshot to start from; default: the current state of the sandbox.
    pub snapshot: Option<SnapshotName>,
}

/// How far a racer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RacerState {
    Waiting,
    Patching,
    Running,
    Judging,
    /// It has a score.
    Judged,
    /// It cannot win: `problem` says why.
    Out,
}

impl RacerState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Patching => "patching",
            Self::Running => "running",
            Self::Judging => "judging",
            Self::Judged => "judged",
            Self::Out => "out",
        }
    }
}

/// One of a race's forks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Racer {
    /// Its number, from 1.
    pub racer: usize,
    /// The fork, which exists until the race has ended.
    pub sandbox: SandboxId,
    pub state: RacerState,
    /// How its command ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ExecStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How long its command took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Why it is out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The end of what its command printed, stdout and stderr in order of arrival.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// The same of its judge.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub judge_output: String,
}

/// How a race ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RaceResult {
    /// The number of the best racer; absent if all are out, and then the sandbox is unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<usize>,
    /// The turn that holds what the sandbox was before the winner's files were kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Snapshot>,
    /// The turn that holds the winner's files, which are the sandbox's now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Snapshot>,
    /// The winner's fork, if its files could not become the sandbox's. It stays until somebody destroys it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<SandboxId>,
    /// Why they could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// In the order of their numbers.
    pub racers: Vec<Racer>,
}

/// One line of a live answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RaceEvent {
    /// The racers exist.
    Started { racers: Vec<Racer> },
    /// A racer has come further.
    Racer { racer: Racer },
    /// The last one.
    Done { result: RaceResult },
    /// The last one if the race failed; nothing is left of it.
    Failed { problem: Problem },
}

impl RaceEvent {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Racer { .. } => "racer",
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
        }
    }
}
