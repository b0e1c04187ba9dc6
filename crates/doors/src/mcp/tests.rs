//! Calls as data: each can be described, checked and made a request.

use serde_json::{Value, json};

use super::arguments::{Arguments, Invalid};
use super::call::{Call, Place};
use super::catalogue::{find, tools};
use super::rest::Outgoing;
use sandkeep_broker::parameter::Need;

fn call(name: &str) -> &'static Call {
    find(name).unwrap_or_else(|| panic!("there is no {name}"))
}

fn request(name: &str, arguments: Value) -> Outgoing {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    let call = call(name);
    Arguments::check(call, arguments).expect("right arguments").request(call)
}

fn invalid(name: &str, arguments: Value) -> Invalid {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    Arguments::check(call(name), arguments).expect_err("wrong arguments")
}

#[test]
fn every_parameter_of_a_path_is_known_and_every_one_known_is_used() {
    for tool in tools() {
        let call = call(&tool.name);
        let mut named: Vec<&str> = call.path.split(['{', '}']).skip(1).step_by(2).collect();
        let mut known: Vec<&str> = call
            .parameters
            .iter()
            .filter(|placed| placed.place == Place::Path)
            .map(|placed| placed.parameter.name)
            .collect();
        named.sort_unstable();
        known.sort_unstable();
        assert_eq!(named, known, "{}", call.name);
    }
}

#[test]
fn every_call_is_a_request_that_the_rest_door_knows() {
    let (_, api) = crate::front::described().split_for_parts();
    for tool in tools() {
        let call = call(&tool.name);
        let known = api.paths.paths.keys().any(|path| same_shape(path, call.path));
        assert!(known, "{} calls {}, which is no path", call.name, call.path);
    }
}

/// Whether two paths differ only in what their parameters are called.
fn same_shape(one: &str, other: &str) -> bool {
    let shape = |path: &str| -> Vec<String> {
        path.split('/')
            .map(|part| if part.starts_with('{') { "{}".to_owned() } else { part.to_owned() })
            .collect()
    };
    shape(one) == shape(other)
}

#[test]
fn names_are_told_apart_and_texts_are_for_a_model() {
    let tools = tools();
    let mut names: Vec<&str> = tools.iter().map(|tool| tool.name.as_ref()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), tools.len());
    for tool in &tools {
        let about = tool.description.as_deref().unwrap_or_default();
        assert!(about.ends_with('.') && about.len() > 20, "{}: {about:?}", tool.name);
        assert!(tool.annotations.is_some(), "{} says nothing of what it does", tool.name);
    }
}

#[test]
fn arguments_go_where_the_request_has_them() {
    let made =
        request("rollback", json!({ "sandbox": "sb1", "snapshot": "turn-0001", "force": true }));
    assert_eq!(made.path, "/api/v1/sandboxes/sb1/rollback");
    let body: Value = serde_json::from_str(&made.body.expect("a body")).expect("JSON");
    assert_eq!(body, json!({ "snapshot": "turn-0001", "force": true }));
    let made =
        request("diff", json!({ "sandbox": "sb1", "from": "a b&c", "text": true, "to": null }));
    assert_eq!(made, Outgoing::get("/api/v1/sandboxes/sb1/diff?from=a%20b%26c&text=true"));
    let made = request("snapshot_delete", json!({ "sandbox": "../x", "snapshot": "a/b?c" }));
    assert_eq!(made.path, "/api/v1/sandboxes/..%2Fx/snapshots/a%2Fb%3Fc");
}

#[test]
fn wrong_arguments_are_named() {
    let unknown = invalid("rollback", json!({ "snapshot": "x", "snap": "y" }));
    assert_eq!(
        unknown.to_string(),
        "rollback: snap: there is no such parameter; its parameters are: sandbox?, snapshot, force?"
    );
    let missing = invalid("rollback", json!({}));
    assert!(missing.to_string().starts_with("rollback: snapshot: it is missing; "), "{missing}");
    let wrong = invalid("rollback", json!({ "snapshot": 1 }));
    assert!(wrong.to_string().starts_with("rollback: snapshot: it must be a string; "), "{wrong}");
}

#[test]
fn what_destroys_a_sandbox_must_be_told_which() {
    for name in ["sandbox_destroy", "sandbox_stop"] {
        let sandbox = call(name).parameter("sandbox").expect("a parameter");
        assert_eq!(sandbox.need, Need::Required, "{name}");
    }
}
