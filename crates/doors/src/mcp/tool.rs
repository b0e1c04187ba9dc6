//! The tools that work within a sandbox: the broker's own, with one additional parameter that names the sandbox.

use std::sync::Arc;

use futures_util::StreamExt as _;
use rmcp::model::{CallToolResult, ProgressNotificationParam, Tool, ToolAnnotations};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};

use super::{A_SANDBOX, Failure, SANDBOX, Telling, ToolEvents, answer};
use sandkeep_broker::{self, catalogue};
use sandkeep_core::api::ToolEvent;

pub fn tools() -> impl Iterator<Item = Tool> {
    catalogue().iter().map(described)
}

pub fn find(name: &str) -> Option<&'static sandkeep_broker::Tool> {
    catalogue().iter().find(|tool| tool.name.as_str() == name)
}

/// The entry in `tools/list`.
pub fn described(tool: &sandkeep_broker::Tool) -> Tool {
    let mut schema = tool.input_schema();
    schema["properties"][SANDBOX] = A_SANDBOX.schema();
    let Value::Object(schema) = schema else { unreachable!("a schema is an object") };
    let annotations = ToolAnnotations::new()
        .read_only(tool.annotations.read_only)
        .destructive(tool.annotations.destructive)
        .idempotent(tool.annotations.idempotent)
        .open_world(false);
    Tool::new(tool.name.as_str(), tool.description, Arc::new(schema)).with_annotations(annotations)
}

/// Whether the caller asked for progress notifications.
pub fn telling(context: &RequestContext<RoleServer>) -> Telling {
    match context.meta.get_progress_token() {
        Some(_) => Telling::AsItGoes,
        None => Telling::AtTheEnd,
    }
}

/// Forwards the events of a call as progress notifications and returns its result.
pub async fn followed(
    mut events: ToolEvents,
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    let mut told: u32 = 0;
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(ToolEvent::Result(result)) => return answer::of_tool(result),
            Ok(ToolEvent::Failed { problem }) => return answer::failed(Failure::refused(problem)),
            Ok(event) => event,
            Err(failure) => return answer::failed(failure),
        };
        let Some(token) = context.meta.get_progress_token() else { continue };
        told += 1;
        let mut progress = ProgressNotificationParam::new(token, f64::from(told));
        progress.message = Some(message(&event));
        // If the caller is gone, the call is canceled elsewhere.
        let _ = context.peer.notify_progress(progress).await;
    }
    let problem = "the answer broke off".to_owned();
    answer::failed(Failure::Unreachable { problem })
}

/// The text of a progress notification.
fn message(event: &ToolEvent) -> String {
    match event {
        ToolEvent::Output { data, .. } => String::from_utf8_lossy(data).into_owned(),
        event => json!(event).to_string(),
    }
}
