//! Settings as text, for help and documents.

use serde_json::Value;

use super::settings::Settings;
use super::table::Setting;

/// The default of a setting, for help texts and documents.
pub fn default_in_words(row: &Setting, defaults: &Settings) -> String {
    row.default.map_or_else(|| in_words(&(row.show)(defaults)), str::to_owned)
}

/// A shown value on one line.
pub fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(in_words).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}
