//! The arguments of a call: checked by name and kind, then put where the request has them.

use std::collections::BTreeMap;

use rmcp::model::JsonObject;
use serde_json::{Map, Value};

use super::call::{Call, Place, Placed, SANDBOX};
use super::rest::{Outgoing, encoded, with_query};
use sandkeep_broker::parameter::{Misfit, check};

/// What is wrong with the arguments of a call, in the words of the REST door.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {}: {}; its parameters are: {}", misfit.parameter, misfit.problem, misfit.known)]
pub struct Invalid {
    pub call: &'static str,
    pub misfit: Misfit,
}

/// Arguments that are right, as far as can be told here.
#[derive(Clone, Debug, Default)]
pub struct Arguments(JsonObject);

impl Arguments {
    pub fn check(call: &Call, given: JsonObject) -> Result<Self, Invalid> {
        // Some clients send null for what they leave out.
        let given: JsonObject = given.into_iter().filter(|(_, value)| !value.is_null()).collect();
        let invalid = |misfit| Invalid { call: call.name, misfit };
        check(call.takes(), &given).map_err(invalid)?;
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
        for Placed { place, parameter } in call.parameters {
            let Some(value) = self.0.get(parameter.name) else { continue };
            match place {
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
        let takes_body = call.parameters.iter().any(|placed| placed.place == Place::Body);
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
