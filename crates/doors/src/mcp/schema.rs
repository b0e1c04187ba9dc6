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

/// Removes references, parts and other forms of a field, and `null`, which means the same as omitting it: many model
/// providers accept none of them.
fn inlined(schema: Value, named: &BTreeMap<String, Value>) -> Value {
    let Value::Object(mut schema) = schema else { return schema };
    if let Some(Value::String(path)) = schema.remove("$ref") {
        let name = path.rsplit('/').next().unwrap_or_default();
        let meant = named.get(name).cloned().unwrap_or_default();
        return inlined(with(meant, schema), named);
    }
    if let Some(Value::Array(parts)) = schema.remove("allOf") {
        let whole = parts.into_iter().map(|part| inlined(part, named)).reduce(both);
        return inlined(with(whole.unwrap_or_default(), schema), named);
    }
    for several in ["oneOf", "anyOf"] {
        if let Some(Value::Array(forms)) = schema.remove(several) {
            let forms = forms.into_iter().map(|form| inlined(form, named));
            let form = forms.filter(|form| form["type"] != "null").reduce(richer);
            return inlined(with(form.unwrap_or_default(), schema), named);
        }
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
        (_, value) => (name, inlined(value, named)),
    });
    Value::Object(inner.collect())
}

/// The parts of an object together.
fn both(one: Value, other: Value) -> Value {
    let (Value::Object(mut all), Value::Object(other)) = (one, other) else { return Value::Null };
    for (name, value) in other {
        match (all.get_mut(&name), value) {
            (Some(Value::Object(fields)), Value::Object(more)) => fields.extend(more),
            (Some(Value::Array(names)), Value::Array(more)) => names.extend(more),
            (_, value) => drop(all.insert(name, value)),
        }
    }
    Value::Object(all)
}

/// Of two forms of a field the one that says more, because a field has one type: an object before a list, and that before
/// a word. What is within a field is read in every form, all the same. Words of two lists are one list.
fn richer(one: Value, other: Value) -> Value {
    let rank = |form: &Value| match form["type"].as_str() {
        Some("object") => 2,
        Some("array") => 1,
        _ => 0,
    };
    if one["enum"].is_array() && other["enum"].is_array() {
        return both(one, other);
    }
    if rank(&other) > rank(&one) { other } else { one }
}

/// A schema, with the description from the place where it is used.
fn with(meant: Value, said: Map<String, Value>) -> Value {
    let Value::Object(mut meant) = meant else { return meant };
    meant.extend(said);
    Value::Object(meant)
}
