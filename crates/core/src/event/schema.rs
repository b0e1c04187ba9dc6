//! The JSON Schema of the data of each kind, made from the types that are written to the log.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::EventKind;

const COMPONENTS: &str = "#/components/schemas/";
const DEFINITIONS: &str = "#/$defs/";

/// One kind of event.
#[derive(Clone, Debug, PartialEq)]
pub struct KindSchema {
    pub kind: &'static str,
    /// What it means.
    pub description: String,
    /// JSON Schema (2020-12) of `data`.
    pub schema: Value,
}

/// All kinds, in the order of [`EventKind::NAMES`].
pub fn schemas() -> Vec<KindSchema> {
    let whole = serde_json::to_value(EventKind::schema()).expect("a schema is JSON");
    let mut named = Vec::new();
    EventKind::schemas(&mut named);
    let named: BTreeMap<String, Value> = named
        .into_iter()
        .map(|(name, schema)| (name, serde_json::to_value(schema).expect("a schema is JSON")))
        .collect();
    let variants = whole["oneOf"].as_array().cloned().unwrap_or_default();
    let of = |kind: &&'static str| {
        let variant =
            variants.iter().find(|variant| variant["properties"]["kind"]["enum"][0] == **kind);
        let variant = variant.cloned().unwrap_or_default();
        let description = variant["description"].as_str().unwrap_or_default().to_owned();
        KindSchema {
            kind,
            description,
            schema: document(variant["properties"]["data"].clone(), kind, &named),
        }
    };
    EventKind::NAMES.iter().map(of).collect()
}

/// A schema that stands alone: what it refers to is in its `$defs`.
fn document(mut schema: Value, kind: &str, named: &BTreeMap<String, Value>) -> Value {
    let mut definitions = Map::new();
    let mut wanted = localize(&mut schema);
    while let Some(name) = wanted.pop() {
        if let Some(definition) = named.get(&name).filter(|_| !definitions.contains_key(&name)) {
            let mut definition = definition.clone();
            wanted.extend(localize(&mut definition));
            definitions.insert(name, definition);
        }
    }
    if !schema.is_object() {
        schema = json!({ "type": "object" });
    }
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["$id"] = json!(super::cloud::data_schema(kind));
    if !definitions.is_empty() {
        schema["$defs"] = Value::Object(definitions);
    }
    schema
}

/// Turns references to components into references to definitions; returns their names.
fn localize(schema: &mut Value) -> Vec<String> {
    match schema {
        Value::Object(fields) => {
            let mut names = Vec::new();
            for (name, value) in fields.iter_mut() {
                match value {
                    Value::String(text) if name == "$ref" => {
                        if let Some(of) = text.strip_prefix(COMPONENTS).map(str::to_owned) {
                            *text = format!("{DEFINITIONS}{of}");
                            names.push(of);
                        }
                    }
                    other => names.extend(localize(other)),
                }
            }
            names
        }
        Value::Array(items) => items.iter_mut().flat_map(localize).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_one_schema_that_stands_alone() {
        let whole = serde_json::to_value(EventKind::schema()).expect("JSON");
        let variants = whole["oneOf"].as_array().expect("one for each kind").len();
        let all = schemas();
        assert_eq!(all.len(), variants);
        for KindSchema { kind, description, schema } in all {
            assert!(!description.is_empty(), "{kind} has no schema, or nothing says what it means");
            assert!(schema.is_object(), "{kind}: {schema}");
            assert!(!schema.to_string().contains(COMPONENTS), "{kind}: {schema}");
            for name in schema.to_string().split(DEFINITIONS).skip(1) {
                let name = name.split('"').next().unwrap_or_default();
                assert!(schema["$defs"][name].is_object(), "{kind} lacks {name}: {schema}");
            }
        }
    }
}
