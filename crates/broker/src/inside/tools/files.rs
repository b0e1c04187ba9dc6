//! Tools that operate on files: one run of the toolbox inside, which reports its progress and then its answer.

use std::time::Instant;

use toolbox::tools::{Call, CommandRefusal, Line, Refusal};
use toolbox::{FailureKind, Operation};

use super::Scene;
use super::answer::{ToolAnswer, ToolEvent, of_files};
use super::catalogue::Tool;
use super::work::Bounds;
use crate::error::Error;
use crate::inside::toolbox::{Lines, Presence, ToolboxRequest, Whom, begin};
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
            Err(CommandRefusal::TimedOut { timeout_ms: sandkeep_core::millis(bounds.timeout) }
                .into())
        }
        Err(Error::ToolboxOutOfMemory) => {
            Err(CommandRefusal::OutOfMemory { call_mb: bounds.limits.memory_mb }.into())
        }
        done => done?,
    };
    Ok(of_files(tool, done, began.elapsed()))
}

async fn said(scene: &Scene, call: Call, bounds: Bounds) -> Result<Result<String, Refusal>, Error> {
    let request = ToolboxRequest {
        operation: Operation::Tool(call),
        whom: Whom::User,
        timeout: Some(bounds.timeout),
        limits: bounds.limits,
        presence: Presence::Command,
    };
    let mut run = begin(&scene.shared, &scene.handle, request).await?;
    run.answer::<()>().await?;
    // The text comes from the sandbox: bounded, and treated as plain text.
    let mut lines = Lines::of(run, TOOL_ANSWER_MAX_BYTES);
    while let Some(line) = lines.next().await? {
        match line {
            Line::Progress(progress) => scene.listener.tell(ToolEvent::Progress(progress)).await,
            Line::Text(text) => return Ok(Ok(text)),
            Line::Refused(refusal) => return Ok(Err(refusal)),
        }
    }
    Err(Error::ToolboxBroke { problem: "it ended without an answer".to_owned() })
}
