//! The front door for models: the Model Context Protocol, on stdio (`sandkeep mcp`) and at `/mcp`.
//!
//! ```text
//! tools/call ─▶ call       which request of the REST door is it, and are the arguments right?
//!            ─▶ rest       the request is made, with the credentials of whoever calls
//!            ─▶ answer     what came back, in words that a model can go on with
//! ```
//!
//! It stands before the REST door and not beside it: a call is one request of that door, with its
//! authentication, its limits and its refusals, and nothing is decided here. So it works over a broker in
//! this process and over a daemon elsewhere alike.
//!
//! Nothing is remembered between two calls. A call that names no sandbox means the one in the slot
//! [`DEFAULT_SLOT`] of its owner, which is made when it is needed.

mod answer;
mod arguments;
mod call;
mod catalogue;
mod resources;
mod rest;
mod tool;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation,
    InitializeResult, JsonObject, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::{Value, json};

use crate::kit::Kit;
use arguments::{Arguments, Invalid};
use call::{A_SANDBOX, Call, SANDBOX};
use rest::Inside;
pub use rest::{ACCEPTED, Answering, Outgoing, Rest, Unreachable, content_type};
use sandkeep_broker::{self, parameter::check};
use sandkeep_core::limits;

/// The slot of the sandbox that a call means which names none.
const DEFAULT_SLOT: &str = "mcp";

const INSTRUCTIONS: &str = "Sandkeep gives you isolated Linux computers. Call any tool without `sandbox` to \
    work in your default one, which is made at its first use and keeps its files; or make more with \
    sandbox_create and name them by `sandbox`. Commands run as `user` in /home/user, without a network. Seal a \
    turn (turn_complete) before risky work, look at what changed with diff, and go back with rollback. When a call \
    is refused, the answer says by which rule and what to do instead.";

/// The protocol over HTTP, behind the gate. `behind` is the REST door, whose limits count the requests that are
/// made there.
pub fn door(kit: &Kit, behind: Router) -> Router {
    let rest: Arc<dyn Rest> = Arc::new(Inside::new(behind));
    // The gate has checked host and origin, by rules that the configuration knows.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_max_request_body_bytes(limits::MCP_MESSAGE_MAX_BYTES)
        .with_cancellation_token(kit.stop.clone());
    let server = move || Ok(Mcp::new(Arc::clone(&rest)));
    let service =
        StreamableHttpService::new(server, Arc::new(NeverSessionManager::default()), config);
    kit.door(crate::rest::Rest, Router::new().route_service("/mcp", service))
}

/// The server of one connection or of one request; it has nothing of its own.
#[derive(Clone)]
pub struct Mcp {
    rest: Arc<dyn Rest>,
}

impl Mcp {
    pub fn new(rest: Arc<dyn Rest>) -> Self {
        Self { rest }
    }

    /// Carries a call out, or gives it up when the caller does: what was begun for it ends with its request.
    async fn carry_out(
        &self,
        name: &str,
        given: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let result = async {
            match (catalogue::find(name), tool::find(name)) {
                (Some(call), _) => Ok(self.request(call, given, context).await),
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

    async fn request(
        &self,
        call: &Call,
        given: JsonObject,
        context: &RequestContext<RoleServer>,
    ) -> CallToolResult {
        let mut arguments = match Arguments::check(call, given) {
            Ok(arguments) => arguments,
            Err(invalid) => return answer::invalid(&invalid),
        };
        if call.needs_sandbox() && arguments.sandbox().is_none() {
            match self.default_sandbox(context).await {
                Ok(id) => arguments.set_sandbox(id),
                Err(refused) => return refused,
            }
        }
        match self.rest.call(arguments.request(call), &context.extensions).await {
            Ok(reply) => answer::of(&reply),
            Err(unreachable) => answer::unreachable(&unreachable),
        }
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
            return answer::invalid(&Invalid { call: tool.name.as_str(), misfit });
        }
        let sandbox = match named.get(SANDBOX).and_then(Value::as_str) {
            Some(id) => id.to_owned(),
            None => match self.default_sandbox(context).await {
                Ok(id) => id,
                Err(refused) => return refused,
            },
        };
        let request = tool::request(tool, &sandbox, given, context);
        match self.rest.begin(request, &context.extensions).await {
            Ok(answering) => tool::answer(answering, context).await,
            Err(unreachable) => answer::unreachable(&unreachable),
        }
    }

    /// The caller's own sandbox, made if there is none.
    async fn default_sandbox(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<String, CallToolResult> {
        let body = json!({ "slot": DEFAULT_SLOT });
        let request = Outgoing::post("/api/v1/sandboxes/ensure", &body);
        match self.rest.call(request, &context.extensions).await {
            Ok(reply) => {
                match reply
                    .json()
                    .and_then(|sandbox| Some(sandbox["sandbox"]["id"].as_str()?.to_owned()))
                {
                    Some(id) if reply.is_success() => Ok(id),
                    _ => Err(answer::of(&reply)),
                }
            }
            Err(unreachable) => Err(answer::unreachable(&unreachable)),
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
        let tools = catalogue::tools().into_iter().chain(tool::tools());
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        catalogue::find(name).map(Call::described).or_else(|| tool::find(name).map(tool::described))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = request.arguments.unwrap_or_default();
        Ok(self.carry_out(&request.name, given, &context).await?.into())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(self.rest.as_ref(), &context.extensions).await
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
        resources::read(self.rest.as_ref(), &request.uri, &context.extensions).await
    }
}
