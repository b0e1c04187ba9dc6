//! Tools that run a command: an exec like any other, with its journal, its limits and a timeout that kills its tree.
//! The answer has the head and the tail of the output.

use std::collections::BTreeMap;

use bytes::Bytes;
use toolbox::tools::{CommandRefusal, Refusal};

use super::Scene;
use super::answer::{ToolAnswer, ToolBlock, ToolEvent};
use super::catalogue::Tool;
use super::git;
use super::work::Bounds;
use crate::error::Error;
use crate::execs::{ExecDraft, OnDisconnect, Running, exec};
use sandkeep_core::{
    ExecId, Verb,
    excerpt::{Cut, Excerpt},
    limits,
};
use sandkeep_guestlink::{ExecEnd, Outcome, OutputStream};

/// The exit code for a missing program, by shell convention.
const NOT_FOUND: i32 = 127;

/// A command, by any of several programs that provide it.
pub struct Command {
    pub kind: Kind,
    /// Each a program and its arguments; the first that exists is run.
    pub ways: Vec<Vec<String>>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Shell,
    Git,
}

impl Command {
    pub fn in_a_shell(command: String, cwd: Option<String>) -> Self {
        let by =
            |shell: &str| vec![shell.to_owned(), "-c".to_owned(), "--".to_owned(), command.clone()];
        let ways = vec![by("bash"), by("sh")];
        Self { kind: Kind::Shell, ways, env: BTreeMap::new(), cwd }
    }

    pub async fn carry_out(
        self,
        scene: &Scene,
        tool: &Tool,
        bounds: Bounds,
    ) -> Result<ToolAnswer, Error> {
        let Self { kind, ways, env, cwd } = self;
        let mut ran = None;
        for argv in ways {
            let draft = ExecDraft {
                argv,
                env: env.clone(),
                cwd: cwd.clone(),
                timeout: Some(bounds.timeout),
                limits: bounds.limits,
                on_disconnect: OnDisconnect::Kill,
                ..ExecDraft::default()
            };
            let begun = exec(&scene.shared, &scene.handle, draft, ExecId::random());
            let runtime = scene.shared.runtime_label(Some(scene.handle.meta().spec.runtime()));
            let verbs = scene.shared.telemetry.verbs();
            let running = verbs.measure(Verb::Exec, runtime, begun).await?;
            let this = Ran::to_its_end(running, scene).await;
            let missing = this.is_missing();
            ran = Some(this);
            if !missing {
                break;
            }
        }
        let ran = ran.expect("every command has a way");
        let place = cwd.unwrap_or_else(|| "the working directory".to_owned());
        Ok(ran.answer(tool, kind, bounds, &place))
    }
}

/// A command that has ended.
struct Ran {
    exec_id: ExecId,
    end: ExecEnd,
    stdout: String,
    stderr: String,
}

impl Ran {
    async fn to_its_end(running: Running, scene: &Scene) -> Self {
        let exec_id = running.id.clone();
        scene.listener.tell(ToolEvent::Started { exec_id: exec_id.clone() }).await;
        let excerpt =
            || Excerpt::within(limits::TOOL_OUTPUT_HEAD_BYTES, limits::TOOL_OUTPUT_TAIL_BYTES);
        let (mut stdout, mut stderr) = (excerpt(), excerpt());
        let take = |stream, offset, data: Bytes| {
            match stream {
                OutputStream::Stdout => stdout.push(&data),
                OutputStream::Stderr => stderr.push(&data),
            }
            scene.listener.tell(ToolEvent::Output { stream, offset, data })
        };
        let end = running.collect(take).await;
        Self { exec_id, end, stdout: shown(stdout), stderr: shown(stderr) }
    }

    /// Whether the program is missing; its own exit code may be the same number.
    fn is_missing(&self) -> bool {
        self.end.outcome == Outcome::Exited(NOT_FOUND) && self.end.error.is_some()
    }

    fn answer(self, tool: &Tool, kind: Kind, bounds: Bounds, place: &str) -> ToolAnswer {
        let refusal = self.refusal(kind, bounds, place);
        let exit_code = match self.end.outcome {
            Outcome::Exited(code) if self.end.error.is_none() => Some(code),
            _ => None,
        };
        let mut content = Vec::new();
        if !self.stdout.is_empty() {
            content.push(ToolBlock::text(self.stdout));
        }
        if !self.stderr.is_empty() {
            content.push(ToolBlock::text(format!("stderr:\n{}", self.stderr)));
        }
        match (&refusal, exit_code) {
            (Some(refusal), _) => content.push(ToolBlock::text(refusal.to_string())),
            (None, Some(code)) if code != 0 => {
                content.push(ToolBlock::text(format!("exit code {code}")))
            }
            (None, _) if content.is_empty() => content.push(ToolBlock::text("(no output)")),
            (None, _) => {}
        }
        ToolAnswer {
            content,
            exit_code,
            is_error: exit_code != Some(0),
            duration_ms: sandkeep_core::millis(self.end.duration),
            tier: tool.tier.number(),
            snapshot_id: None,
            exec_id: Some(self.exec_id),
            refusal: refusal.map(|refusal| refusal.said().code.into()),
        }
    }

    /// Why it failed. For a shell, an exit code other than 0 is not a failure of the tool.
    fn refusal(&self, kind: Kind, bounds: Bounds, place: &str) -> Option<Refusal> {
        let ended = |how: String| Some(CommandRefusal::Ended { how }.into());
        match (&self.end.outcome, &self.end.error, kind) {
            (Outcome::Exited(NOT_FOUND), Some(_), Kind::Shell) => {
                Some(CommandRefusal::NoShell.into())
            }
            (Outcome::Exited(NOT_FOUND), Some(_), Kind::Git) => Some(CommandRefusal::NoGit.into()),
            (Outcome::Exited(_), Some(problem), _) => {
                Some(CommandRefusal::CannotStart { problem: problem.clone() }.into())
            }
            (Outcome::Exited(0), None, _) | (Outcome::Exited(_), None, Kind::Shell) => None,
            (Outcome::Exited(code), None, Kind::Git) => {
                Some(git::explained(*code, &self.stdout, &self.stderr, place))
            }
            (Outcome::TimedOut, ..) => Some(
                CommandRefusal::TimedOut { timeout_ms: sandkeep_core::millis(bounds.timeout) }
                    .into(),
            ),
            (Outcome::OomKilled, ..) => {
                Some(CommandRefusal::OutOfMemory { call_mb: bounds.limits.memory_mb }.into())
            }
            (Outcome::Signaled(signal), ..) => ended(format!("signal {signal} killed it")),
            (Outcome::Canceled, ..) => ended("it was canceled".to_owned()),
            (Outcome::Lost, error, _) => {
                ended(error.clone().unwrap_or_else(|| "outcome unknown".to_owned()))
            }
        }
    }
}

/// Head and tail as text, with a note where output was omitted.
fn shown(excerpt: Excerpt) -> String {
    let Cut { bytes, omitted } = excerpt.cut();
    let Some(omitted) = omitted else { return String::from_utf8_lossy(&bytes).into_owned() };
    let at = usize::try_from(omitted.at).expect("the head is held in memory");
    let (head, tail) = bytes.split_at(at);
    format!(
        "{}\n[{} bytes left out here; write the output to a file, or look at a part of it with head, tail or grep]\n{}",
        String::from_utf8_lossy(head),
        omitted.bytes,
        String::from_utf8_lossy(tail)
    )
}
