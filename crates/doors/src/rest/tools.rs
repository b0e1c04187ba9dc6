//! Tools for agents: which there are, and calling one; answered when it is over, or live.
//!
//! ```text
//! started? (stdout | stderr | progress)* result | failed
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, Inside, Journaled, Keyed, OfSandbox, WithBody};
use super::output::{Carry, Piece};
use super::problem::Problem;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::{Id, In};
use crate::kit::query::{Asked, query};
use crate::kit::who::Who;
use sandkeep_broker::{
    Annotations, Broker, Listener, SnapshotAfter, Tool, ToolAnswer, ToolDraft, ToolEvent, ToolName,
    ToolResources, catalogue, error::Error,
};
use sandkeep_core::{ExecId, InvalidCallerId, SandboxId, api::ExecEvent};
use sandkeep_guestlink::OutputStream;

/// A tool as a model and a program know it.
#[derive(Serialize, ToSchema)]
#[schema(as = Tool)]
pub struct Offered {
    name: &'static str,
    description: &'static str,
    /// What it takes, as a JSON Schema.
    #[schema(value_type = Object)]
    input_schema: Value,
    /// 1: it works on files. 2: it is a command.
    tier: u8,
    annotations: Annotations,
}

#[derive(Serialize, ToSchema)]
pub struct Tools {
    tools: Vec<Offered>,
}

impl From<&Tool> for Offered {
    fn from(tool: &Tool) -> Self {
        Self {
            name: tool.name.as_str(),
            description: tool.description,
            input_schema: tool.input_schema(),
            tier: tool.tier.number(),
            annotations: tool.annotations,
        }
    }
}

impl Tools {
    /// All that there are.
    pub fn all() -> Self {
        Self { tools: catalogue().iter().map(Offered::from).collect() }
    }
}

/// List the tools that can be called in a sandbox, with what they take
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/tools", operation_id = "list_tools", tag = "tools",
    params(("id" = SandboxId, Path)),
    responses((status = 200, body = Tools), Guarded, OfSandbox)
)]
pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(id): Id,
) -> Result<Json<Tools>, Refusal> {
    broker.require(&who, &id)?;
    Ok(Json(Tools::all()))
}

/// The arguments that the tool's schema names, and beside them what is about the call itself.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ToolCall)]
pub struct CallBody {
    /// Visible ASCII. A call that is repeated under its id is made once; its answer is kept for five minutes, or until the
    /// daemon is restarted: then it would be made again.
    #[schema(max_length = 255)]
    tool_call_id: Option<String>,
    #[serde(default)]
    resources: Option<ToolResources>,
    /// Keep what the sandbox's files are after the call, as a snapshot; the answer has its `snapshot_id`. If left out,
    /// as the sandbox was made: see its `snapshot_tool_calls`.
    #[serde(default)]
    snapshot: Option<bool>,
    #[serde(flatten)]
    arguments: BTreeMap<String, Value>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CallQuery {
    /// Answer live: NDJSON, or Server-Sent Events if the request accepts those.
    #[serde(default)]
    stream: bool,
}

/// Call a tool: answered when it is over, or live with `stream`
///
/// What the tool itself refuses is an answer with `is_error`, whose text says what was refused, by which rule, and what
/// to do instead. Without a `tool_call_id` the call is killed when the connection ends; with one it goes on.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/tools/{name}", operation_id = "call_tool", tag = "tools",
    params(("id" = SandboxId, Path), ("name" = String, Path), CallQuery),
    request_body = CallBody,
    responses(
        (status = 200, description = "its answer, or, live, what it says as it says it", content(
            (ToolAnswer = "application/json"),
            (String = "application/x-ndjson"),
            (String = "text/event-stream"),
        )),
        Guarded, WithBody, OfSandbox, Keyed, Inside, Journaled
    )
)]
pub async fn call(
    State(broker): State<Broker>,
    Who(who): Who,
    In(id, name): In<ToolName>,
    asked: Asked<CallQuery>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let form = Form::live(query(asked)?.stream, &headers);
    let draft = body::optional::<CallBody>(&headers, body).await?.into_draft(name)?;
    match form {
        None => {
            let answer = broker.call_tool(&who, &id, draft, Listener::none()).await?;
            Ok(Json(&*answer).into_response())
        }
        Some(form) => {
            let (listener, events) = Listener::channel();
            let done = async move { broker.call_tool(&who, &id, draft, listener).await };
            Live::new(form, Box::pin(done), events).answer().await
        }
    }
}

impl CallBody {
    fn into_draft(self, name: ToolName) -> Result<ToolDraft, Error> {
        let Self { tool_call_id, resources, snapshot, arguments } = self;
        let invalid = |problem: InvalidCallerId| Error::InvalidField {
            field: "tool_call_id",
            problem: problem.to_string(),
        };
        let tool_call_id = tool_call_id.map(|id| id.parse().map_err(invalid)).transpose()?;
        let resources = resources.unwrap_or_default();
        let arguments = arguments.into_iter().collect();
        let snapshot = SnapshotAfter::asked(snapshot);
        Ok(ToolDraft { name, arguments, tool_call_id, resources, snapshot })
    }
}

type Done = Pin<Box<dyn Future<Output = Result<Arc<ToolAnswer>, Error>> + Send>>;

/// A call on its way to a client. Dropping it drops the call.
struct Live {
    form: Form,
    /// `None` once it is over.
    done: Option<Done>,
    events: mpsc::Receiver<ToolEvent>,
    carry: Carry,
    ready: VecDeque<Bytes>,
}

#[derive(Serialize)]
struct Event<'a, T: Serialize> {
    r#type: &'static str,
    #[serde(flatten)]
    rest: &'a T,
}

#[derive(Serialize)]
struct Started {
    exec_id: ExecId,
}

#[derive(Serialize)]
struct Failed {
    problem: Problem,
}

impl Live {
    fn new(form: Form, done: Done, events: mpsc::Receiver<ToolEvent>) -> Self {
        Self { form, done: Some(done), events, carry: Carry::default(), ready: VecDeque::new() }
    }

    /// What is refused before anything was said has the status of its refusal.
    async fn answer(mut self) -> Result<Response, Refusal> {
        self.step().await?;
        let form = self.form;
        let events = stream::unfold(self, |mut live| async move {
            while live.ready.is_empty() && live.done.is_some() {
                if let Err(error) = live.step().await {
                    let problem = Problem::from(&Refusal::from(error));
                    live.say("failed", &Failed { problem });
                }
            }
            let event = live.ready.pop_front()?;
            Some((Ok::<_, Infallible>(event), live))
        });
        Ok(form.response(events))
    }

    /// Takes the next event, or the end after all of them.
    async fn step(&mut self) -> Result<(), Error> {
        let Some(done) = &mut self.done else { return Ok(()) };
        let ended = tokio::select! {
            biased;
            Some(event) = self.events.recv() => {
                self.take(event);
                return Ok(());
            }
            ended = done => ended,
        };
        self.done = None;
        while let Ok(event) = self.events.try_recv() {
            self.take(event);
        }
        let answer = ended?;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let rest = self.carry.finish(stream);
            self.output(rest);
        }
        self.say("result", &*answer);
        Ok(())
    }

    fn take(&mut self, event: ToolEvent) {
        match event {
            ToolEvent::Started { exec_id } => self.say("started", &Started { exec_id }),
            ToolEvent::Output { stream, offset, data } => {
                let piece = self.carry.push(stream, offset, data);
                self.output(piece);
            }
            ToolEvent::Progress(progress) => self.say("progress", &progress),
        }
    }

    fn output(&mut self, piece: Option<Piece>) {
        let Some(event) = piece.map(ExecEvent::from) else { return };
        self.ready.push_back(self.form.frame(event.name(), None, &event));
    }

    fn say<T: Serialize>(&mut self, r#type: &'static str, rest: &T) {
        self.ready.push_back(self.form.frame(r#type, None, &Event { r#type, rest }));
    }
}
