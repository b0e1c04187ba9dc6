//! What the service says of each command when it starts. PURISTA's HTTP server can make routes of it.

use serde_json::{Value, json};

use super::Command;
use super::envelope::{framed, new_id};
use super::input::TIMEOUT_MAX_MS;

pub const MESSAGE_TYPE: &str = "infoServiceFunctionAdded";

/// The message for one command.
pub fn message(command: Command, instance: &str) -> Value {
    let mut message = framed(instance, command.name(), MESSAGE_TYPE);
    message["id"] = new_id().into();
    message["payload"] = json!({ "expose": expose(command) });
    message
}

fn expose(command: Command) -> Value {
    let (input, output) = (input(command), output(command));
    let (method, path) = route(command);
    json!({
        "contentTypeRequest": "application/json",
        "contentEncodingRequest": "utf-8",
        "contentTypeResponse": "application/json",
        "contentEncodingResponse": "utf-8",
        "inputPayload": input,
        "parameter": { "type": "object" },
        "outputPayload": output,
        "deprecated": false,
        "http": { "method": method, "path": path, "openApi": {} },
    })
}

fn route(command: Command) -> (&'static str, &'static str) {
    match command {
        Command::CreateSandbox => ("POST", "sandbox"),
        Command::EnsureSandbox => ("POST", "sandbox/ensure"),
        Command::ExecuteBash => ("POST", "sandbox/:sandboxId/bash"),
        Command::ReadFile => ("GET", "sandbox/:sandboxId/file"),
        Command::WriteFiles => ("POST", "sandbox/:sandboxId/files"),
        Command::DestroySandbox => ("DELETE", "sandbox/:sandboxId"),
    }
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn object(properties: Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

/// What a command on a sandbox takes besides its name.
fn of_sandbox(more: Value, required: &[&str]) -> Value {
    let mut properties = json!({ "sandboxId": text(), "projectId": text() });
    if let (Value::Object(all), Value::Object(more)) = (&mut properties, more) {
        all.extend(more);
    }
    let required: Vec<&str> = ["sandboxId"].iter().chain(required).copied().collect();
    object(properties, &required)
}

fn input(command: Command) -> Value {
    let whole = json!({ "type": "integer", "minimum": 1, "maximum": TIMEOUT_MAX_MS });
    let file = object(
        json!({ "encoding": { "enum": ["utf-8", "base64"] }, "content": text() }),
        &["content"],
    );
    match command {
        Command::CreateSandbox | Command::EnsureSandbox => {
            let scope = object(json!({ "kind": text(), "key": text() }), &["kind"]);
            let git = json!({ "username": text(), "email": text(), "token": text() });
            let properties = json!({
                "projectId": text(), "organizationId": text(), "userId": text(), "scope": scope,
                "gitConfig": object(git, &["username", "email"]),
            });
            object(properties, &["projectId"])
        }
        Command::ExecuteBash => of_sandbox(
            json!({ "command": text(), "cwd": text(), "timeoutMs": whole }),
            &["command"],
        ),
        Command::ReadFile => of_sandbox(json!({ "path": text() }), &["path"]),
        Command::WriteFiles => {
            let files = json!({ "anyOf": [text(), file] });
            let files = json!({ "type": "object", "additionalProperties": files });
            of_sandbox(json!({ "files": files }), &["files"])
        }
        Command::DestroySandbox => of_sandbox(json!({}), &[]),
    }
}

fn output(command: Command) -> Value {
    let status = json!({ "enum": ["starting", "ready", "failed"] });
    let flag = json!({ "type": "boolean" });
    match command {
        Command::CreateSandbox => {
            object(json!({ "sandboxId": text(), "status": status }), &["sandboxId", "status"])
        }
        Command::EnsureSandbox => object(
            json!({ "sandboxId": text(), "status": status, "created": flag }),
            &["sandboxId", "status", "created"],
        ),
        Command::ExecuteBash => object(
            json!({ "stdout": text(), "stderr": text(), "exitCode": { "type": "integer" } }),
            &["stdout", "stderr", "exitCode"],
        ),
        Command::ReadFile => text(),
        Command::WriteFiles => object(json!({ "updated": { "type": "integer" } }), &["updated"]),
        Command::DestroySandbox => {
            object(json!({ "sandboxId": text(), "destroyed": flag }), &["sandboxId", "destroyed"])
        }
    }
}
