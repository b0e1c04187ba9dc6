use serde_json::json;

use super::*;
use crate::{OCSF_VERSION, to_ocsf};

#[test]
fn a_request_becomes_api_activity_with_its_required_attributes() {
    let request = Request {
        address: Some([127, 0, 0, 1].into()),
        correlation_id: Some("c1".to_owned()),
        sandbox: Some("sb1".to_owned()),
        duration_us: 12_345,
        route: Some("/api/v1/sandboxes".to_owned()),
        ..change(1)
    };
    let at = "2026-01-02T03:04:05.678Z".parse().expect("a time");
    let event = to_ocsf(&Record { seq: 7, at, entry: Entry::Request(Box::new(request)) }, "1.2");
    for (pointer, expected) in [
        ("/class_uid", json!(6003)),
        ("/category_uid", json!(6)),
        ("/activity_id", json!(1)),
        ("/type_uid", json!(600_301)),
        ("/severity_id", json!(1)),
        ("/status_id", json!(1)),
        ("/time", json!(1_767_323_045_678_i64)),
        ("/duration", json!(12)),
        ("/metadata/version", json!(OCSF_VERSION)),
        ("/metadata/product/version", json!("1.2")),
        ("/metadata/correlation_uid", json!("c1")),
        ("/actor/user/name", json!("ann")),
        ("/actor/user/org/name", json!("acme")),
        ("/actor/user/credential_uid", json!("k1")),
        ("/api/operation", json!("create_sandbox")),
        ("/src_endpoint/ip", json!("127.0.0.1")),
        ("/http_request/http_method", json!("POST")),
        ("/resources/0/uid", json!("sb1")),
    ] {
        assert_eq!(event.pointer(pointer), Some(&expected), "{pointer}: {event:#}");
    }
}

#[test]
fn a_refusal_of_somebody_unknown_is_a_failure_without_a_user() {
    let request = Request { actor: None, ..refusal("", "unauthenticated") };
    let at = "2026-01-02T03:04:05Z".parse().expect("a time");
    let event = to_ocsf(&Record { seq: 1, at, entry: Entry::Request(Box::new(request)) }, "1");
    assert_eq!(event["status_id"], 2);
    assert_eq!(event["status_code"], "unauthenticated");
    assert_eq!(event["activity_id"], 2);
    assert_eq!(event["actor"]["user"]["name"], "unknown");
}

/// Attributes of version 1.3.0, as far as we use an object of the schema.
const SCHEMA: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "activity_id",
            "activity_name",
            "actor",
            "api",
            "category_name",
            "category_uid",
            "class_name",
            "class_uid",
            "count",
            "duration",
            "http_request",
            "http_response",
            "metadata",
            "resources",
            "severity_id",
            "src_endpoint",
            "status",
            "status_code",
            "status_id",
            "time",
            "type_name",
            "type_uid",
            "unmapped",
        ],
    ),
    ("metadata", &["correlation_uid", "log_name", "product", "sequence", "uid", "version"]),
    ("product", &["name", "vendor_name", "version"]),
    ("actor", &["user"]),
    ("user", &["credential_uid", "name", "org", "type_id", "uid"]),
    ("org", &["name", "uid"]),
    ("api", &["operation", "request", "response", "service"]),
    ("request", &["uid"]),
    ("response", &["code", "error"]),
    ("service", &["name"]),
    ("src_endpoint", &["ip", "name"]),
    ("http_request", &["http_method", "url"]),
    ("url", &["path"]),
    ("http_response", &["code"]),
    ("resources", &["type", "uid"]),
];

/// Attributes that an event of these classes, and an object of these kinds, must have.
const REQUIRED: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "activity_id",
            "category_uid",
            "class_uid",
            "metadata",
            "severity_id",
            "time",
            "type_uid",
        ],
    ),
    ("metadata", &["product", "version"]),
    ("product", &["vendor_name"]),
    ("api", &["operation"]),
    ("request", &["uid"]),
    ("service", &["name"]),
    ("http_response", &["code"]),
];

fn check(object: &serde_json::Value, kind: &str) {
    let names: Vec<&String> = object.as_object().expect("an object").keys().collect();
    let of = |table: &'static [(&str, &'static [&'static str])]| {
        let row = table.iter().find(|(of, _)| *of == kind);
        row.map(|(_, attributes)| *attributes)
    };
    let known = of(SCHEMA).unwrap_or_else(|| panic!("no object {kind:?} in the schema"));
    for name in &names {
        assert!(known.contains(&name.as_str()), "{kind:?} has no {name:?}: {object:#}");
    }
    for required in of(REQUIRED).unwrap_or_default() {
        assert!(names.iter().any(|name| name == required), "{kind:?} needs {required}: {object:#}");
    }
    for (name, value) in object.as_object().expect("an object") {
        match value {
            // It is for what the schema does not know.
            _ if name == "unmapped" => {}
            serde_json::Value::Object(_) => check(value, name),
            serde_json::Value::Array(items) => items.iter().for_each(|item| check(item, name)),
            _ => {}
        }
    }
}

#[test]
fn every_attribute_is_one_that_the_schema_knows_and_none_that_it_needs_is_missing() {
    let at = "2026-01-02T03:04:05Z".parse().expect("a time");
    let full = Request {
        address: Some([127, 0, 0, 1].into()),
        correlation_id: Some("c1".to_owned()),
        trace_id: Some("t1".to_owned()),
        sandbox: Some("sb1".to_owned()),
        resource: Some("snap".to_owned()),
        route: Some("/api/v1/sandboxes".to_owned()),
        status: Some(201),
        ..change(1)
    };
    let bare = Request {
        actor: None,
        address: None,
        method: None,
        correlation_id: None,
        status: None,
        ..refusal("", "unauthenticated")
    };
    for request in [full, bare, change(2), refusal("acme", "quota")] {
        let record = Record { seq: 1, at, entry: Entry::Request(Box::new(request)) };
        let event = to_ocsf(&record, "1");
        check(&event, "");
        for needed in ["actor", "api", "src_endpoint"] {
            assert!(event[needed].is_object(), "{needed}: {event:#}");
        }
    }
    let gap = Record {
        seq: 1,
        at,
        entry: Entry::Gap { reason: crate::record::GapReason::Full, records: 3 },
    };
    check(&to_ocsf(&gap, "1"), "");
}
