//! The tools that work within a sandbox: those of the broker, with one more parameter, which names it.

use std::sync::Arc;

use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, ProgressNotificationParam, Tool, ToolAnnotations,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::Value;

use super::answer;
use super::call::{A_SANDBOX, SANDBOX};
use super::rest::{Answering, Lines, Outgoing, encoded};
use sandkeep_broker::{self, catalogue};

pub fn tools() -> impl Iterator<Item = Tool> {
    catalogue().iter().map(described)
}

pub fn find(name: &str) -> Option<&'static sandkeep_broker::Tool> {
    catalogue().iter().find(|tool| tool.name.as_str() == name)
}

/// As `tools/list` shows it.
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

/// The request of a call; live, if the caller wants to be told how far it is.
pub fn request(
    tool: &sandkeep_broker::Tool,
    sandbox: &str,
    arguments: JsonObject,
    context: &RequestContext<RoleServer>,
) -> Outgoing {
    let live = if context.meta.get_progress_token().is_some() { "?stream=true" } else { "" };
    let (sandbox, name) = (encoded(sandbox), tool.name.as_str());
    let path = format!("/api/v1/sandboxes/{sandbox}/tools/{name}{live}");
    Outgoing::post(path, &Value::Object(arguments))
}

pub async fn answer(answering: Answering, context: &RequestContext<RoleServer>) -> CallToolResult {
    let live = answering.content_type.as_deref().is_some_and(|kind| kind.contains("ndjson"));
    let result = match (live, answering.status.is_success()) {
        (true, true) => followed(answering, context).await,
        (false, true) => answering.whole().await.map(|reply| match reply.json() {
            Some(result) => of(&result),
            None => answer::of(&reply),
        }),
        (_, false) => answering.whole().await.map(|reply| answer::of(&reply)),
    };
    result.unwrap_or_else(|unreachable| answer::unreachable(&unreachable))
}

/// Tells what the call says while it says it, and ends with its result.
async fn followed(
    answering: Answering,
    context: &RequestContext<RoleServer>,
) -> Result<CallToolResult, super::Unreachable> {
    let mut lines = Lines::of(answering);
    let mut told: u32 = 0;
    loop {
        let event = lines.next().await?;
        match event["type"].as_str() {
            Some("result") => return Ok(of(&event)),
            Some("failed") => return Ok(answer::refused(event["problem"].clone())),
            _ => {}
        }
        let Some(token) = context.meta.get_progress_token() else { continue };
        told += 1;
        let mut progress = ProgressNotificationParam::new(token, f64::from(told));
        progress.message = Some(message(&event));
        // A caller that cannot be told any more is canceled by other means.
        let _ = context.peer.notify_progress(progress).await;
    }
}

/// What an event says, for a person who waits.
fn message(event: &Value) -> String {
    match event["data"].as_str() {
        Some(output) => output.to_owned(),
        None => event.to_string(),
    }
}

/// The answer of a tool: its text for the model, and all of it as data.
fn of(result: &Value) -> CallToolResult {
    let blocks = result["content"].as_array().into_iter().flatten();
    let texts = blocks.filter_map(|block| block["text"].as_str());
    let content: Vec<ContentBlock> = texts.map(ContentBlock::text).collect();
    let mut answer = match result["is_error"].as_bool() {
        Some(true) => CallToolResult::error(content),
        Some(false) | None => CallToolResult::success(content),
    };
    answer.structured_content = Some(facts(result));
    answer
}

/// Without the texts, which the model has already.
fn facts(result: &Value) -> Value {
    let mut facts = result.clone();
    if let Some(facts) = facts.as_object_mut() {
        facts.remove("content");
        facts.remove("type");
    }
    facts
}
