//! Formats results for a model. A refusal is a tool result that says what to do instead: a client would not show a
//! protocol error to the model.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};

use super::Failure;
use sandkeep_broker::parameter::Misfit;
use sandkeep_core::api::{ToolAnswer, ToolBlock};
use sandkeep_core::limits;

/// The result of a call: null, a text, or data.
pub fn of(done: Result<Value, Failure>) -> CallToolResult {
    let (text, data) = match done {
        Ok(Value::Null) => ("done".to_owned(), None),
        Ok(Value::String(text)) => (text, None),
        // Structured content has to be an object.
        Ok(value) => (value.to_string(), Some(value).filter(Value::is_object)),
        Err(failure) => return failed(failure),
    };
    if text.len() > limits::MCP_ANSWER_MAX_BYTES {
        return failed(Failure::TooLong);
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = data;
    result
}

/// The result of a tool: its text for the model, and everything else as structured content.
pub fn of_tool(mut answer: ToolAnswer) -> CallToolResult {
    let blocks = std::mem::take(&mut answer.content).into_iter();
    let content = blocks.map(|ToolBlock::Text { text }| ContentBlock::text(text)).collect();
    let mut facts = json!(answer);
    if let Some(facts) = facts.as_object_mut() {
        facts.remove("content");
    }
    let mut result = if answer.is_error {
        CallToolResult::error(content)
    } else {
        CallToolResult::success(content)
    };
    result.structured_content = Some(facts);
    result
}

pub fn failed(failure: Failure) -> CallToolResult {
    match failure {
        Failure::Refused(problem) => {
            let words = format!("{}\nWhat to do: {}", problem.detail, problem.remediation);
            let mut result = CallToolResult::error(vec![ContentBlock::text(words)]);
            result.structured_content = Some(json!(problem));
            result
        }
        other => CallToolResult::error(vec![ContentBlock::text(other.to_string())]),
    }
}

/// The result for arguments that do not match the schema.
pub fn misfit(call: &str, misfit: &Misfit) -> CallToolResult {
    let Misfit { parameter, problem, known } = misfit;
    let words = format!("{call}: {parameter}: {problem}; its parameters are: {known}");
    let mut result = CallToolResult::error(vec![ContentBlock::text(words.clone())]);
    result.structured_content = Some(json!({ "code": "invalid_request", "detail": words }));
    result
}

pub fn canceled(call: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("{call} was canceled"))])
}
