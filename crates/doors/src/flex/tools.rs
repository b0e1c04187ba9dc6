//! Tools. One that fails is a normal answer; an error is about the request or the session, and means that nothing was
//! done. A call under a ToolCallID is made once, and its answer is kept for whoever repeats it; an error is not.

use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;

use super::arguments;
use super::failure;
use super::messages::{ContentBlock, Progress, Resources, ToolFrame, ToolRequest, ToolResponse};
use super::sessions::find;
use crate::connect::{Deadline, Message, StreamMessage, end_frame, streamed};
use crate::kit::Refusal;
use crate::kit::frames::{Envelope, connect};
use crate::kit::who::Who;
use crate::rest::tools::Live;
use sandkeep_broker::{
    Broker, Listener, SnapshotAfter, Tier, ToolDraft, ToolName, ToolResources, catalogue,
    error::Error,
};
use sandkeep_core::InvalidCallerId;
use sandkeep_core::api::{OutputStream, ToolAnswer, ToolBlock, ToolEvent};

/// What `timeout(1)` exits with when the time is up.
const TIMED_OUT: i32 = 124;
/// The field of which it is said that it is too large for the program that works on files.
const REQUEST: &str = "request";

/// A call on its way: what its answer says of it, and the call, unless it was answered already.
struct Call {
    asked: CallIdentity,
    draft: Result<ToolDraft, ToolResponse>,
}

/// What every answer repeats of its request.
#[derive(Clone)]
struct CallIdentity {
    session_id: String,
    tool_call_id: String,
    tool_name: String,
}

impl CallIdentity {
    /// The answer of a call that came to nothing, for the model to read.
    fn failed(&self, content: String, tier: Tier) -> ToolResponse {
        ToolResponse {
            session_id: self.session_id.clone(),
            tool_call_id: self.tool_call_id.clone(),
            tool_name: self.tool_name.clone(),
            content_blocks: vec![ContentBlock::text(content.clone())],
            content,
            snapshot_id: String::new(),
            exit_code: None,
            tier: tier.number(),
            duration: Duration::ZERO,
        }
    }

    fn answered(&self, answer: &ToolAnswer) -> ToolResponse {
        let text = |block: &ToolBlock| match block {
            ToolBlock::Text { text } => text.clone(),
        };
        let texts: Vec<String> = answer.content.iter().map(text).collect();
        let timed_out = answer.refusal.as_deref() == Some("timed_out");
        ToolResponse {
            session_id: self.session_id.clone(),
            tool_call_id: self.tool_call_id.clone(),
            tool_name: self.tool_name.clone(),
            content: texts.join("\n"),
            content_blocks: texts.into_iter().map(ContentBlock::text).collect(),
            snapshot_id: answer.snapshot_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            exit_code: answer.exit_code.or(timed_out.then_some(TIMED_OUT)),
            tier: answer.tier,
            duration: Duration::from_millis(answer.duration_ms),
        }
    }
}

impl Call {
    fn of(request: ToolRequest) -> Result<Self, Refusal> {
        let ToolRequest { session_id, tool_call_id, tool_name, params, resources } = request;
        let invalid = |wrong: InvalidCallerId| Error::InvalidField {
            field: "ToolCallID",
            problem: wrong.to_string(),
        };
        let id = tool_call_id.parse().map_err(invalid)?;
        let asked = CallIdentity { session_id, tool_call_id, tool_name };
        let draft = match asked.tool_name.parse::<ToolName>() {
            Err(unknown) => {
                let content = format!("there is no tool {:?}; {unknown}", asked.tool_name);
                Err(asked.failed(content, Tier::Commands))
            }
            Ok(name) => match arguments::ours(name, params) {
                Err(wrong) => Err(asked.failed(wrong.to_string(), tier(name))),
                Ok(arguments) => Ok(ToolDraft {
                    name,
                    arguments,
                    tool_call_id: Some(id),
                    resources: limits(&resources),
                    snapshot: SnapshotAfter::AsMade,
                }),
            },
        };
        Ok(Self { asked, draft })
    }
}

fn tier(name: ToolName) -> Tier {
    let found = catalogue().iter().find(|tool| tool.name == name);
    found.map_or(Tier::Commands, |tool| tool.tier)
}

fn limits(asked: &Resources) -> ToolResources {
    ToolResources {
        cpus: Some(asked.cpus).filter(|cpus| *cpus != 0.0),
        memory_mb: Some(asked.mem_mb).filter(|mb| *mb != 0),
        ..ToolResources::default()
    }
}

/// Parameters that do not fit are for the model to read; every other error is for the caller.
fn or_misfit(asked: &CallIdentity, error: Error) -> Result<ToolResponse, Error> {
    match &error {
        Error::ToolArgument { .. } | Error::InvalidField { field: REQUEST, .. } => {
            let tier = asked.tool_name.parse().map_or(Tier::Commands, tier);
            Ok(asked.failed(error.to_string(), tier))
        }
        _ => Err(error),
    }
}

pub async fn execute(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(request): Message<ToolRequest>,
) -> Result<Json<ToolResponse>, Refusal> {
    let Call { asked, draft } = Call::of(request)?;
    let id = find(&broker, &who, &asked.session_id).await?;
    let draft = match draft {
        Ok(draft) => draft,
        Err(answer) => return Ok(Json(answer)),
    };
    Ok(Json(match broker.call_tool(&who, &id, draft, Listener::none()).await {
        Ok(answer) => asked.answered(&answer),
        Err(error) => or_misfit(&asked, error)?,
    }))
}

pub async fn execute_stream(
    State(broker): State<Broker>,
    Who(who): Who,
    deadline: Deadline,
    StreamMessage(request): StreamMessage<ToolRequest>,
) -> Result<Response, Refusal> {
    let Call { asked, draft } = Call::of(request)?;
    let id = find(&broker, &who, &asked.session_id).await?;
    let at = match draft {
        Ok(draft) => At::Running(Box::new(Live::begin(broker, who, id, draft))),
        Err(answer) => At::Answered(Box::new(answer)),
    };
    let telling = ReportedCall { asked, deadline, at };
    let frames = stream::unfold(telling, |telling| async move {
        let (frame, telling) = telling.step().await?;
        Some((Ok::<Bytes, Infallible>(frame), telling))
    });
    Ok(streamed(frames))
}

/// A call that is told while it runs.
struct ReportedCall {
    asked: CallIdentity,
    deadline: Deadline,
    at: At,
}

enum At {
    Running(Box<Live>),
    /// The answer comes next, and then the end.
    Answered(Box<ToolResponse>),
    LastFrame,
    Over,
}

impl ReportedCall {
    /// The next frame; none after the last.
    async fn step(mut self) -> Option<(Bytes, Self)> {
        loop {
            let (frame, at) = match self.at {
                At::Over => return None,
                At::LastFrame => (Some(end_frame()), At::Over),
                At::Answered(answer) => {
                    let frame = ToolFrame { progress: None, response: Some(*answer) };
                    (Some(connect(Envelope::Message, &frame)), At::LastFrame)
                }
                At::Running(mut live) => {
                    let next = self.deadline.within(live.next()).await;
                    match Self::said(&self.asked, next) {
                        Ok(Said::Progress(progress)) => {
                            let frame = ToolFrame { progress: Some(progress), response: None };
                            (Some(connect(Envelope::Message, &frame)), At::Running(live))
                        }
                        Ok(Said::Nothing) => (None, At::Running(live)),
                        Ok(Said::Answer(answer)) => (None, At::Answered(Box::new(answer))),
                        Err(refusal) => {
                            refusal.log();
                            (Some(failure(&refusal).frame()), At::Over)
                        }
                    }
                }
            };
            self.at = at;
            if let Some(frame) = frame {
                return Some((frame, self));
            }
        }
    }

    fn said(
        asked: &CallIdentity,
        next: Result<Result<Option<ToolEvent>, Error>, Refusal>,
    ) -> Result<Said, Refusal> {
        match next? {
            Ok(Some(ToolEvent::Output { stream, data, .. })) => Ok(Said::Progress(Progress {
                content: String::from_utf8_lossy(&data).into_owned(),
                is_error: stream == OutputStream::Stderr,
            })),
            Ok(Some(ToolEvent::Result(answer))) => Ok(Said::Answer(asked.answered(&answer))),
            Ok(Some(ToolEvent::Started { .. } | ToolEvent::Progress { .. })) => Ok(Said::Nothing),
            // A call says how it failed as an error, and nothing after its answer.
            Ok(Some(ToolEvent::Failed { .. }) | None) => Err(Error::ShuttingDown.into()),
            Err(error) => Ok(Said::Answer(or_misfit(asked, error)?)),
        }
    }
}

enum Said {
    Progress(Progress),
    Nothing,
    Answer(ToolResponse),
}
