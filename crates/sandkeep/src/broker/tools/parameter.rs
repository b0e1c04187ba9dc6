//! The parameters of tools: one table, from which follow both what a model is told (JSON Schema) and what is checked
//! before anything is done, so that the two cannot disagree.

use serde_json::{Map, Value, json};

use crate::error::Error;

/// One parameter of a tool.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub kind: Kind,
    pub need: Need,
    /// For a model.
    pub description: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Required,
    Optional,
}

/// What a parameter may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A text that is not empty and holds no NUL, such as a path.
    Path,
    /// A text that a program will not take for an option: not empty, no NUL, no `-` at its beginning.
    Word,
    /// At least one path.
    Paths,
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
}

impl Kind {
    fn schema(self) -> Value {
        match self {
            Self::Text => json!({ "type": "string" }),
            Self::Path => json!({ "type": "string", "minLength": 1 }),
            Self::Word => json!({ "type": "string", "pattern": "^[^-]" }),
            Self::Paths => json!({
                "type": "array", "minItems": 1, "items": { "type": "string", "minLength": 1 },
            }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::Whole { min, max: u64::MAX } => json!({ "type": "integer", "minimum": min }),
            Self::Whole { min, max } => {
                json!({ "type": "integer", "minimum": min, "maximum": max })
            }
        }
    }

    /// In words, for an error.
    fn words(self) -> String {
        match self {
            Self::Text => "a string".to_owned(),
            Self::Path => "a string that is not empty and holds no NUL".to_owned(),
            Self::Word => {
                "a string that is not empty, holds no NUL and does not begin with -".to_owned()
            }
            Self::Paths => "an array of at least one string, none of them empty".to_owned(),
            Self::Flag => "true or false".to_owned(),
            Self::Whole { min, max: u64::MAX } => format!("a whole number, at least {min}"),
            Self::Whole { min, max } => format!("a whole number from {min} to {max}"),
        }
    }

    fn fits(self, value: &Value) -> bool {
        let path = |value: &Value| {
            value.as_str().is_some_and(|text| !text.is_empty() && !text.contains('\0'))
        };
        match self {
            Self::Text => value.is_string(),
            Self::Path => path(value),
            Self::Word => path(value) && value.as_str().is_some_and(|text| !text.starts_with('-')),
            Self::Paths => {
                value.as_array().is_some_and(|items| !items.is_empty() && items.iter().all(path))
            }
            Self::Flag => value.is_boolean(),
            Self::Whole { min, max } => {
                value.as_u64().is_some_and(|number| (min..=max).contains(&number))
            }
        }
    }
}

/// The JSON Schema of an object with these fields and no others.
pub fn schema(parameters: &[Parameter]) -> Value {
    let described = |parameter: &Parameter| {
        let mut schema = parameter.kind.schema();
        schema["description"] = parameter.description.into();
        (parameter.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = parameters.iter().map(described).collect();
    let required: Vec<&str> =
        parameters.iter().filter(|p| p.need == Need::Required).map(|p| p.name).collect();
    json!({
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Whether these are the parameters, all of them and no others.
pub fn check(
    tool: &'static str,
    parameters: &'static [Parameter],
    arguments: &Map<String, Value>,
) -> Result<(), Error> {
    let refused = |parameter: &str, problem: String| {
        let known = listed(parameters);
        Err(Error::ToolArgument { tool, parameter: parameter.to_owned(), problem, known })
    };
    for (name, value) in arguments {
        match parameters.iter().find(|parameter| parameter.name == name) {
            None => return refused(name, "there is no such parameter".to_owned()),
            // Some clients send what they leave out as null.
            Some(Parameter { need: Need::Optional, .. }) if value.is_null() => {}
            Some(Parameter { kind, .. }) if kind.fits(value) => {}
            Some(Parameter { kind, .. }) => {
                return refused(name, format!("it must be {}", kind.words()));
            }
        }
    }
    let missing = |parameter: &&Parameter| {
        parameter.need == Need::Required && !arguments.contains_key(parameter.name)
    };
    match parameters.iter().find(missing) {
        Some(missing) => refused(missing.name, "it is missing".to_owned()),
        None => Ok(()),
    }
}

/// `path, offset?, limit?`
pub fn listed(parameters: &[Parameter]) -> String {
    let shown = |parameter: &Parameter| match parameter.need {
        Need::Required => parameter.name.to_owned(),
        Need::Optional => format!("{}?", parameter.name),
    };
    parameters.iter().map(shown).collect::<Vec<_>>().join(", ")
}
