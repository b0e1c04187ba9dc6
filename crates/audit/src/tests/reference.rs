//! `docs/reference/audit.md`, made from the types.

use std::fmt::Write as _;

use serde_json::{Value, json};
use utoipa::{PartialSchema, ToSchema};

use crate::{Actor, Entry, GapReason, OCSF_VERSION, Outcome, Request};

const INTRODUCTION: &str = "\
# Audit records

<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run audit_md -->

One JSON object per line, as `sandkeep audit export` and `GET /api/v1/audit` write them. Each has `seq`, its position in the log of the node without
gaps, `at`, when it was written, and `kind`. [The guide](../guides/audit.md) shows how to read, export and verify them.
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let entry = json!(Entry::schema());
    for variant in entry["oneOf"].as_array().expect("an enum with data") {
        let parts: Vec<&Value> = match variant["allOf"].as_array() {
            Some(parts) => parts.iter().collect(),
            None => vec![variant],
        };
        let kind = parts.iter().find_map(|part| part["properties"]["kind"]["enum"][0].as_str());
        let kind = kind.expect("every kind has a name");
        let about = text(variant);
        let _ = writeln!(page, "\n## `{kind}`\n\n{about}");
        match kind {
            "request" => {
                page.push_str(&fields(&json!(Request::schema())));
                let _ = writeln!(page, "\n`actor`:");
                page.push_str(&fields(&json!(Actor::schema())));
                let _ = writeln!(page, "\n`outcome`:");
                page.push_str(&variants(&json!(Outcome::schema())));
            }
            "gap" => {
                page.push_str(&fields(variant));
                let _ = writeln!(page, "\n`reason`:");
                page.push_str(&variants(&json!(GapReason::schema())));
            }
            _ => page.push_str(&fields(variant)),
        }
    }
    let _ = writeln!(
        page,
        "\n## OCSF\n\n`--format ocsf` writes requests as API Activity (class 6003) of OCSF {OCSF_VERSION}, and the other kinds as \
         base events, with their fields in `unmapped`."
    );
    page
}

fn text(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().replace('\n', " ")
}

fn fields(schema: &Value) -> String {
    let mut table = "\n| field | type | |\n|---|---|---|\n".to_owned();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if name == "kind" {
            continue;
        }
        let named = field["$ref"].as_str().or(field["oneOf"][1]["$ref"].as_str());
        let kind = match (&field["type"], named) {
            (_, Some(_)) => "see below".to_owned(),
            (Value::String(kind), None) => kind.clone(),
            (Value::Array(kinds), None) => kinds[0].as_str().unwrap_or_default().to_owned(),
            (_, None) => "see below".to_owned(),
        };
        let is_required =
            schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
        let optional = if is_required { "" } else { ", optional" };
        let _ = writeln!(table, "| `{name}` | {kind}{optional} | {} |", text(field));
    }
    table
}

/// The names of an enum with what they mean, as far as the schema has it.
fn variants(schema: &Value) -> String {
    let mut table = "\n| value | |\n|---|---|\n".to_owned();
    for variant in schema["oneOf"].as_array().into_iter().flatten() {
        let name = variant["enum"][0].as_str().unwrap_or_default();
        let _ = writeln!(table, "| `{name}` | {} |", text(variant));
    }
    for name in schema["enum"].as_array().into_iter().flatten() {
        let _ = writeln!(table, "| `{}` | |", name.as_str().unwrap_or_default());
    }
    table
}

#[test]
fn audit_md_is_what_the_types_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/audit.md");
    let page = page();
    assert!(!Request::name().is_empty());
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, &page).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/audit.md exists");
    assert!(written == page, "docs/reference/audit.md is stale: run with SANDKEEP_REGENERATE=1");
}
