//! Tools that work on files: one run of the toolbox inside, which says how far it is and then its answer.

use std::time::Instant;

use toolbox::tools::{Call, CommandRefusal, Line, Refusal};
use toolbox::{FailureKind, Operation};

use super::Scene;
use super::answer::{ToolAnswer, ToolEvent, in_ms};
use super::catalogue::Tool;
use super::work::Bounds;
use crate::error::Error;
use crate::inside::toolbox::{Errand, Presence, ToolboxRun, Whom, begin};
use sandkeep_core::limits::TOOL_ANSWER_MAX_BYTES;

pub async fn carry_out(
    scene: &Scene,
    tool: &Tool,
    call: Call,
    bounds: Bounds,
) -> Result<ToolAnswer, Error> {
    let began = Instant::now();
    let done = match said(scene, call, bounds).await {
        Err(Error::File { kind: FailureKind::TimedOut, .. }) => {
            Err(CommandRefusal::TimedOut { timeout_ms: in_ms(bounds.timeout) }.into())
        }
        Err(Error::ToolboxOutOfMemory) => {
            Err(CommandRefusal::OutOfMemory { call_mb: bounds.limits.memory_mb }.into())
        }
        done => done?,
    };
    Ok(ToolAnswer::of_files(tool, done, began.elapsed()))
}

async fn said(scene: &Scene, call: Call, bounds: Bounds) -> Result<Result<String, Refusal>, Error> {
    let errand = Errand {
        operation: Operation::Tool(call),
        whom: Whom::User,
        timeout: Some(bounds.timeout),
        limits: bounds.limits,
        presence: Presence::Command,
    };
    let mut run = begin(&scene.shared, &scene.handle, errand).await?;
    run.answer::<()>().await?;
    let mut lines = Lines { run, pending: Vec::new() };
    loop {
        match lines.next().await? {
            Line::Progress(progress) => scene.listener.tell(ToolEvent::Progress(progress)).await,
            Line::Text(text) => return Ok(Ok(text)),
            Line::Refused(refusal) => return Ok(Err(refusal)),
        }
    }
}

/// What a run says, line by line. It is the sandbox's word: bounded, and taken for no more than text.
struct Lines {
    run: ToolboxRun,
    pending: Vec<u8>,
}

impl Lines {
    async fn next(&mut self) -> Result<Line, Error> {
        loop {
            if let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| broke(&error.to_string()));
            }
            match self.run.data().await? {
                Some(bytes) if self.pending.len() + bytes.len() <= TOOL_ANSWER_MAX_BYTES => {
                    self.pending.extend_from_slice(&bytes);
                }
                Some(_) => return Err(broke("it says more than a tool may")),
                None => return Err(broke("it ended without an answer")),
            }
        }
    }
}

fn broke(problem: &str) -> Error {
    Error::ToolboxBroke { problem: problem.to_owned() }
}
