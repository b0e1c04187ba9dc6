//! Tools for agents: list them, and call one; answers at the end, or live.
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
use futures_util::stream;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;
use toolbox::tools::Progress;
use utoipa::{IntoParams, ToSchema};

use super::openapi::{Guarded, Inside, Journaled, Keyed, OfSandbox, WithBody};
use super::output::{Carry, Piece};
use super::problem::Problem;
use crate::kit::Refusal;
use crate::kit::body;
use crate::kit::frames::Form;
use crate::kit::path::{Id, In};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::Who;
use sandkeep_broker::{
    Annotations, Broker, Listener, SnapshotAfter, Tool, ToolDraft, ToolEvent as BrokerEvent,
    ToolName, ToolResources, catalogue, error::Error,
};
use sandkeep_core::api::{ToolAnswer, ToolEvent};
use sandkeep_core::{InvalidCallerId, Principal, SandboxId};
use sandkeep_guestlink::OutputStream;

/// A tool, as described to models and programs.
#[derive(Clone, Serialize, ToSchema)]
#[schema(as = Tool)]
pub struct Offered {
    name: &'static str,
    description: &'static str,
    /// JSON Schema of the arguments.
    #[schema(value_type = Object)]
    input_schema: Value,
    /// 1: operates on files. 2: runs a command.
    tier: u8,
    annotations: Annotations,
}

#[derive(Serialize, ToSchema)]
pub struct Tools {
    items: Vec<Offered>,
    /// The same as `items`, under their former name.
    #[schema(deprecated)]
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
    /// All tools.
    pub fn all() -> Self {
        let items: Vec<Offered> = catalogue().iter().map(Offered::from).collect();
        Self { tools: items.clone(), items }
    }
}

/// List the tools of a sandbox with their input schemas
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

/// The arguments of the tool's schema, and fields about the call itself.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = ToolCall)]
pub struct CallBody {
    /// An id for retries, in visible ASCII. A repeated call with the same id is executed once; its answer is kept for
    /// five minutes, or until the daemon restarts, after which it would be executed again.
    #[schema(max_length = 255)]
    tool_call_id: Option<String>,
    #[serde(default)]
    resources: Option<ToolResources>,
    /// Take a snapshot of the sandbox's files after the call; the answer has its `snapshot_id`. Default: the sandbox's
    /// setting `snapshot_tool_calls`.
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

/// Call a tool: answers when it ends, or live with `stream`
///
/// If the tool refuses, the answer has `is_error`, and its text says what was refused, by which rule, and what to do
/// instead. Without a `tool_call_id` the call is killed when the client disconnects; with one it continues.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/tools/{name}", operation_id = "call_tool", tag = "tools",
    params(("id" = SandboxId, Path), ("name" = String, Path), CallQuery),
    request_body = CallBody,
    responses(
        (status = 200, description = "the tool's answer or, live, its events", content(
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
    asked: QueryResult<CallQuery>,
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
        Some(form) => Live::begin(broker, who, id, draft).answer(form).await,
    }
}

impl CallBody {
    pub fn into_draft(self, name: ToolName) -> Result<ToolDraft, Error> {
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

/// A running call, event by event. Dropping it cancels the call.
pub struct Live {
    /// `None` once the call has ended.
    done: Option<Done>,
    events: mpsc::Receiver<BrokerEvent>,
    carry: Carry,
    ready: VecDeque<ToolEvent>,
}

impl Live {
    pub fn begin(broker: Broker, who: Principal, id: SandboxId, draft: ToolDraft) -> Self {
        let (listener, events) = Listener::channel();
        let done = async move { broker.call_tool(&who, &id, draft, listener).await };
        Self { done: Some(Box::pin(done)), events, carry: Carry::default(), ready: VecDeque::new() }
    }

    /// A refusal before the first event is answered with its own HTTP status.
    async fn answer(mut self, form: Form) -> Result<Response, Refusal> {
        self.step().await?;
        let events = stream::unfold(self, move |mut live| async move {
            let event = match live.next().await {
                Ok(event) => event?,
                Err(error) => ToolEvent::Failed { problem: Problem::from(&Refusal::from(error)) },
            };
            Some((Ok::<_, Infallible>(form.frame(event.name(), None, &event)), live))
        });
        Ok(form.response(events))
    }

    /// The next event; `None` after the last, which is the result or an error.
    pub async fn next(&mut self) -> Result<Option<ToolEvent>, Error> {
        while self.ready.is_empty() && self.done.is_some() {
            self.step().await?;
        }
        Ok(self.ready.pop_front())
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
            self.ready.extend(rest.map(output));
        }
        self.ready.push_back(ToolEvent::Result(Arc::unwrap_or_clone(answer)));
        Ok(())
    }

    fn take(&mut self, event: BrokerEvent) {
        let event = match event {
            BrokerEvent::Started { exec_id } => Some(ToolEvent::Started { exec_id }),
            BrokerEvent::Output { stream, offset, data } => {
                self.carry.push(stream, offset, data).map(output)
            }
            BrokerEvent::Progress(Progress { files_seen, found }) => {
                Some(ToolEvent::Progress { files_seen, found })
            }
        };
        self.ready.extend(event);
    }
}

fn output(Piece { stream, offset, data }: Piece) -> ToolEvent {
    ToolEvent::Output { stream, offset, data }
}
