//! A message becomes the request of the same name.
//!
//! Parameters of the path and the query are fields of the JSON object beside those of the body. Where the payload is a
//! file or an archive, and wherever else one likes, they are headers: `Sandkeep-Id`, `Sandkeep-Path`.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use sandkeep_doors::commands::{Command, CommandBody, HEADERS};
use sandkeep_doors::kit::Refusal;
use sandkeep_nats::async_nats::Message;
use serde_json::{Map, Value};

use super::DoorRequest;

/// Headers with this prefix are ours: parameters, and how to answer.
const OURS: &str = "sandkeep-";
const STREAM: &str = "stream";
const TIMEOUT_MS: &str = "timeout-ms";
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];

/// What stays as it is in a path or a query.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// A message, its headers read.
#[derive(Debug)]
pub struct Incoming {
    /// Those of a request.
    headers: HeaderMap,
    /// Of ours, without the prefix.
    parameters: HashMap<String, String>,
    payload: Bytes,
    pub has_credential: bool,
    /// Whether the answer may come in parts.
    pub stream: bool,
    pub timeout: Option<Duration>,
}

impl Incoming {
    pub fn of(message: &Message) -> Result<Self, Refusal> {
        let mut incoming = Self {
            headers: HeaderMap::new(),
            parameters: HashMap::new(),
            payload: message.payload.clone(),
            has_credential: false,
            stream: false,
            timeout: None,
        };
        let given = message.headers.iter().flat_map(|headers| headers.iter());
        for (name, values) in given {
            for value in values {
                incoming.note(&name.to_string().to_ascii_lowercase(), value.as_str())?;
            }
        }
        Ok(incoming)
    }

    fn note(&mut self, name: &str, value: &str) -> Result<(), Refusal> {
        match name.strip_prefix(OURS) {
            Some(STREAM) => self.stream = switch(value)?,
            Some(TIMEOUT_MS) => self.timeout = Some(timeout(value)?),
            Some(parameter) => {
                let twice = self.parameters.insert(parameter.to_owned(), value.to_owned());
                if twice.is_some() {
                    return Err(malformed(format!("has the header {name} twice")));
                }
            }
            None => {
                self.has_credential |= CREDENTIALS.contains(&name);
                let header = HeaderName::try_from(name).ok().zip(HeaderValue::try_from(value).ok());
                let (name, value) =
                    header.ok_or_else(|| malformed(format!("has an invalid header {name:?}")))?;
                self.headers.append(name, value);
            }
        }
        Ok(())
    }
}

fn switch(value: &str) -> Result<bool, Refusal> {
    value.parse().map_err(|_| malformed("has a Sandkeep-Stream that is not true or false"))
}

fn timeout(value: &str) -> Result<Duration, Refusal> {
    match value.parse() {
        Ok(ms) if ms > 0 => Ok(Duration::from_millis(ms)),
        Ok(_) | Err(_) => Err(malformed("has a Sandkeep-Timeout-Ms that is not a positive number")),
    }
}

/// The request that a message asks for.
pub fn build(command: &Command, incoming: &Incoming) -> Result<DoorRequest, Refusal> {
    let mut fields = match command.body {
        CommandBody::None | CommandBody::Json => object(&incoming.payload)?,
        CommandBody::Bytes => Map::new(),
    };
    let uri = uri(command, incoming, &mut fields)?;
    let body = match command.body {
        CommandBody::Bytes => Body::from(incoming.payload.clone()),
        CommandBody::Json => Body::from(Value::Object(fields).to_string()),
        CommandBody::None => match fields.keys().next() {
            Some(field) => return Err(malformed(format!("has an unknown field {field:?}"))),
            None => Body::empty(),
        },
    };
    let request = axum::http::Request::builder().method(command.method.clone()).uri(uri);
    let mut request = request.body(body).map_err(|e| malformed(format!("names nothing: {e}")))?;
    let passed = |name: &HeaderName| {
        let name = name.as_str();
        HEADERS.contains(&name) || command.in_header.iter().any(|own| own == name)
    };
    for (name, value) in incoming.headers.iter().filter(|(name, _)| passed(name)) {
        request.headers_mut().append(name.clone(), value.clone());
    }
    Ok(request)
}

/// The payload of a command that takes JSON; nothing is an empty object.
fn object(payload: &[u8]) -> Result<Map<String, Value>, Refusal> {
    if payload.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(payload) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(malformed("is not a JSON object")),
        // Where it is wrong, without a word of what it holds.
        Err(e) => Err(malformed(format!("is not JSON: line {}, column {}", e.line(), e.column()))),
    }
}

/// The path and the query, whose parameters are taken out of the fields.
fn uri(
    command: &Command,
    incoming: &Incoming,
    fields: &mut Map<String, Value>,
) -> Result<String, Refusal> {
    let mut used = 0;
    let mut take = |name: &str| -> Result<Vec<String>, Refusal> {
        let header = incoming.parameters.get(&name.replace('_', "-").to_ascii_lowercase());
        used += usize::from(header.is_some());
        match (header, fields.remove(name)) {
            (Some(_), Some(_)) => Err(malformed(format!("has {name:?} in a header and a field"))),
            (Some(value), None) => Ok(vec![value.clone()]),
            (None, Some(value)) => texts(name, value),
            (None, None) => Ok(Vec::new()),
        }
    };
    let mut path = command.path.clone();
    for name in &command.in_path {
        let value = take(name)?;
        let [value] = value.as_slice() else {
            return Err(malformed(format!("needs {name:?}")));
        };
        // An empty name would be another path.
        if value.is_empty() || value == "." || value == ".." {
            return Err(malformed(format!("has no name in {name:?}")));
        }
        path = path.replace(&format!("{{{name}}}"), &encoded(value));
    }
    let mut query = Vec::new();
    for parameter in &command.in_query {
        let values = take(&parameter.name)?;
        query.extend(
            values.iter().map(|value| format!("{}={}", encoded(&parameter.name), encoded(value))),
        );
    }
    if used < incoming.parameters.len() {
        let known: Vec<&str> = command
            .in_path
            .iter()
            .map(String::as_str)
            .chain(command.in_query.iter().map(|query| query.name.as_str()))
            .collect();
        let known = known.join(", ");
        return Err(malformed(format!("has an unknown Sandkeep- header; parameters are: {known}")));
    }
    Ok(if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) })
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, ENCODED).to_string()
}

/// What a parameter is in a URL. A list is repeated.
fn texts(name: &str, value: Value) -> Result<Vec<String>, Refusal> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text]),
        Value::Bool(flag) => Ok(vec![flag.to_string()]),
        Value::Number(number) => Ok(vec![number.to_string()]),
        Value::Array(values) => {
            let texts = values.into_iter().map(|value| match value {
                Value::Array(_) => Err(malformed(format!("has lists in {name:?}"))),
                other => texts(name, other),
            });
            Ok(texts.collect::<Result<Vec<_>, _>>()?.concat())
        }
        Value::Object(_) => Err(malformed(format!("has an object in {name:?}"))),
    }
}

fn malformed(problem: impl Into<String>) -> Refusal {
    Refusal::MessageMalformed { problem: problem.into() }
}

#[cfg(test)]
mod tests {
    use sandkeep_doors::commands::commands;
    use serde_json::json;

    use super::*;

    fn command(verb: &str) -> Command {
        commands().into_iter().find(|command| command.verb == verb).expect(verb)
    }

    fn incoming(payload: &str, headers: &[(&str, &str)]) -> Result<Incoming, Refusal> {
        let mut incoming = Incoming {
            headers: HeaderMap::new(),
            parameters: HashMap::new(),
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            has_credential: false,
            stream: false,
            timeout: None,
        };
        for (name, value) in headers {
            incoming.note(&name.to_ascii_lowercase(), value)?;
        }
        Ok(incoming)
    }

    fn built(verb: &str, payload: &str, headers: &[(&str, &str)]) -> Result<DoorRequest, Refusal> {
        build(&command(verb), &incoming(payload, headers)?)
    }

    async fn body(request: DoorRequest) -> String {
        let bytes = axum::body::to_bytes(request.into_body(), usize::MAX).await.expect("whole");
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[tokio::test]
    async fn parameters_leave_the_object_and_the_rest_is_the_body() {
        let payload = json!({ "id": "sb x/..", "stream": true, "command": "ls" }).to_string();
        let request = built("exec", &payload, &[]).expect("a request");
        assert_eq!(request.method(), "POST");
        assert_eq!(request.uri(), "/api/v1/sandboxes/sb%20x%2F../execs?stream=true");
        assert_eq!(body(request).await, r#"{"command":"ls"}"#);
        let listed = built("list", r#"{"label":["a=1","b=2"],"limit":3}"#, &[]).expect("a request");
        assert_eq!(listed.uri(), "/api/v1/sandboxes?label=a%3D1&label=b%3D2&limit=3");
    }

    #[tokio::test]
    async fn files_are_payloads_and_their_names_headers() {
        let headers = [("Sandkeep-Id", "sb1"), ("Sandkeep-Path", "a b.txt"), ("X-API-Key", "k")];
        let request = built("write_file", "{not json", &headers).expect("a request");
        assert_eq!(request.method(), "PUT");
        assert_eq!(request.uri(), "/api/v1/sandboxes/sb1/files?path=a%20b.txt");
        assert_eq!(request.headers()["x-api-key"], "k");
        assert_eq!(body(request).await, "{not json");
    }

    #[test]
    fn only_headers_of_a_request_are_passed_on() {
        let headers = [
            ("Authorization", "Bearer k"),
            ("Idempotency-Key", "1"),
            ("Host", "evil"),
            ("Origin", "https://evil"),
            ("Traceparent", "00-1-2-01"),
        ];
        let request = built("create", "", &headers).expect("a request");
        let mut names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "idempotency-key", "traceparent"]);
        assert!(incoming("", &headers).expect("fine").has_credential);
        let get = built("get", r#"{"id":"a"}"#, &[("Idempotency-Key", "1")]).expect("a request");
        assert!(get.headers().is_empty(), "it has no such parameter");
    }

    #[test]
    fn what_is_no_command_is_refused_by_name() {
        let said = |verb: &str, payload: &str, headers: &[(&str, &str)]| {
            built(verb, payload, headers).expect_err("refused").to_string()
        };
        assert!(said("get", "", &[]).contains("needs \"id\""));
        assert!(said("get", "[1]", &[]).contains("JSON object"));
        assert!(said("get", "{", &[]).contains("line 1"));
        assert!(said("get", r#"{"id":""}"#, &[]).contains("no name"));
        assert!(said("get", r#"{"id":".."}"#, &[]).contains("no name"));
        assert!(said("get", r#"{"id":{}}"#, &[]).contains("object in"));
        assert!(said("get", r#"{"id":"a","idd":1}"#, &[]).contains("\"idd\""));
        assert!(
            said("get", r#"{"id":"a"}"#, &[("Sandkeep-Id", "b")]).contains("header and a field")
        );
        assert!(said("get", r#"{"id":"a"}"#, &[("Sandkeep-Idd", "b")]).contains("unknown"));
        assert!(said("get", "", &[("Sandkeep-Timeout-Ms", "0")]).contains("Timeout"));
        assert!(said("get", "", &[("Sandkeep-Stream", "yes")]).contains("Stream"));
        let secret = said("create", r#"{"env":{"TOKEN":"hush"}"#, &[]);
        assert!(!secret.contains("hush"), "{secret}");
    }
}
