//! The arguments of a call: checked by name and kind, then put where the request has them.

use std::collections::BTreeMap;

use rmcp::model::JsonObject;
use serde_json::{Map, Value};

use super::call::{Call, Need, Place, SANDBOX};
use super::rest::{Outgoing, encoded, with_query};

/// What is wrong with the arguments of a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("{call} takes no {name:?}; it takes {known}")]
    Unknown { call: &'static str, name: String, known: String },
    #[error("{call} needs {name:?}")]
    Missing { call: &'static str, name: &'static str },
    #[error("{name:?} of {call} must be {expected}")]
    WrongKind { call: &'static str, name: &'static str, expected: &'static str },
}

/// Arguments that are right, as far as can be told here.
#[derive(Clone, Debug, Default)]
pub struct Arguments(JsonObject);

impl Arguments {
    pub fn check(call: &Call, given: JsonObject) -> Result<Self, Invalid> {
        // Some clients send null for what they leave out.
        let given: JsonObject = given.into_iter().filter(|(_, value)| !value.is_null()).collect();
        for (name, value) in &given {
            let Some(parameter) = call.parameter(name) else {
                let known: Vec<&str> = call.parameters.iter().map(|known| known.name).collect();
                let known = if known.is_empty() { "nothing".to_owned() } else { known.join(", ") };
                return Err(Invalid::Unknown { call: call.name, name: name.clone(), known });
            };
            if !parameter.kind.admits(value) {
                let (name, expected) = (parameter.name, parameter.kind.expected());
                return Err(Invalid::WrongKind { call: call.name, name, expected });
            }
        }
        let required = call.parameters.iter().filter(|known| known.need == Need::Required);
        for parameter in required {
            if !given.contains_key(parameter.name) {
                return Err(Invalid::Missing { call: call.name, name: parameter.name });
            }
        }
        Ok(Self(given))
    }

    pub fn sandbox(&self) -> Option<&str> {
        self.0.get(SANDBOX)?.as_str()
    }

    pub fn set_sandbox(&mut self, id: String) {
        self.0.insert(SANDBOX.to_owned(), Value::String(id));
    }

    /// The request that the call becomes.
    pub fn request(self, call: &Call) -> Outgoing {
        let (mut path, mut query, mut body) = (call.path.to_owned(), BTreeMap::new(), Map::new());
        for parameter in call.parameters {
            let Some(value) = self.0.get(parameter.name) else { continue };
            match parameter.place {
                Place::Path => {
                    path = path.replace(&format!("{{{}}}", parameter.name), &encoded(&text(value)));
                }
                Place::Query => {
                    query.insert(parameter.name.to_owned(), text(value));
                }
                Place::Body => {
                    body.insert(parameter.name.to_owned(), value.clone());
                }
            }
        }
        let path = with_query(&path, &query);
        let takes_body = call.parameters.iter().any(|parameter| parameter.place == Place::Body);
        let body = takes_body.then(|| Value::Object(body).to_string());
        Outgoing { method: call.method.clone(), path, body }
    }
}

/// A value as a path or a query has it.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
