//! The parameters of tools: one table that yields both the JSON Schema for the model and the validation, so that the
//! two cannot disagree.

use serde_json::{Map, Value, json};

/// One parameter of a call.
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

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any text.
    Text,
    /// A text that is not empty and contains no NUL, such as a path.
    Path,
    /// A text that a program will not take for an option: not empty, no NUL, no leading `-`.
    Word,
    /// At least one path.
    Paths,
    Flag,
    Whole {
        min: u64,
        max: u64,
    },
}

/// Invalid arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub parameter: String,
    pub problem: String,
    /// The parameters that exist.
    pub known: String,
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

impl Parameter {
    pub fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        schema["description"] = self.description.into();
        schema
    }
}

/// The JSON Schema of an object with these fields and no others.
pub fn schema<'a>(parameters: impl Iterator<Item = &'a Parameter> + Clone) -> Map<String, Value> {
    let described = |parameter: &Parameter| (parameter.name.to_owned(), parameter.schema());
    let properties: Map<String, Value> = parameters.clone().map(described).collect();
    let required: Vec<&str> =
        parameters.filter(|p| p.need == Need::Required).map(|p| p.name).collect();
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("properties".to_owned(), Value::Object(properties)),
        ("required".to_owned(), json!(required)),
        ("additionalProperties".to_owned(), json!(false)),
    ])
}

/// Checks that the arguments match the parameters, with none missing or unknown.
pub fn check<'a>(
    parameters: impl Iterator<Item = &'a Parameter> + Clone,
    arguments: &Map<String, Value>,
) -> Result<(), Misfit> {
    let misfit = |parameter: &str, problem: String| {
        let known = listed(parameters.clone());
        Err(Misfit { parameter: parameter.to_owned(), problem, known })
    };
    for (name, value) in arguments {
        match parameters.clone().find(|parameter| parameter.name == name) {
            None => return misfit(name, "there is no such parameter".to_owned()),
            // Some clients send omitted arguments as null.
            Some(Parameter { need: Need::Optional, .. }) if value.is_null() => {}
            Some(Parameter { kind, .. }) if kind.fits(value) => {}
            Some(Parameter { kind, .. }) => {
                return misfit(name, format!("it must be {}", kind.words()));
            }
        }
    }
    let missing = |parameter: &&Parameter| {
        parameter.need == Need::Required && !arguments.contains_key(parameter.name)
    };
    match parameters.clone().find(missing) {
        Some(missing) => misfit(missing.name, "it is missing".to_owned()),
        None => Ok(()),
    }
}

/// `path, offset?, limit?`
pub fn listed<'a>(parameters: impl Iterator<Item = &'a Parameter>) -> String {
    let shown = |parameter: &Parameter| match parameter.need {
        Need::Required => parameter.name.to_owned(),
        Need::Optional => format!("{}?", parameter.name),
    };
    let shown: Vec<String> = parameters.map(shown).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(", ") }
}
