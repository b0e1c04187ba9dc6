//! Calls as data: each can be described, checked and decoded.

use serde_json::{Map, Value, json};

use super::answer;
use super::call::Call;
use super::catalogue::{Offer, find, offers};
use crate::kit::Refusal;
use sandkeep_broker::parameter::Need;
use sandkeep_core::SandboxId;

fn offer(name: &str) -> &'static Offer {
    find(name).unwrap_or_else(|| panic!("there is no {name}"))
}

fn object(arguments: Value) -> Map<String, Value> {
    let Value::Object(arguments) = arguments else { panic!("arguments are an object") };
    arguments
}

fn decoded(name: &str, arguments: Value) -> Result<Call, Refusal> {
    let offer = offer(name);
    let given = offer.check(object(arguments));
    offer.decode(given.unwrap_or_else(|misfit| panic!("{misfit:?}")))
}

fn misfit(name: &str, arguments: Value) -> String {
    let Err(misfit) = offer(name).check(object(arguments)) else { panic!("it fits") };
    let told = answer::misfit(name, &misfit).structured_content.expect("data");
    told["detail"].as_str().expect("a text").to_owned()
}

#[test]
fn every_schema_stands_by_itself() {
    for offer in offers() {
        let schema = Value::Object(offer.tool.input_schema.as_ref().clone()).to_string();
        for strange in ["$ref", "\"null\"", "propertyNames", "oneOf", "anyOf", "allOf"] {
            assert!(!schema.contains(strange), "{}: {strange} in {schema}", offer.name());
        }
        for field in &offer.fields {
            assert!(field.schema["type"].is_string(), "{}: {field:?}", offer.name());
        }
    }
}

#[test]
fn what_a_model_is_told_is_what_the_rest_api_says() {
    let api: Value = serde_json::from_str(&crate::rest::openapi::document()).expect("JSON");
    let said = &api["components"]["schemas"]["RollbackSandbox"]["properties"]["force"];
    let told = &offer("rollback").tool.input_schema["properties"]["force"];
    assert_eq!(said["description"], told["description"]);
    let listing = &api["paths"]["/api/v1/sandboxes"]["get"]["parameters"];
    let limit = listing.as_array().expect("parameters").iter().find(|one| one["name"] == "limit");
    let told = &offer("sandbox_list").tool.input_schema["properties"]["limit"];
    assert_eq!(limit.expect("a limit")["description"], told["description"]);
    assert_eq!(told["maximum"], 1000);
}

#[test]
fn names_are_told_apart_and_texts_are_for_a_model() {
    let mut names: Vec<&str> = offers().iter().map(Offer::name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), offers().len());
    for offer in offers() {
        let about = offer.tool.description.as_deref().unwrap_or_default();
        assert!(about.ends_with('.') && about.len() > 20, "{}: {about:?}", offer.name());
        assert!(offer.tool.annotations.is_some(), "{} says nothing of what it does", offer.name());
    }
}

#[test]
fn arguments_become_the_request() {
    let sandbox = SandboxId::random();
    let asked = json!({ "sandbox": sandbox, "snapshot": "turn-0001", "force": true });
    let Ok(Call::Rollback(id, request)) = decoded("rollback", asked) else { panic!("a rollback") };
    assert_eq!((&id, request.snapshot.as_str(), request.force), (&sandbox, "turn-0001", true));
    let asked = json!({ "sandbox": sandbox, "from": "a b&c", "text": true, "to": null });
    let Ok(Call::Diff(_, request)) = decoded("diff", asked) else { panic!("a diff") };
    assert_eq!(
        (request.from.as_deref(), request.to, request.text),
        (Some("a b&c"), None, Some(true))
    );
    // One text is a list of one.
    let Ok(Call::ListSandboxes(request)) = decoded("sandbox_list", json!({ "label": "a=b" }))
    else {
        panic!("a list")
    };
    assert_eq!(request.label, ["a=b"]);
}

#[test]
fn what_is_no_name_names_nothing() {
    let sandbox = SandboxId::random();
    let refused = decoded("sandbox_get", json!({ "sandbox": "../x" }));
    assert!(matches!(refused, Err(Refusal::NotAnId { .. })), "{refused:?}");
    let asked = json!({ "sandbox": sandbox, "snapshot": "a/b?c" });
    let refused = decoded("snapshot_delete", asked);
    assert!(matches!(refused, Err(Refusal::NotASnapshotName { .. })), "{refused:?}");
    let refused = decoded("port_listen", json!({ "sandbox": sandbox, "port": 70000 }));
    assert!(matches!(refused, Err(Refusal::NotAPort { .. })), "{refused:?}");
}

#[test]
fn wrong_arguments_are_named() {
    assert_eq!(
        misfit("rollback", json!({ "snapshot": "x", "snap": "y" })),
        "rollback: snap: there is no such parameter; its parameters are: sandbox?, snapshot, force?"
    );
    let missing = misfit("rollback", json!({}));
    assert!(missing.starts_with("rollback: snapshot: it is missing; "), "{missing}");
    let wrong = misfit("rollback", json!({ "snapshot": 1 }));
    assert!(wrong.starts_with("rollback: snapshot: it must be a string; "), "{wrong}");
    let inner = decoded("sandbox_create", json!({ "resources": { "memory": 1 } }));
    assert!(
        matches!(&inner, Err(Refusal::BodyMalformed { field: Some(field), .. }) if field.starts_with("resources")),
        "{inner:?}"
    );
}

#[test]
fn a_model_cannot_name_files_of_the_host() {
    for source in [json!({ "dir": "/etc" }), json!({ "git": "file:///srv/tools.git" })] {
        let refused = decoded("sandbox_create", json!({ "source": source }));
        assert!(matches!(refused, Err(Refusal::Broker(_))), "{refused:?}");
    }
    let remote = json!({ "source": { "git": "https://a.example/tools.git" }, "name": "web" });
    assert!(matches!(decoded("sandbox_create", remote), Ok(Call::CreateSandbox(_))));
}

#[test]
fn what_destroys_a_sandbox_must_be_told_which() {
    for name in ["sandbox_destroy", "sandbox_stop"] {
        let offer = offer(name);
        let sandbox = offer.fields.iter().find(|field| field.name == "sandbox").expect("a field");
        assert_eq!(sandbox.need, Need::Required, "{name}");
        assert!(!offer.has_default(), "{name}");
    }
}
