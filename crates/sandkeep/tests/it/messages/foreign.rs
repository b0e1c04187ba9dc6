//! Accounts of a NATS server, with the configuration of the guide; and what the audit log and traces know of commands.

use futures_util::StreamExt;
use sandkeep_nats::async_nats::{ConnectOptions, RequestErrorKind};
use serde_json::{Value, json};

use super::server::{Caller, Server, header, json_of, missing, wait_for_answers};
use super::verbs::House;
use crate::keys::with_admin;
use crate::skip_if;
use crate::support::{binary, obstacle, top};

/// The server's configuration in the guide.
fn guide() -> String {
    let path = top().join("docs/guides/nats-commands.md");
    let text = std::fs::read_to_string(path).expect("the guide");
    let block = text.split("```conf\n").nth(1).expect("a configuration");
    block.split("```").next().expect("its end").to_owned()
}

fn login(server: &Server, user: &str, password: &str) -> Caller {
    Caller::with(server, ConnectOptions::with_user_and_password(user.into(), password.into()))
}

#[test]
fn the_accounts_of_the_guide_act_for_their_owner_and_for_nobody_else() {
    skip_if!(obstacle());
    skip_if!(missing());
    let place = tempfile::tempdir().expect("a temp dir");
    let config = place.path().join("nats.conf");
    let third = "\n  THIRD { users: [{ user: third, password: third-password }] }\n}";
    let text = guide().trim_end().strip_suffix('}').expect("a block").to_owned() + third;
    std::fs::write(&config, text).expect("a writable directory");
    let server = Server::configured(&config);
    let setup = server.setup(&["--nats-commands", "--nats-accounts", "team=acme/bot"]);
    let setup = setup.argument("--nats-user").argument("sandkeep");
    let setup = setup.argument("--nats-password").argument("sandkeep-password");
    let daemon = with_admin(&setup);
    wait_for_answers(&daemon);

    let team = login(&server, "team", "team-password");
    let ask = |verb: &str, body: &Value| {
        let answer = team.request(&format!("sandkeep.v1.{verb}"), &[], body.to_string().as_bytes());
        let status: u16 = header(&answer, "Sandkeep-Status").parse().expect("a status");
        (status, json_of(&answer))
    };
    let (status, made) = ask("create", &json!({}));
    assert_eq!(status, 201, "{made}");
    assert_eq!(
        (&made["owner"]["organization"], &made["owner"]["user"]),
        (&json!("acme"), &json!("bot"))
    );
    // A stream is several messages, which the export must let through.
    let inbox = team.client.new_inbox();
    let mut parts = team.subscribe(&inbox);
    let body = json!({ "id": made["id"], "command": "seq 1 300000", "stream": true });
    let sent = team.client.publish_with_reply("sandkeep.v1.exec", inbox, body.to_string().into());
    team.wait(sent).expect("it is sent");
    let mut count = 0;
    while header(&team.wait(parts.next()).expect("a part"), "Sandkeep-End").is_empty() {
        count += 1;
    }
    assert!(count > 1, "{count} parts");

    // Neither another account nor the team itself gets further.
    let third = login(&server, "third", "third-password");
    for (who, subject) in [
        (&third, "sandkeep.v1.list"),
        (&third, "sandkeep.accounts.team.v1.list"),
        (&team, "sandkeep.accounts.team.v1.list"),
        (&team, "sandkeep.accounts.other.v1.list"),
    ] {
        let refused = who.wait(who.client.request(subject, "{}".into()));
        let refused = refused.expect_err("nobody is there for it");
        assert_eq!(refused.kind(), RequestErrorKind::NoResponders, "{subject}");
    }
    let (status, _) = ask("destroy", &json!({ "id": made["id"] }));
    assert_eq!(status, 204);
}

#[test]
fn commands_are_in_the_audit_log_and_so_are_refused_ones() {
    skip_if!(obstacle());
    skip_if!(missing());
    let house = House::open(&["--nats-accounts", "team=acme/bob"]);
    let correlated = [("X-Correlation-Id", "c-77")];
    let (status, made) = house.ask("create", &correlated, &json!({}));
    assert_eq!(status, 201, "{made}");
    let id = made["id"].as_str().expect("an id");
    assert_eq!(house.ask_as("sandkeep.v1.create", &[("X-API-Key", "sk_wrong")], &json!({})).0, 401);
    assert_eq!(house.ask_as("sandkeep.accounts.team.v1.destroy", &[], &json!({ "id": id })).0, 404);
    assert_eq!(house.ask("destroy", &[], &json!({ "id": id })).0, 204);
    let ran = binary()
        .args(["audit", "export", "--data-dir"])
        .arg(house.daemon.data_dir())
        .output()
        .expect("it runs");
    let said = String::from_utf8(ran.stdout).expect("text");
    let records: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let find = |operation: &str, (field, value): (&str, Value)| {
        let found = records
            .iter()
            .find(|record| record["operation"] == operation && record[field] == value);
        found.unwrap_or_else(|| panic!("no {operation} {value}: {records:#?}")).clone()
    };
    let created = find("create_sandbox", ("status", json!(201)));
    assert_eq!(created["correlation_id"], "c-77");
    assert_eq!(
        (&created["actor"]["organization"], &created["actor"]["user"]),
        (&json!("acme"), &json!("ann"))
    );
    assert!(created["actor"]["key"].is_string() && created["sandbox"] == id, "{created}");
    assert_eq!(created["outcome"], "success");
    let unknown = find("create_sandbox", ("code", json!("unauthenticated")));
    assert_eq!((&unknown["outcome"], &unknown["actor"]), (&json!("refused"), &Value::Null));
    let foreign = find("destroy_sandbox", ("code", json!("not_found")));
    assert_eq!(
        (&foreign["outcome"], &foreign["actor"]["user"]),
        (&json!("refused"), &json!("bob"))
    );
    assert_eq!(find("destroy_sandbox", ("status", json!(204)))["actor"]["user"], "ann");
}

#[cfg(feature = "otlp")]
#[test]
fn a_command_and_its_event_are_part_of_their_callers_trace() {
    use crate::traces::{Receiver, missing as no_receiver};

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    skip_if!(obstacle());
    skip_if!(missing());
    skip_if!(no_receiver());
    let (server, receiver) = (Server::start(), Receiver::start());
    let setup = receiver.setup().argument("--nats-url").argument(&server.url);
    let setup =
        setup.argument("--nats-commands").argument("--nats-accounts").argument("team=acme/bob");
    let caller = Caller::new(&server);
    let mut events = caller.subscribe("sandkeep.events.acme.*.sandbox.created");
    let daemon = with_admin(&setup);
    wait_for_answers(&daemon);
    let traced = [("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")];
    let made = caller.request("sandkeep.accounts.team.v1.create", &traced, b"{}");
    assert_eq!(header(&made, "Sandkeep-Status"), "201");
    assert!(header(&made, "traceparent").contains(TRACE), "{:?}", made.headers);
    let event = caller.wait(events.next()).expect("an event");
    let place = header(&event, "traceparent");
    assert!(place.contains(TRACE), "{:?}", event.headers);
    assert_eq!(json_of(&event)["traceparent"], json!(place));
    let spans = receiver.trace(TRACE, "POST /api/v1/sandboxes");
    let span = place.split('-').nth(2).expect("a span");
    let inner = spans.iter().find(|one| one["span"] == span).expect("the step that recorded it");
    assert_eq!(inner["name"], "supervisor create");
    let id = json_of(&made)["id"].clone();
    let body = json!({ "id": id }).to_string();
    caller.request("sandkeep.accounts.team.v1.destroy", &[], body.as_bytes());
}
