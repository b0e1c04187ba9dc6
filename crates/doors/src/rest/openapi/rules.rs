//! The rules of our own words in the description, so that whoever writes a client learns each once. Dialects of others
//! (Urule) have their own.

use std::collections::BTreeSet;

use serde_json::Value;

use super::document;

/// Lists of another form: Urule's, and presets, which are a map by their names.
const OTHER_LISTS: [&str; 2] = ["list_sessions", "list_network_presets"];

/// Numbers of seconds, milliseconds or bytes whose names do not end with their unit, with the reason.
const WITHOUT_UNIT: [(&str, &str); 5] = [
    ("Abilities.max_sandbox_duration", "seconds, as its description says"),
    ("Task.timeout", "Urule's word"),
    ("File.size", "deprecated"),
    ("Sandbox.space_used", "deprecated"),
    ("CpuStats.limit_cpus", "processors are a unit"),
];

/// Words of quantities that have a unit, as parts of names.
const QUANTITIES: [&str; 17] = [
    "age", "delay", "disk", "duration", "elapsed", "idle", "interval", "latency", "memory",
    "period", "size", "space", "swap", "timeout", "ttl", "uptime", "used",
];

/// Units, as parts of names. `bytes` alone is a name: the unit says what is counted.
const UNITS: [&str; 9] = ["bytes", "cpus", "days", "hours", "mb", "ms", "secs", "sec", "us"];

fn description() -> Value {
    serde_json::from_str(&document()).expect("JSON")
}

fn resolved<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(reference) => api.pointer(&reference[1..]).expect("no reference dangles"),
        None => schema,
    }
}

/// Whether a schema admits a JSON type, as `type: x` or `type: [x, null]`.
fn admits(schema: &Value, kind: &str) -> bool {
    match &schema["type"] {
        Value::String(found) => found == kind,
        Value::Array(all) => all.iter().any(|found| found == kind),
        _ => false,
    }
}

/// Every property of every schema, as `Schema.property`.
fn properties(api: &Value) -> Vec<(String, String, &Value)> {
    let schemas = api["components"]["schemas"].as_object().expect("schemas");
    let mut found = Vec::new();
    for (name, schema) in schemas {
        let parts = schema["allOf"].as_array().into_iter().flatten().chain([schema]);
        for part in parts {
            for (field, property) in part["properties"].as_object().into_iter().flatten() {
                found.push((format!("{name}.{field}"), field.clone(), property));
            }
        }
    }
    assert!(found.len() > 500, "they were found");
    found
}

#[test]
fn every_time_is_a_date_time() {
    let api = description();
    let is_time = |field: &str| {
        ["at", "since", "until", "time"].contains(&field.rsplit('_').next().unwrap_or_default())
    };
    let (mut times, mut wrong) = (0, Vec::new());
    for (name, field, property) in properties(&api) {
        // Urule writes `createdAt`.
        if is_time(&field) && admits(property, "string") {
            times += 1;
            if property["format"] != "date-time" {
                wrong.push(name);
            }
        } else if property["format"] == "date-time"
            && field != "createdAt"
            // The period of a sum has two ends.
            && !["Usage.from", "Usage.to"].contains(&name.as_str())
        {
            wrong.push(format!("{name}: a time is called …_at or …_since"));
        }
    }
    assert!(times > 30, "{times}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_quantity_has_its_unit_in_its_name() {
    let api = description();
    let (mut found, mut wrong) = (0, Vec::new());
    for (name, field, property) in properties(&api) {
        if !admits(property, "integer") && !admits(property, "number") {
            continue;
        }
        let parts: BTreeSet<&str> = field.split('_').collect();
        let has_unit = UNITS.iter().any(|unit| parts.contains(unit));
        found += usize::from(has_unit);
        let is_quantity = QUANTITIES.iter().any(|quantity| parts.contains(quantity));
        let is_known = WITHOUT_UNIT.iter().any(|(known, _)| *known == name);
        if is_quantity && !has_unit && !is_known {
            wrong.push(name);
        }
    }
    assert!(found > 40, "{found}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_list_is_called_items_and_goes_on_with_next_cursor() {
    let api = description();
    let mut lists = 0;
    for (path, item) in api["paths"].as_object().expect("paths") {
        for operation in item.as_object().expect("operations").values() {
            let id = operation["operationId"].as_str().expect("an id");
            if !id.starts_with("list_") || OTHER_LISTS.contains(&id) {
                continue;
            }
            lists += 1;
            let answer = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            let answer = resolved(&api, answer);
            assert!(admits(answer, "object"), "{id} {path}: {answer:#}");
            let items = &answer["properties"]["items"];
            assert!(admits(items, "array"), "{id}: its items are not called so: {answer:#}");
            let required = answer["required"].as_array().expect("required");
            assert!(required.contains(&"items".into()), "{id}: items may be missing");
            let takes_cursor = operation["parameters"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|p| p["name"] == "cursor");
            let gives_cursor = answer["properties"]["next_cursor"].is_object();
            assert_eq!(takes_cursor, gives_cursor, "{id}: a cursor is given and taken, or neither");
        }
    }
    assert!(lists >= 15, "{lists}");
}

#[test]
fn what_can_be_addressed_has_an_id_and_old_names_are_marked() {
    let api = description();
    let schemas = &api["components"]["schemas"];
    for name in [
        "Sandbox",
        "Exec",
        "ExecStarted",
        "Shell",
        "ProcessView",
        "Snapshot",
        "Codebase",
        "Key",
        "Webhook",
        "Upload",
    ] {
        assert!(schemas[name]["properties"]["id"].is_object(), "{name} has no id");
    }
    for (name, old) in [
        ("Exec", "exec_id"),
        ("ExecStarted", "exec_id"),
        ("Sandbox", "space_used"),
        ("File", "size"),
        ("Runtimes", "runtimes"),
        ("Tools", "tools"),
        ("Forks", "sandboxes"),
    ] {
        assert_eq!(schemas[name]["properties"][old]["deprecated"], true, "{name}.{old}");
    }
    // How an exec ended is one list of words, wherever it is told.
    for (name, field) in [("Exec", "status"), ("EventExecEndedData", "status")] {
        assert_eq!(schemas[name]["properties"][field]["$ref"], "#/components/schemas/ExecStatus");
    }
}
