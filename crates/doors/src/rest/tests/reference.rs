//! `docs/reference/api.md`: one row per operation of the OpenAPI description.

use serde_json::Value;

use crate::rest::openapi::document;

const INTRODUCTION: &str = "\
# HTTP API

<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run api_md -->

[openapi.json](openapi.json) is the complete description with all schemas; a running daemon serves it at
`/openapi.json`, and as a page at `/docs`.

- **Access**: a GET needs the scope `read`, other methods and WebSockets need `write`, keys and metrics need
  `admin`. `/healthz`, `/readyz`, `/docs` and `/openapi.json` need no credentials. See [auth](../guides/auth.md).
- **Takes**: query parameters as `?name`; fields of the JSON body in braces, optional ones with a `?` after them.
- **Errors** are problem+json with a stable `code`: see [errors.md](errors.md). Besides those listed, every request
  can answer 401, 403, 429, 500 or 503.
- **Lists** answer `{items, next_cursor?}`.
- **Streams**: `?stream=true`, or `Accept: application/x-ndjson` or `text/event-stream`, streams the answer.
- **Retries**: create and fork with an `Idempotency-Key` header run only once.
- Ids are complete; only the command line accepts prefixes. A `/` in a template name is `%2F`.
- `…` stands for `/api/v1/sandboxes/{id}`.
";

/// How every request can fail, so that no row says it.
const ALWAYS: [&str; 5] = ["401", "403", "429", "500", "503"];

fn reference() -> String {
    let api: Value = serde_json::from_str(&document()).expect("JSON");
    let mut text = INTRODUCTION.to_owned();
    for tag in api["tags"].as_array().expect("tags") {
        let (name, about) = (word(&tag["name"]), word(&tag["description"]));
        text += &format!(
            "\n## {name}\n\n{about}.\n\n\
             | request | purpose | takes | success | errors |\n|---|---|---|---|---|\n"
        );
        for (path, item) in api["paths"].as_object().expect("paths") {
            let operations = item.as_object().expect("operations").iter();
            for (method, operation) in operations.filter(|(_, one)| one["tags"][0] == tag["name"]) {
                let request = format!("{} {}", method.to_uppercase(), shortened(path));
                text += &row(&api, &request, operation);
            }
        }
    }
    text
}

fn row(api: &Value, request: &str, operation: &Value) -> String {
    let answers = operation["responses"].as_object().expect("answers").keys().map(String::as_str);
    let answers = answers.filter(|status| !ALWAYS.contains(status));
    let (failed, fine): (Vec<&str>, Vec<&str>) = answers.partition(|status| *status >= "400");
    let purpose = word(&operation["summary"]);
    let takes = [query(operation), body(api, operation)].concat().join(" ");
    format!("| `{request}` | {purpose} | {takes} | {} | {} |\n", fine.join(" "), failed.join(" "))
}

fn query(operation: &Value) -> Vec<String> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let named = parameters.filter(|parameter| parameter["in"] == "query");
    named.map(|parameter| format!("`?{}`", word(&parameter["name"]))).collect()
}

fn body(api: &Value, operation: &Value) -> Vec<String> {
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let reference = schema.get("$ref").unwrap_or(&schema["oneOf"][0]["$ref"]);
    let Some(name) = reference.as_str().and_then(|path| path.rsplit('/').next()) else {
        return Vec::new();
    };
    let schema = &api["components"]["schemas"][name];
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let fields = schema["properties"].as_object().into_iter().flatten().map(|(field, _)| {
        let optional = if required.contains(&field.as_str()) { "" } else { "?" };
        format!("{field}{optional}")
    });
    vec![format!("`{{{}}}`", fields.collect::<Vec<_>>().join(", "))]
}

fn shortened(path: &str) -> String {
    path.replace("/api/v1/sandboxes/{id}", "…")
}

fn word(value: &Value) -> &str {
    value.as_str().expect("a string").trim_end_matches('.')
}

#[test]
fn api_md_lists_every_operation() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/api.md");
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, reference()).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/api.md exists");
    assert!(
        written == reference(),
        "docs/reference/api.md is stale: run with SANDKEEP_REGENERATE=1"
    );
}
