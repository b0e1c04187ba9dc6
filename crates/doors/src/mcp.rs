//! The MCP front door (Model Context Protocol), on stdio (`sandkeep mcp`) and at `/mcp`.
//!
//! ```text
//! tools/call ─▶ catalogue   does the tool exist, and do the arguments match its schema?
//!            ─▶ call        the arguments become the REST API's request type, once
//!            ─▶ Backend     direct: the broker of this process; or a remote daemon, through the client
//!            ─▶ answer      the result, in words that a model can act on
//! ```
//!
//! The gate has authenticated the caller, as for every door. Parameters are described by the types of the REST API, and
//! the tools that work within a sandbox are the broker's own.
//!
//! A call that names no sandbox uses that of its session (`session`), which is created on first use.

mod answer;
mod audit;
mod call;
mod catalogue;
mod direct;
mod resources;
mod schema;
mod session;
mod tool;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::delete;
use futures_util::stream::BoxStream;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Extensions, Implementation,
    InitializeResult, JsonObject, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use tracing::{Instrument as _, Span};

use crate::kit::request_memory::collect;
use crate::kit::{Dialect, Kit, Refusal, effect_by_method};
use crate::ports::PortDoor;
use crate::rest::Rest;
pub use call::{Call, Given};
use catalogue::Offer;
pub use direct::{Caller, Direct};
use sandkeep_audit::Effect;
use sandkeep_broker::ToolName;
use sandkeep_broker::parameter::{Kind, Need, Parameter, check};
use sandkeep_core::api::{Problem, ToolEvent};
use sandkeep_core::{SandboxId, SpecDraft, limits};
use sandkeep_traces::{Step, TraceContext, step};

/// The slot of the default sandbox, used by calls that name none.
pub const DEFAULT_SLOT: &str = "mcp";

/// The path of MCP over HTTP.
pub const PATH: &str = "/mcp";

const SANDBOX: &str = "sandbox";

/// The parameter that names a sandbox.
const A_SANDBOX: Parameter = Parameter {
    name: SANDBOX,
    kind: Kind::Text,
    need: Need::Optional,
    description: "The name or id (sb…) of a sandbox. Leave it out for your default sandbox, which is made if there is none.",
};

const INSTRUCTIONS: &str = "Sandkeep gives you isolated Linux computers. Call any tool without `sandbox` to \
    work in your default one, which is made at its first use and keeps its files; or make more with \
    sandbox_create and name them by `sandbox`. Commands run as `user` in /home/user, without a network. Seal a \
    turn (turn_complete) before risky work, look at what changed with diff, and go back with rollback. When a call \
    is refused, the answer says by which rule and what to do instead.";

/// Executes calls. Dropping a call's future or its event stream cancels it and ends what it started.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The caller's default sandbox, running: it is created or started if necessary. `from` carries the context of the
    /// caller's request.
    async fn default_sandbox(&self, from: &Extensions) -> Result<SandboxId, Failure>;

    /// The sandbox that the caller means by a name.
    async fn named(&self, name: &str, from: &Extensions) -> Result<SandboxId, Failure>;

    /// The answer is nothing, a text, or data.
    async fn call(&self, call: Call, from: &Extensions) -> Result<Value, Failure>;

    async fn tool(
        &self,
        call: ToolCall,
        telling: Telling,
        from: &Extensions,
    ) -> Result<ToolEvents, Failure>;

    async fn read_file(
        &self,
        sandbox: &SandboxId,
        path: &str,
        from: &Extensions,
    ) -> Result<Vec<u8>, Failure>;
}

/// A call of one of the tools that work within a sandbox.
pub struct ToolCall {
    pub sandbox: SandboxId,
    pub name: ToolName,
    pub arguments: Given,
}

/// Whether a call reports progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    AsItGoes,
    AtTheEnd,
}

/// The events of a tool call; the last one is its result.
pub type ToolEvents = BoxStream<'static, Result<ToolEvent, Failure>>;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    #[error("Sandkeep cannot be reached: {problem}")]
    Unreachable { problem: String },
    #[error("the answer is too long; ask for less, or for a part")]
    TooLong,
}

impl Failure {
    pub fn refused(problem: Problem) -> Self {
        Self::Refused(Box::new(problem))
    }
}

/// Refusals in the words of the REST API; every request counts against the caller's rate limit.
struct McpDialect;

impl Dialect for McpDialect {
    fn name(&self) -> &'static str {
        "mcp"
    }

    /// A message may change nothing; a call that does is written down by itself. The end of a session is no message.
    fn effect(&self, request: &Request) -> Effect {
        match *request.method() {
            Method::DELETE => effect_by_method(request),
            _ => Effect::Reads,
        }
    }

    fn refuse(&self, refusal: &Refusal, path: &str) -> Response {
        Rest.refuse(refusal, path)
    }
}

/// MCP over HTTP, behind the gate.
pub fn door(kit: &Kit, ports: &Arc<PortDoor>) -> Router {
    let (broker, ports) = (kit.broker.clone(), Arc::clone(ports));
    let mcp = Mcp::new(Direct { broker, ports, usual: None, default: SpecDraft::default() });
    // The gate has checked `Host` and `Origin`, with the configured rules.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(limits::MCP_MESSAGE_MAX_BYTES)
        .with_cancellation_token(kit.stop.clone());
    let server = move || Ok(mcp.clone());
    let service =
        StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config);
    let route = delete(session::end).fallback_service(service);
    let routes = Router::new().route(PATH, route).layer(middleware::from_fn(session::keep));
    kit.door(McpDialect, routes.layer(middleware::from_fn(read_first)))
}

/// rmcp reads bodies by itself. What it gets here was read as all bodies are: in time, and counted.
async fn read_first(request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match collect(body, limits::MCP_MESSAGE_MAX_BYTES, || Refusal::BodyTooLarge).await {
        Ok(bytes) => next.run(Request::from_parts(head, Body::from(bytes))).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// The span of the caller's HTTP request, because rmcp serves the call in another task.
fn span_of(from: &Extensions) -> Span {
    let kept = from.get::<Parts>().and_then(|parts| parts.extensions.get::<Span>());
    kept.cloned().unwrap_or_else(Span::current)
}

fn all_tools() -> impl Iterator<Item = Tool> {
    catalogue::offers().iter().map(|offer| offer.tool.clone()).chain(tool::tools())
}

/// A call as a step of a trace: of its own caller's, if `_meta` says so, otherwise of the HTTP request that carried it.
fn step_of(name: &str, context: &RequestContext<RoleServer>) -> Step {
    let around = span_of(&context.extensions);
    let sent = context.meta.get_traceparent().and_then(|sent| sent.parse().ok());
    match sent {
        Some(sent) => {
            let place = TraceContext::of(Some(sent));
            let span = tracing::info_span!(parent: &around, "call", trace_id = %place.own.trace);
            Step::request(&span, place, || format!("tools/call {name}"))
        }
        None => around.in_scope(|| step!("call", "otel.name" = %format_args!("tools/call {name}"))),
    }
}

/// The server of one connection or of one request; it has no state of its own.
#[derive(Clone)]
pub struct Mcp {
    backend: Arc<dyn Backend>,
    /// The tools that are offered; all of them if `None`.
    offered: Option<Arc<BTreeSet<String>>>,
}

/// A tool that does not exist was to be offered.
#[derive(Debug, thiserror::Error)]
#[error("there is no tool {name:?}; there are {known}")]
pub struct NoSuchTool {
    name: String,
    known: String,
}

impl Mcp {
    pub fn new(backend: impl Backend) -> Self {
        Self { backend: Arc::new(backend), offered: None }
    }

    /// The same with these tools only.
    pub fn offering(self, names: BTreeSet<String>) -> Result<Self, NoSuchTool> {
        let known = || all_tools().map(|tool| tool.name.into_owned());
        if let Some(name) = names.iter().find(|name| !known().any(|known| known == **name)) {
            let known = known().collect::<Vec<_>>().join(", ");
            return Err(NoSuchTool { name: name.clone(), known });
        }
        Ok(Self { offered: Some(Arc::new(names)), ..self })
    }

    fn offers(&self, name: &str) -> bool {
        self.offered.as_ref().is_none_or(|offered| offered.contains(name))
    }

    /// Executes a call; if the caller cancels it, everything it started is ended.
    async fn carry_out(
        &self,
        name: &str,
        given: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let result = async {
            let call = catalogue::find(name).filter(|_| self.offers(name));
            match (call, tool::find(name).filter(|_| self.offers(name))) {
                (Some(offer), _) => Ok(self.call(offer, given, &context.extensions).await),
                (None, Some(tool)) => Ok(self.tool(tool, given, context).await),
                (None, None) => {
                    let problem = format!("there is no tool {name:?}; tools/list names all");
                    Err(ErrorData::invalid_params(problem, None))
                }
            }
        };
        tokio::select! {
            biased;
            () = context.ct.cancelled() => Ok(answer::canceled(name)),
            result = result => result,
        }
    }

    async fn named(&self, text: &str, from: &Extensions) -> Result<SandboxId, Failure> {
        match text.parse() {
            Ok(id) => Ok(id),
            Err(_) => self.backend.named(text, from).await,
        }
    }

    async fn call(&self, offer: &Offer, given: JsonObject, from: &Extensions) -> CallToolResult {
        let mut given = match offer.check(given) {
            Ok(given) => given,
            Err(misfit) => return answer::misfit(offer.name(), &misfit),
        };
        let done = async {
            match given.0.get(SANDBOX) {
                Some(Value::String(text)) => {
                    let id = self.named(text, from).await?;
                    given.0.insert(SANDBOX.to_owned(), id.as_str().into());
                }
                None if offer.has_default() => {
                    let id = self.backend.default_sandbox(from).await?;
                    given.0.insert(SANDBOX.to_owned(), id.as_str().into());
                }
                Some(_) | None => {}
            }
            self.backend.call(offer.decode(given)?, from).await
        };
        answer::of(done.await)
    }

    /// Calls one of the tools that work within a sandbox.
    async fn tool(
        &self,
        tool: &'static sandkeep_broker::Tool,
        mut given: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let named: JsonObject = given.remove_entry(SANDBOX).into_iter().collect();
        if let Err(misfit) = check([&A_SANDBOX].into_iter(), &named) {
            return answer::misfit(tool.name.as_str(), &misfit);
        }
        let from = &context.extensions;
        let begun = async {
            let sandbox = match named.get(SANDBOX) {
                Some(Value::String(text)) => self.named(text, from).await?,
                Some(_) | None => self.backend.default_sandbox(from).await?,
            };
            let call = ToolCall { sandbox, name: tool.name, arguments: Given(given) };
            self.backend.tool(call, tool::telling(context), from).await
        };
        match begun.await {
            Ok(events) => tool::followed(events, context).await,
            Err(failure) => answer::failed(failure),
        }
    }
}

impl ServerHandler for Mcp {
    fn get_info(&self) -> InitializeResult {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let mut info = InitializeResult::new(capabilities).with_instructions(INSTRUCTIONS);
        info.server_info = Implementation::new("sandkeep", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let offered = all_tools().filter(|tool| self.offers(&tool.name));
        Ok(ListToolsResult::with_all_items(offered.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        if !self.offers(name) {
            return None;
        }
        let call = catalogue::find(name).map(|offer| offer.tool.clone());
        call.or_else(|| tool::find(name).map(tool::described))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = request.arguments.unwrap_or_default();
        let step = step_of(&request.name, &context);
        let around = span_of(&context.extensions);
        let span = if step.span().is_disabled() { around } else { step.span().clone() };
        let audited = audit::Audited::of(&request.name, &given, &context.extensions);
        let _room = match audited.admit() {
            Ok(room) => room,
            Err(refusal) => return Ok(answer::failed(refusal.into()).into()),
        };
        let result = self.carry_out(&request.name, given, &context).instrument(span).await?;
        Ok(audited.settle(result).into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let from = &context.extensions;
        resources::list(self.backend.as_ref(), from).instrument(span_of(from)).await
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let from = &context.extensions;
        let read = resources::read(self.backend.as_ref(), &request.uri, from);
        read.instrument(span_of(from)).await
    }
}
