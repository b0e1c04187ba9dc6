//! The operations of the REST API as commands: what a message needs to become the request of the same name. The table
//! is the OpenAPI description, so an operation that is added there is a command, too.

use axum::http::Method;
use utoipa::openapi::path::{Operation, Parameter, ParameterIn, PathItem};
use utoipa::openapi::{RefOr, Required};

use crate::front::described;
use crate::kit::correlation;

/// One operation that can be asked for by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// `create`, `exec`, `read_file`.
    pub verb: String,
    pub method: Method,
    /// With the names of parameters in braces.
    pub path: String,
    /// In the path, all of them required.
    pub in_path: Vec<String>,
    pub in_query: Vec<Query>,
    /// In lower case.
    pub in_header: Vec<String>,
    pub body: CommandBody,
    pub summary: String,
    pub tag: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    pub name: String,
    pub required: bool,
}

/// What a command takes besides its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandBody {
    None,
    Json,
    /// A file or an archive.
    Bytes,
}

/// Verbs that are shorter than the ids of their operations.
const SHORT: &[(&str, &str)] = &[
    ("create", "create_sandbox"),
    ("ensure", "ensure_sandbox"),
    ("get", "get_sandbox"),
    ("list", "list_sandboxes"),
    ("patch", "patch_sandbox"),
    ("keepalive", "keepalive_sandbox"),
    ("stats", "get_sandbox_stats"),
    ("log", "get_sandbox_log"),
    ("start", "start_sandbox"),
    ("stop", "stop_sandbox"),
    ("pause", "pause_sandbox"),
    ("resume", "resume_sandbox"),
    ("destroy", "destroy_sandbox"),
    ("exec", "create_exec"),
    ("snapshot", "create_snapshot"),
    ("turn", "seal_turn"),
    ("rollback", "rollback_sandbox"),
    ("fork", "fork_sandbox"),
    ("diff", "diff_sandbox"),
];

/// What only a connection can do, or speaks another dialect.
const NO_COMMANDS: &[&str] = &["attach_exec", "open_terminal", "use_port"];
const OTHER_DIALECTS: &[&str] = &["urule"];

/// Headers of any request, besides the parameters that an operation has in headers.
pub const HEADERS: &[&str] = &[
    "authorization",
    "x-api-key",
    correlation::HEADER_NAME,
    "traceparent",
    "tracestate",
    "accept",
    "content-type",
    "last-event-id",
];

/// All commands, in the order of their paths.
pub fn commands() -> Vec<Command> {
    let (_, api) = described().split_for_parts();
    let mut found = Vec::new();
    for (path, item) in &api.paths.paths {
        let PathItem { get, put, post, delete, patch, .. } = item;
        let operations = [
            (Method::GET, get),
            (Method::PUT, put),
            (Method::POST, post),
            (Method::DELETE, delete),
            (Method::PATCH, patch),
        ];
        for (method, operation) in operations {
            found.extend(operation.as_ref().and_then(|one| Command::of(method, path, one)));
        }
    }
    found
}

impl Command {
    fn of(method: Method, path: &str, operation: &Operation) -> Option<Self> {
        let id = operation.operation_id.as_deref()?;
        let tag = operation.tags.iter().flatten().next()?;
        let is_ours = path.starts_with("/api/v1/") && !OTHER_DIALECTS.contains(&tag.as_str());
        if !is_ours || NO_COMMANDS.contains(&id) {
            return None;
        }
        let named = |place: ParameterIn| {
            let parameters = operation.parameters.iter().flatten();
            parameters.filter_map(inline).filter(move |one| one.parameter_in == place)
        };
        let query = |one: &Parameter| Query {
            name: one.name.clone(),
            required: one.required == Required::True,
        };
        let short = SHORT.iter().find(|(_, operation)| *operation == id);
        Some(Self {
            verb: short.map_or(id, |(verb, _)| verb).to_owned(),
            method,
            path: path.to_owned(),
            in_path: parameters_of(path),
            in_query: named(ParameterIn::Query).map(query).collect(),
            in_header: named(ParameterIn::Header)
                .map(|one| one.name.to_ascii_lowercase())
                .collect(),
            body: CommandBody::of(operation),
            summary: operation.summary.clone().unwrap_or_default(),
            tag: tag.clone(),
        })
    }
}

impl CommandBody {
    fn of(operation: &Operation) -> Self {
        let Some(RefOr::T(body)) = &operation.request_body else { return Self::None };
        if body.content.contains_key("application/json") { Self::Json } else { Self::Bytes }
    }
}

fn inline(parameter: &RefOr<Parameter>) -> Option<&Parameter> {
    match parameter {
        RefOr::T(parameter) => Some(parameter),
        RefOr::Ref(_) => None,
    }
}

/// The names in braces of a path.
fn parameters_of(path: &str) -> Vec<String> {
    let parts = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    parts.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::Value;

    use super::*;
    use crate::rest::openapi::document;

    #[test]
    fn every_verb_is_a_word_of_its_own_that_a_subject_can_have() {
        let commands = commands();
        let verbs: HashSet<&str> = commands.iter().map(|command| command.verb.as_str()).collect();
        assert_eq!(verbs.len(), commands.len());
        for verb in &verbs {
            assert!(verb.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{verb}");
        }
        let promised = [
            "create",
            "ensure",
            "get",
            "list",
            "exec",
            "read_file",
            "write_file",
            "list_files",
            "snapshot",
            "rollback",
            "fork",
            "turn",
            "destroy",
            "start",
            "stop",
            "pause",
            "resume",
        ];
        for verb in promised {
            assert!(verbs.contains(verb), "{verb}");
        }
        for (_, operation) in SHORT {
            assert!(!verbs.contains(operation), "{operation} has two verbs");
        }
    }

    /// One JSON object holds both, so none may hide the other.
    #[test]
    fn no_parameter_is_called_like_a_field_of_the_same_command() {
        let api: Value = serde_json::from_str(&document()).expect("JSON");
        for command in commands().iter().filter(|command| command.body == CommandBody::Json) {
            let method = command.method.as_str().to_ascii_lowercase();
            let content = &api["paths"][&command.path][method]["requestBody"]["content"];
            let schema = &content["application/json"]["schema"];
            let schema = schema.get("$ref").unwrap_or(&schema["oneOf"][1]["$ref"]);
            let name = schema.as_str().and_then(|path| path.rsplit('/').next());
            let Some(name) = name else { continue };
            let fields = &api["components"]["schemas"][name]["properties"];
            let queries = command.in_query.iter().map(|query| &query.name);
            for parameter in command.in_path.iter().chain(queries) {
                assert!(fields.get(parameter).is_none(), "{}: {parameter}", command.verb);
            }
        }
    }
}
