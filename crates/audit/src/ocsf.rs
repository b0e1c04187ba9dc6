//! Records in the words of the Open Cybersecurity Schema Framework: requests are API Activity (class 6003), what the log
//! says about itself is a base event.

use serde_json::{Map, Value, json};

use crate::record::{Actor, Effect, Entry, Outcome, Record, Request};

/// The version whose field names are used.
pub const OCSF_VERSION: &str = "1.3.0";

const API_ACTIVITY: u32 = 6003;
const APPLICATION_ACTIVITY: u32 = 6;
const OTHER: u32 = 99;

/// One event. `product_version` is that of the program.
pub fn to_ocsf(record: &Record, product_version: &str) -> Value {
    let metadata = json!({
        "version": OCSF_VERSION,
        "product": { "name": "Sandkeep", "vendor_name": "Sandkeep", "version": product_version },
        "log_name": "audit",
        "uid": record.seq.to_string(),
        "sequence": record.seq,
    });
    let time = record.at.as_millisecond();
    match &record.entry {
        Entry::Request(request) => api_activity(request, metadata, time),
        other => json!({
            "class_uid": 0,
            "class_name": "Base Event",
            "category_uid": 0,
            "category_name": "Uncategorized",
            "activity_id": OTHER,
            "activity_name": json!(other)["kind"],
            "type_uid": OTHER,
            "severity_id": if matches!(other, Entry::Gap { .. }) { 4 } else { 1 },
            "time": time,
            "metadata": metadata,
            "unmapped": json!(other),
        }),
    }
}

fn api_activity(request: &Request, mut metadata: Value, time: i64) -> Value {
    if let Some(id) = &request.correlation_id {
        metadata["correlation_uid"] = json!(id);
    }
    let (activity, activity_name) = activity(request);
    let (status_id, status) = match request.outcome {
        Outcome::Success => (1, "Success"),
        Outcome::Refused | Outcome::Failed => (2, "Failure"),
    };
    let mut event = json!({
        "class_uid": API_ACTIVITY,
        "class_name": "API Activity",
        "category_uid": APPLICATION_ACTIVITY,
        "category_name": "Application Activity",
        "activity_id": activity,
        "activity_name": activity_name,
        "type_uid": API_ACTIVITY * 100 + activity,
        "type_name": format!("API Activity: {activity_name}"),
        "severity_id": if request.outcome == Outcome::Refused { 2 } else { 1 },
        "time": time,
        "count": request.count,
        "duration": request.duration_us / 1000,
        "status_id": status_id,
        "status": status,
        "metadata": metadata,
        "actor": actor(request.actor.as_ref()),
        "api": {
            "operation": request.operation,
            "service": { "name": request.door },
        },
        "src_endpoint": match request.address {
            Some(address) => json!({ "ip": address.to_string() }),
            None => json!({ "name": "unknown" }),
        },
    });
    if let Some(id) = &request.correlation_id {
        event["api"]["request"] = json!({ "uid": id });
    }
    if let Some(status) = request.status {
        event["api"]["response"] = json!({ "code": status });
        event["http_response"] = json!({ "code": status });
    }
    if let Some(code) = &request.code {
        event["status_code"] = json!(code);
        event["api"]["response"]["error"] = json!(code);
    }
    if let Some(method) = &request.method {
        let path = request.route.clone().unwrap_or_default();
        event["http_request"] = json!({ "http_method": method, "url": { "path": path } });
    }
    let named = [("sandbox", &request.sandbox), ("resource", &request.resource)];
    let resources: Vec<Value> = named
        .into_iter()
        .filter_map(|(kind, id)| Some(json!({ "type": kind, "uid": id.as_ref()? })))
        .collect();
    if !resources.is_empty() {
        event["resources"] = Value::Array(resources);
    }
    let mut unmapped = Map::new();
    unmapped.insert("outcome".to_owned(), json!(request.outcome));
    if let Some(project) = request.actor.as_ref().and_then(|actor| actor.project.as_ref()) {
        unmapped.insert("project".to_owned(), json!(project));
    }
    if let Some(trace) = &request.trace_id {
        unmapped.insert("trace_id".to_owned(), json!(trace));
    }
    event["unmapped"] = Value::Object(unmapped);
    event
}

fn actor(actor: Option<&Actor>) -> Value {
    let Some(Actor { organization, user, project: _, key }) = actor else {
        return json!({ "user": { "name": "unknown", "type_id": 0 } });
    };
    let mut user = json!({
        "name": user,
        "uid": format!("{organization}/{user}"),
        "org": { "name": organization },
    });
    if let Some(key) = key {
        user["credential_uid"] = json!(key);
    }
    json!({ "user": user })
}

/// Create, read, update and delete, as far as the operation says it.
fn activity(request: &Request) -> (u32, &'static str) {
    let begins = |words: &[&str]| words.iter().any(|word| request.operation.starts_with(word));
    let is = |method: &str| request.method.as_deref() == Some(method);
    if request.effect == Effect::Reads {
        (2, "Read")
    } else if is("DELETE") || begins(&["delete", "destroy", "remove", "revoke", "end_", "close"]) {
        (4, "Delete")
    } else if begins(&["create", "ensure", "fork", "sign", "open", "upload", "import", "build"]) {
        (1, "Create")
    } else if is("PATCH") || is("PUT") || begins(&["start", "stop", "pause", "resume", "rollback"])
    {
        (3, "Update")
    } else {
        (OTHER, "Other")
    }
}
