//! The API as a NATS micro service.

use futures_util::StreamExt;
use serde_json::{Value, json};

use super::server::{Caller, Server, header, headers_of, json_of, missing, wait_for_answers};
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

/// A daemon with a key, and what to call it with.
pub struct House {
    pub key: String,
    pub caller: Caller,
    pub daemon: Daemon,
    pub server: Server,
}

impl House {
    pub fn open(more: &[&str]) -> Self {
        let server = Server::start();
        let setup = server.setup(&[&["--nats-commands"], more].concat());
        let daemon = with_admin(&setup);
        wait_for_answers(&daemon);
        let key = key_of(&create_key(&daemon.data_dir(), "acme", "ann", &[])).to_owned();
        Self { key, caller: Caller::new(&server), daemon, server }
    }

    pub fn ask(&self, verb: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
        let headers = [&[("X-API-Key", self.key.as_str())], headers].concat();
        self.ask_as(&format!("sandkeep.v1.{verb}"), &headers, body)
    }

    pub fn ask_as(&self, subject: &str, headers: &[(&str, &str)], body: &Value) -> (u16, Value) {
        let payload = if body.is_null() { String::new() } else { body.to_string() };
        let answer = self.caller.request(subject, headers, payload.as_bytes());
        let status = header(&answer, "Sandkeep-Status").parse().expect("a status");
        (status, json_of(&answer))
    }

    pub fn create(&self) -> String {
        let (status, made) = self.ask("create", &[], &json!({}));
        assert_eq!(status, 201, "{made}");
        made["id"].as_str().expect("an id").to_owned()
    }
}

#[test]
fn a_command_is_the_request_of_the_same_name() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&[]);
    let once = [("Idempotency-Key", "7")];
    let (status, made) = house.ask("create", &once, &json!({ "labels": { "a": "b" } }));
    assert_eq!((status, &made["owner"]["user"]), (201, &json!("ann")), "{made}");
    let (_, again) = house.ask("create", &once, &json!({ "labels": { "a": "b" } }));
    assert_eq!(again["id"], made["id"]);
    let id = made["id"].as_str().expect("an id");
    let (status, ran) = house.ask("exec", &[], &json!({ "id": id, "command": "echo hi; exit 3" }));
    assert_eq!((status, &ran["stdout"], &ran["exit_code"]), (200, &json!("hi\n"), &json!(3)));

    let key = ("X-API-Key", house.key.as_str());
    let file = [key, ("Sandkeep-Id", id), ("Sandkeep-Path", "a.bin")];
    let written = house.caller.request("sandkeep.v1.write_file", &file, &[0, 255, 10]);
    assert_eq!(header(&written, "Sandkeep-Status"), "201");
    let read = house.caller.request("sandkeep.v1.read_file", &file, b"");
    assert_eq!(read.payload.as_ref(), [0, 255, 10]);

    let (status, listed) = house.ask("list", &[], &json!({ "label": "a=b" }));
    assert_eq!((status, &listed["items"][0]["id"]), (200, &made["id"]));
    let (status, refused) = house.ask("get", &[], &json!({ "id": "sbnone" }));
    assert_eq!((status, &refused["code"]), (404, &json!("not_found")));
    let (status, refused) = house.ask("nothing", &[], &Value::Null);
    assert_eq!((status, &refused["code"]), (404, &json!("no_route")));
    let (status, refused) = house.ask_as("sandkeep.v1.list", &[], &Value::Null);
    assert_eq!((status, &refused["code"]), (401, &json!("unauthenticated")));
    let (status, _) = house.ask("destroy", &[], &json!({ "id": id }));
    assert_eq!(status, 204);
    house.daemon.assert_no_leaks();
}

#[test]
fn a_stream_has_all_output_in_order_and_one_end() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&[]);
    let id = house.create();
    // More than a message can have.
    let body = json!({ "id": id, "command": "seq 1 400000", "stream": true, "backpressure": true });
    let inbox = house.caller.client.new_inbox();
    let mut replies = house.caller.subscribe(&inbox);
    let headers = headers_of(&[("X-API-Key", &house.key)]);
    let payload = body.to_string().into();
    let client = &house.caller.client;
    let sent = client.publish_with_reply_and_headers("sandkeep.v1.exec", inbox, headers, payload);
    house.caller.wait(sent).expect("it is sent");
    let (mut text, mut seq) = (Vec::new(), 0);
    let end = loop {
        let part = house.caller.wait(replies.next()).expect("there is more");
        assert_eq!(header(&part, "Sandkeep-Seq"), seq.to_string());
        assert_eq!(header(&part, "Sandkeep-Offset"), text.len().to_string());
        seq += 1;
        text.extend_from_slice(&part.payload);
        let end = header(&part, "Sandkeep-End");
        if !end.is_empty() {
            break end;
        }
    };
    assert_eq!(end, "complete");
    let events: Vec<Value> = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("JSON"))
        .collect();
    let said: String = events.iter().filter_map(|event| event["data"].as_str()).collect();
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(said == expected, "{} of {} bytes, {:?}", said.len(), expected.len(), events.first());
    assert_eq!(events.last().expect("an end")["exit_code"], 0);

    let (status, refused) = house.ask(
        "exec",
        &[],
        &json!({ "id": id, "command": "head -c 3000000 /dev/zero | tr '\\0' x" }),
    );
    assert_eq!((status, &refused["code"]), (413, &json!("answer_too_large")));
    let (status, late) = house.ask(
        "exec",
        &[("Sandkeep-Timeout-Ms", "300")],
        &json!({ "id": id, "command": "sleep 1000", "on_disconnect": "kill" }),
    );
    assert_eq!((status, &late["code"]), (504, &json!("took_too_long")));
    house.ask("destroy", &[], &json!({ "id": id }));
}

#[test]
fn an_answer_goes_to_inboxes_alone() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&[]);
    let mut elsewhere = house.caller.subscribe("other.subject");
    let headers = headers_of(&[("X-API-Key", &house.key)]);
    let client = &house.caller.client;
    for reply in ["other.subject", "sandkeep.v1.list"] {
        let sent = client.publish_with_reply_and_headers(
            "sandkeep.v1.create",
            reply,
            headers.clone(),
            "{}".into(),
        );
        house.caller.wait(sent).expect("it is sent");
    }
    let sent = client.publish_with_headers("sandkeep.v1.create", headers, "{}".into());
    house.caller.wait(sent).expect("it is sent");
    // Messages of one connection arrive in order, so those before have been seen.
    let (status, listed) = house.ask("list", &[], &Value::Null);
    assert_eq!((status, listed["items"].as_array().map(Vec::len)), (200, Some(0)), "{listed}");
    house.caller.wait(client.publish("other.subject", "last".into())).expect("it is sent");
    let first = house.caller.wait(elsewhere.next()).expect("a message");
    assert_eq!(first.payload.as_ref(), b"last");
}

#[test]
fn an_account_of_the_server_needs_no_key_and_tools_see_the_service() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&["--nats-accounts", "team=acme/bob/web"]);
    let (status, made) = house.ask_as("sandkeep.accounts.team.v1.create", &[], &json!({}));
    assert_eq!((status, &made["owner"]["user"]), (201, &json!("bob")), "{made}");
    assert_eq!(made["owner"]["project"], "web");
    let mine = [("X-API-Key", house.key.as_str())];
    let (status, other) =
        house.ask_as("sandkeep.accounts.team.v1.get", &mine, &json!({ "id": made["id"] }));
    assert_eq!(status, 404, "a key is who it says, wherever it is shown: {other}");
    let (status, refused) = house.ask_as("sandkeep.accounts.team.v1.list_keys", &[], &Value::Null);
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")));
    let info = json_of(&house.caller.request("$SRV.INFO.sandkeep", &[], b""));
    assert_eq!(info["type"], "io.nats.micro.v1.info_response");
    let endpoints = info["endpoints"].as_array().expect("endpoints");
    assert!(endpoints.iter().any(|one| one["subject"] == "sandkeep.v1.exec"), "{info}");
    let stats = json_of(&house.caller.request("$SRV.STATS", &[], b""));
    let create = stats["endpoints"]
        .as_array()
        .expect("endpoints")
        .iter()
        .find(|one| one["name"] == "create")
        .expect("it is there")
        .clone();
    assert_eq!((&create["num_requests"], &create["num_errors"]), (&json!(1), &json!(0)));
    house.ask_as("sandkeep.accounts.team.v1.destroy", &[], &json!({ "id": made["id"] }));
}
