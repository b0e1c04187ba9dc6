//! A validated call: what to do for it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolbox::tools::Call;

use super::answer::{ToolAnswer, ToolBlock};
use super::catalogue::{Tier, Tool, ToolName};
use super::command::Command;
use super::{Scene, SnapshotAfter, files, git};
use crate::error::Error;
use crate::inside::changed::Changing;
use sandkeep_core::{api::ExecLimits, limits};

pub struct Work {
    tool: &'static Tool,
    timeout: Duration,
    limits: ExecLimits,
    snapshot: SnapshotAfter,
    task: Task,
}

/// The limits of a call.
#[derive(Clone, Copy)]
pub struct Bounds {
    pub timeout: Duration,
    pub limits: ExecLimits,
}

enum Task {
    /// With the path that it names.
    Files(Call, Option<String>),
    Command(Command),
}

#[derive(Deserialize)]
struct Bash {
    command: String,
    cwd: Option<String>,
    timeout_ms: Option<u64>,
}

impl Work {
    /// The arguments were checked. An omitted argument counts as null.
    pub fn of(
        tool: &'static Tool,
        mut arguments: Map<String, Value>,
        asked: Option<Duration>,
    ) -> Result<Self, Error> {
        arguments.retain(|_, value| !value.is_null());
        let arguments = Value::Object(arguments);
        let name = tool.name;
        let (task, usual) = match name {
            ToolName::ReadFile
            | ToolName::WriteFile
            | ToolName::EditFile
            | ToolName::Ls
            | ToolName::Grep
            | ToolName::Glob => {
                let path = arguments["path"].as_str().map(str::to_owned);
                let call = json!({ "name": name.as_str(), "arguments": arguments });
                (Task::Files(typed(tool, call)?, path), limits::FILE_TOOL_TIMEOUT)
            }
            ToolName::Bash => {
                let Bash { command, cwd, timeout_ms } = typed(tool, arguments)?;
                let given = timeout_ms.map(Duration::from_millis);
                let task = Task::Command(Command::in_a_shell(command, cwd));
                // The timeout among the arguments takes precedence over that of the call.
                let timeout = given.or(asked).unwrap_or(limits::BASH_TIMEOUT);
                return Ok(Self::new(tool, timeout, task));
            }
            ToolName::Git(verb) => {
                let command = git::command(tool, verb, typed(tool, arguments)?)?;
                (Task::Command(command), limits::GIT_TIMEOUT)
            }
        };
        let timeout = asked.unwrap_or(usual);
        Ok(Self::new(tool, timeout, task))
    }

    fn new(tool: &'static Tool, timeout: Duration, task: Task) -> Self {
        let (limits, snapshot) = (ExecLimits::default(), SnapshotAfter::AsMade);
        Self { tool, timeout, limits, snapshot, task }
    }

    /// The same with other limits.
    pub fn within(self, limits: ExecLimits) -> Self {
        Self { limits, ..self }
    }

    /// The same, followed by a snapshot if requested.
    pub fn then(self, snapshot: SnapshotAfter) -> Self {
        Self { snapshot, ..self }
    }

    pub async fn carry_out(self, scene: &Scene) -> Result<ToolAnswer, Error> {
        let Self { tool, timeout, limits, snapshot, task } = self;
        let bounds = Bounds { timeout, limits };
        let mut answer = match task {
            Task::Files(call, path) => {
                let answer = files::carry_out(scene, tool, call, bounds).await?;
                if let Some(path) = path.filter(|_| may_have_changed(tool, &answer)) {
                    let changing = Changing::by_tool(&scene.who, tool.name.as_str(), &path);
                    changing.done(&scene.shared, &scene.handle);
                }
                answer
            }
            Task::Command(command) => command.carry_out(scene, tool, bounds).await?,
        };
        let kept = match snapshot {
            SnapshotAfter::AsMade => {
                scene.handle.meta().spec.snapshots_tool_calls() && may_have_changed(tool, &answer)
            }
            SnapshotAfter::No => false,
            SnapshotAfter::Yes => true,
        };
        if kept {
            let (id, name) = (&scene.handle.id, tool.name.as_str());
            // The call has succeeded even if the snapshot fails.
            match scene.broker.snapshot_after_tool(&scene.who, id, name).await {
                Ok(made) => answer.snapshot_id = Some(made.id),
                Err(error) => {
                    answer
                        .content
                        .push(ToolBlock::text(format!("[no snapshot was made: {error}]")));
                }
            }
        }
        Ok(answer)
    }
}

/// File tools change all or nothing; a command may have changed something, however it ended.
fn may_have_changed(tool: &Tool, answer: &ToolAnswer) -> bool {
    let refused = tool.tier == Tier::Files && answer.is_error;
    !tool.annotations.read_only && !refused
}

/// Arguments that match their table deserialize; if not, the caller gets the problem.
fn typed<T: serde::de::DeserializeOwned>(tool: &Tool, arguments: Value) -> Result<T, Error> {
    serde_json::from_value(arguments).map_err(|error| Error::ToolArgument {
        tool: tool.name.as_str(),
        parameter: "arguments".to_owned(),
        problem: error.to_string(),
        known: tool.takes(),
    })
}
