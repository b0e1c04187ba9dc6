//! What a model is told. A refusal of the REST door is the result of the tool, with what to do instead: a
//! protocol error would be shown to nobody.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::arguments::Invalid;
use super::rest::{Reply, Unreachable};

/// The answer of a request.
pub fn of(reply: &Reply) -> CallToolResult {
    let is_json = reply.content_type.as_deref().is_some_and(|kind| kind.contains("json"));
    let value = if is_json { reply.json() } else { None };
    match (reply.is_success(), value) {
        (true, _) if reply.body.is_empty() => {
            CallToolResult::success(vec![ContentBlock::text("done")])
        }
        (true, Some(value)) => succeeded(value),
        (true, None) => CallToolResult::success(vec![text(reply)]),
        (false, Some(problem)) => refused(problem),
        (false, None) => {
            let words = format!("refused with status {}", reply.status);
            CallToolResult::error(vec![ContentBlock::text(words)])
        }
    }
}

fn succeeded(value: Value) -> CallToolResult {
    match value {
        // Results have to be objects for clients that read them as data.
        value @ Value::Object(_) => CallToolResult::structured(value),
        other => CallToolResult::success(vec![ContentBlock::text(other.to_string())]),
    }
}

fn text(reply: &Reply) -> ContentBlock {
    ContentBlock::text(String::from_utf8_lossy(&reply.body))
}

/// A problem of the REST door.
pub fn refused(problem: Value) -> CallToolResult {
    let part = |name: &str| problem[name].as_str().map(str::to_owned);
    let mut words = part("detail").or_else(|| part("title")).unwrap_or_else(|| problem.to_string());
    if let Some(remediation) = part("remediation") {
        words = format!("{words}\nWhat to do: {remediation}");
    }
    let mut result = CallToolResult::error(vec![ContentBlock::text(words)]);
    result.structured_content = Some(problem);
    result
}

pub fn invalid(invalid: &Invalid) -> CallToolResult {
    let mut result = CallToolResult::error(vec![ContentBlock::text(invalid.to_string())]);
    result.structured_content =
        Some(json!({ "code": "invalid_request", "detail": invalid.to_string() }));
    result
}

pub fn unreachable(unreachable: &Unreachable) -> CallToolResult {
    let words = format!("Sandkeep cannot be reached: {unreachable}");
    CallToolResult::error(vec![ContentBlock::text(words)])
}

pub fn canceled(call: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("{call} was canceled"))])
}
