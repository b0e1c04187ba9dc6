//! The parameters of a REST request as a model sees them: the fields of its JSON Schema, with all references inlined.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use sandkeep_broker::parameter::{Need, Parameter};

/// One field.
#[derive(Clone, Debug)]
pub struct Field {
    pub name: String,
    pub need: Need,
    pub schema: Value,
}

impl From<&Parameter> for Field {
    fn from(parameter: &Parameter) -> Self {
        let (name, need) = (parameter.name.to_owned(), parameter.need);
        Self { name, need, schema: parameter.schema() }
    }
}

/// For a request without fields.
pub fn none() -> Vec<Field> {
    Vec::new()
}

/// The fields of a body.
pub fn body<T: ToSchema>() -> Vec<Field> {
    let mut named = Vec::new();
    T::schemas(&mut named);
    let named = named.into_iter().map(|(name, schema)| (name, json(&schema))).collect();
    let schema = inlined(json(&T::schema()), &named);
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    let properties = schema["properties"].as_object().cloned().unwrap_or_default();
    let field = |(name, schema): (String, Value)| {
        let is_required = required.iter().any(|required| *required == *name);
        Field { need: need(is_required), name, schema }
    };
    properties.into_iter().map(field).collect()
}

/// The fields of a query.
pub fn query<T: IntoParams>() -> Vec<Field> {
    let field = |parameter| {
        let mut parameter = json(&parameter);
        let mut schema = inlined(parameter["schema"].take(), &BTreeMap::new());
        schema["description"] = parameter["description"].take();
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        Field { name, need: need(parameter["required"] == true), schema }
    };
    T::into_params(|| None).into_iter().map(field).collect()
}

fn need(required: bool) -> Need {
    if required { Need::Required } else { Need::Optional }
}

fn json(part: &impl serde::Serialize) -> Value {
    serde_json::to_value(part).expect("a description holds only strings and maps")
}

/// Removes references, and `null`, which means the same as omitting the field: many model providers accept neither.
fn inlined(schema: Value, named: &BTreeMap<String, Value>) -> Value {
    let Value::Object(mut schema) = schema else { return schema };
    if let Some(Value::String(path)) = schema.remove("$ref") {
        let name = path.rsplit('/').next().unwrap_or_default();
        let meant = named.get(name).cloned().unwrap_or_default();
        return inlined(with(meant, schema), named);
    }
    if let Some(Value::Array(choices)) = schema.remove("oneOf") {
        let mut choices: Vec<Value> =
            choices.into_iter().filter(|choice| choice["type"] != "null").collect();
        if choices.len() == 1 {
            return inlined(with(choices.remove(0), schema), named);
        }
        schema.insert("oneOf".to_owned(), choices.into());
    }
    schema.remove("propertyNames");
    if let Some(Value::Array(types)) = schema.get("type") {
        let other = types.iter().find(|name| **name != "null").cloned();
        schema.insert("type".to_owned(), other.unwrap_or_default());
    }
    let inner = schema.into_iter().map(|(name, value)| match (name.as_str(), value) {
        ("properties", Value::Object(fields)) => {
            let fields = fields.into_iter().map(|(name, field)| (name, inlined(field, named)));
            (name, Value::Object(fields.collect()))
        }
        ("oneOf", Value::Array(choices)) => {
            (name, choices.into_iter().map(|choice| inlined(choice, named)).collect())
        }
        (_, value) => (name, inlined(value, named)),
    });
    Value::Object(inner.collect())
}

/// A schema, with the description from the place where it is used.
fn with(meant: Value, said: Map<String, Value>) -> Value {
    let Value::Object(mut meant) = meant else { return meant };
    meant.extend(said);
    Value::Object(meant)
}
