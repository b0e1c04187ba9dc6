//! A tool as data: what it is called, what it takes, and which request it becomes.

use std::sync::Arc;

use axum::http::Method;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Map, Value, json};

/// The parameter that names a sandbox. It may be left out of every call that has it.
pub const SANDBOX: &str = "sandbox";
pub const SANDBOX_ABOUT: &str = "The id of a sandbox (sb…). Leave it out for your default sandbox, which is made if \
                                 there is none.";

/// A tool.
#[derive(Debug)]
pub struct Call {
    pub name: &'static str,
    pub title: &'static str,
    /// For the model: what it does and when to use it.
    pub about: &'static str,
    pub effect: Effect,
    pub method: Method,
    /// With `{name}` where a parameter of the path belongs.
    pub path: &'static str,
    pub parameters: &'static [Parameter],
}

/// What a call does to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Something new, beside what is there.
    Adds,
    /// Changes without loss; again changes nothing more.
    Sets,
    /// What was there may be gone.
    Destroys,
}

#[derive(Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub place: Place,
    pub need: Need,
    pub about: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Text,
    Integer,
    Boolean,
    Texts,
    /// An object whose values are texts.
    TextMap,
    /// An object of which the REST door knows more.
    Object,
}

/// Where in the request it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Path,
    Query,
    Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
}

impl Call {
    pub fn needs_sandbox(&self) -> bool {
        self.parameter(SANDBOX).is_some_and(|sandbox| sandbox.need == Need::Optional)
    }

    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// As `tools/list` shows it.
    pub fn described(&self) -> Tool {
        Tool::new(self.name, self.about, Arc::new(self.schema()))
            .with_title(self.title)
            .with_annotations(self.effect.annotations().open_world(false))
    }

    fn schema(&self) -> JsonObject {
        let properties: Map<String, Value> =
            self.parameters.iter().map(|p| (p.name.to_owned(), p.schema())).collect();
        let required: Vec<&str> = self
            .parameters
            .iter()
            .filter(|parameter| parameter.need == Need::Required)
            .map(|parameter| parameter.name)
            .collect();
        let mut schema = Map::new();
        schema.insert("type".to_owned(), json!("object"));
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.insert("required".to_owned(), json!(required));
        schema.insert("additionalProperties".to_owned(), json!(false));
        schema
    }
}

impl Effect {
    fn annotations(self) -> ToolAnnotations {
        let annotations = ToolAnnotations::new();
        match self {
            Self::Reads => annotations.read_only(true),
            Self::Adds => annotations.read_only(false).destructive(false).idempotent(false),
            Self::Sets => annotations.read_only(false).destructive(false).idempotent(true),
            Self::Destroys => annotations.read_only(false).destructive(true).idempotent(true),
        }
    }
}

impl Parameter {
    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        schema["description"] = json!(self.about);
        schema
    }
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Integer => json!({ "type": "integer", "minimum": 0 }),
            Self::Boolean => json!({ "type": "boolean" }),
            Self::Texts => json!({ "type": "array", "items": { "type": "string" } }),
            Self::TextMap => {
                json!({ "type": "object", "additionalProperties": { "type": "string" } })
            }
            Self::Object => json!({ "type": "object" }),
        }
    }

    pub fn admits(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Integer => value.is_u64(),
            Self::Boolean => value.is_boolean(),
            Self::Texts => value.as_array().is_some_and(|items| items.iter().all(Value::is_string)),
            Self::TextMap => {
                value.as_object().is_some_and(|map| map.values().all(Value::is_string))
            }
            Self::Object => value.is_object(),
        }
    }

    pub fn expected(self) -> &'static str {
        match self {
            Self::Text => "a string",
            Self::Integer => "a whole number, 0 or more",
            Self::Boolean => "true or false",
            Self::Texts => "a list of strings",
            Self::TextMap => "an object whose values are strings",
            Self::Object => "an object",
        }
    }
}
