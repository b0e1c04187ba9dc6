//! `docs/reference/events.md`: every kind with the schema of its data, from the types that the log is written with.

use sandkeep_core::event::{KindSchema, schemas};
use serde_json::{Map, Value};

const INTRODUCTION: &str = "\
# Events

<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run events_md -->

`GET /api/v1/events` and `sandkeep events` show events; webhooks deliver them. See [the guide](../guides/events.md).

No event contains values of environment variables, output, contents of files or credentials. `exec.started` contains the command line only
if the setting `events.commands` is on.

In the native form an event is `{seq, at, owner: {organization, user, project}, sandbox?, kind, data}`. As a CloudEvent 1.0 it has these
attributes:

| attribute | value |
|---|---|
| `id` | `<instance>-<seq>`: unique everywhere, and the same each time the event is delivered |
| `source` | `urn:sandkeep:instance:<instance>`: the data directory whose log has the event |
| `type` | `dev.sandkeep.<kind>` |
| `subject` | the id of the sandbox, if the event is about one |
| `time` | when the event was recorded |
| `dataschema` | `urn:sandkeep:event:<kind>:v1`, the `$id` of the schema below |
| `organization`, `user`, `project` | the owner |
| `sequence` | `seq` in twenty digits; CloudEvents have no integers that are large enough |
| `traceparent` | the W3C trace context, if there is one |

Three more types are never in the log: `dev.sandkeep.gap` (`{after, oldest}`: the events between are not kept any more),
`dev.sandkeep.heartbeat` (`{seq}`: a follower has got everything up to this event) and `dev.sandkeep.webhook.test` (`{webhook}`).

| kind | meaning | data |
|---|---|---|
";

fn reference() -> String {
    let all = schemas();
    let mut text = INTRODUCTION.to_owned();
    for KindSchema { kind, description, schema } in &all {
        let fields = fields(schema);
        let fields: Vec<String> = fields.iter().map(|field| format!("`{field}`")).collect();
        let description = description.replace('\n', " ");
        text += &format!("| `{kind}` | {description} | {} |\n", fields.join(" "));
    }
    text += "\n## Schemas\n\nThe JSON Schema (2020-12) of `data`, by kind.\n\n```json\n";
    let by_kind = all.into_iter().map(|one| (one.kind.to_owned(), one.schema));
    let by_kind = Value::Object(by_kind.collect::<Map<_, _>>());
    text += &serde_json::to_string_pretty(&by_kind).expect("JSON");
    text + "\n```\n"
}

/// The names of the fields, wherever a schema has put them.
fn fields(schema: &Value) -> Vec<String> {
    let definition = |part: &Value| {
        let name = part["$ref"].as_str().and_then(|text| text.rsplit('/').next());
        name.map_or_else(|| part.clone(), |name| schema["$defs"][name].clone())
    };
    let parts = match schema["allOf"].as_array() {
        Some(parts) => parts.iter().map(definition).collect(),
        None => vec![definition(schema)],
    };
    let names = |part: &Value| -> Vec<String> {
        let required = part["required"].as_array().cloned().unwrap_or_default();
        let fields = part["properties"].as_object().cloned().unwrap_or_default();
        let mark = |name: &String| if required.iter().any(|one| one == name) { "" } else { "?" };
        fields.keys().map(|name| format!("{name}{}", mark(name))).collect()
    };
    parts.iter().flat_map(names).collect()
}

#[test]
fn events_md_is_what_the_types_say() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/events.md");
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, reference()).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/events.md exists");
    assert!(
        written == reference(),
        "docs/reference/events.md is stale: run with SANDKEEP_REGENERATE=1"
    );
}
