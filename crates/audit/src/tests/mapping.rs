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
