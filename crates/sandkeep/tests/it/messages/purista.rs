//! PURISTA's Sandbox service: raw messages, and PURISTA's own library.

use std::path::PathBuf;
use std::process::Command;

use futures_util::StreamExt;
use sandkeep_nats::async_nats::{Client, ConnectOptions, Event, ServerError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::server::{Caller, Server, json_of, missing, wait_for_answers};
use crate::skip_if;
use crate::support::{Daemon, Patience, obstacle, processes_in_cgroup, top, until};

const ON: [&str; 3] = ["--purista-enabled", "--purista-trust", "nats-permissions"];

/// A command of somebody to the service, as PURISTA's bridge sends it.
fn command(target: &str, who: (&str, &str), payload: &Value) -> (String, Value) {
    let snake = target.chars().fold(String::new(), |mut name, c| {
        if c.is_ascii_uppercase() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
        name
    });
    let subject = format!("purista.command.ann.acme.i.caller.1.do.empty.empty.sandbox.1.{snake}");
    let message = json!({
        "id": "0123456789abcdef0123456789abcdef", "correlationId": "c1", "traceId": "t1",
        "timestamp": 1, "messageType": "command", "contentType": "application/json",
        "contentEncoding": "utf-8", "otp": "{}", "tenantId": who.0, "principalId": who.1,
        "sender": { "serviceName": "Caller", "serviceVersion": "1", "serviceTarget": "do",
            "instanceId": "i" },
        "receiver": { "serviceName": "Sandbox", "serviceVersion": "1", "serviceTarget": target },
        "payload": { "payload": payload, "parameter": {} },
    });
    (subject, message)
}

const ANN: (&str, &str) = ("acme", "ann");

/// The status of a reply, 200 if it is no error, and its payload.
fn ask(caller: &Caller, target: &str, who: (&str, &str), payload: Value) -> (u64, Value) {
    let (subject, message) = command(target, who, &payload);
    let reply = json_of(&caller.request(&subject, &[], message.to_string().as_bytes()));
    assert_eq!((&reply["correlationId"], &reply["traceId"]), (&json!("c1"), &json!("t1")));
    match reply["messageType"].as_str() {
        Some("commandSuccessResponse") => (200, reply["payload"].clone()),
        _ => {
            let status = reply["payload"]["status"].as_u64().expect("a status");
            assert_eq!(reply["isHandledError"], json!(status != 500), "{reply}");
            (status, reply["payload"].clone())
        }
    }
}

fn fine(caller: &Caller, target: &str, payload: Value) -> Value {
    let (status, answer) = ask(caller, target, ANN, payload);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn made(caller: &Caller) -> String {
    let made = fine(caller, "createSandbox", json!({ "projectId": "web" }));
    made["sandboxId"].as_str().expect("an id").to_owned()
}

/// The only sandbox's own id.
fn only(daemon: &Daemon) -> String {
    let ids = daemon.ids();
    assert_eq!(ids.len(), 1, "{ids:?}");
    ids[0].clone()
}

#[test]
fn all_six_commands_work_and_others_are_told() {
    skip_if!(obstacle());
    skip_if!(missing());
    let server = Server::start();
    let caller = Caller::new(&server);
    let mut info = caller.subscribe("purista.info_service_function_added.>");
    let mut events = caller.subscribe("purista.custom_message.>");
    let daemon = server.daemon(&ON);
    for _ in 0..6 {
        let message = json_of(&caller.wait(info.next()).expect("one for each command"));
        assert_eq!(message["messageType"], "infoServiceFunctionAdded");
        assert!(message["payload"]["expose"]["inputPayload"].is_object(), "{message}");
    }
    let id = made(&caller);
    let started = json_of(&caller.wait(events.next()).expect("it is told"));
    assert_eq!(started["eventName"], "SandboxStarted");
    let payload = json!({ "sandboxId": id, "organizationId": "acme", "projectId": "web",
        "userId": "ann" });
    assert_eq!((&started["payload"], &started["tenantId"]), (&payload, &json!("acme")));
    let files = json!({ "a/b.txt": "old", "c": { "encoding": "base64", "content": "aGk=" } });
    let of = |more: Value| {
        let mut all = json!({ "sandboxId": id, "projectId": "web" });
        all.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        all
    };
    let written = fine(&caller, "writeFiles", of(json!({ "files": files })));
    assert_eq!(written, json!({ "updated": 2 }));
    assert_eq!(fine(&caller, "readFile", of(json!({ "path": "c" }))), json!("hi"));
    assert_eq!(
        fine(&caller, "readFile", of(json!({ "path": "/workspace/a/b.txt" }))),
        json!("old")
    );
    let ran = fine(
        &caller,
        "executeBash",
        of(json!({ "command": "pwd; [[ -f c ]] && echo oops >&2; exit 3" })),
    );
    assert_eq!(ran, json!({ "stdout": "/workspace\n", "stderr": "oops\n", "exitCode": 3 }));
    let ensured = fine(&caller, "ensureSandbox", json!({ "projectId": "web" }));
    assert_eq!(ensured, json!({ "sandboxId": id, "status": "ready", "created": false }));
    let gone = fine(&caller, "destroySandbox", of(json!({})));
    assert_eq!(gone, json!({ "sandboxId": id, "destroyed": true }));
    let mut told = Vec::new();
    while told.last().is_none_or(|name| name != "SandboxDestroyed") {
        let event = json_of(&caller.wait(events.next()).expect("it is told"));
        assert_eq!(event["payload"]["sandboxId"], json!(id), "{event}");
        told.push(event["eventName"].as_str().expect("a name").to_owned());
    }
    assert!(told.iter().any(|name| name == "FileChanged"), "of writeFiles: {told:?}");
    let again = fine(&caller, "ensureSandbox", json!({ "projectId": "web" }));
    assert_eq!((&again["status"], &again["created"]), (&json!("starting"), &json!(true)));
    daemon.destroy(&only(&daemon));
    daemon.assert_no_leaks();
}

#[test]
fn errors_come_in_puristas_order() {
    skip_if!(obstacle());
    skip_if!(missing());
    let server = Server::start();
    let (caller, daemon) = (Caller::new(&server), server.daemon(&ON));
    let id = made(&caller);
    let nobody = ("", "");
    let bash = |id: &str| json!({ "sandboxId": id, "projectId": "web", "command": "true" });
    let unknown = "00000000-0000-4000-8000-000000000000";
    for (target, who, payload, expected) in [
        ("createSandbox", nobody, json!({}), 400),
        ("createSandbox", nobody, json!({ "projectId": "web" }), 401),
        ("createSandbox", ("acme", " "), json!({ "projectId": "web" }), 401),
        ("createSandbox", ANN, json!({ "projectId": "web", "organizationId": "evil" }), 403),
        ("createSandbox", ANN, json!({ "projectId": "web" }), 409),
        ("executeBash", nobody, json!({ "sandboxId": unknown }), 400),
        ("executeBash", nobody, bash(unknown), 404),
        ("executeBash", nobody, bash("nonsense"), 404),
        ("executeBash", nobody, bash(&id), 401),
        ("executeBash", ("evil", "ann"), bash(&id), 403),
        ("executeBash", ("acme", "eve"), bash(&id), 403),
        ("destroySandbox", ANN, json!({ "sandboxId": id, "projectId": "other" }), 403),
        ("readFile", ("evil", "eve"), json!({ "sandboxId": id, "path": "x" }), 403),
        ("writeFiles", ("evil", "eve"), json!({ "sandboxId": id, "files": {} }), 403),
        ("readFile", ANN, json!({ "sandboxId": id, "path": "missing" }), 500),
    ] {
        let (status, answer) = ask(&caller, target, who, payload);
        assert_eq!(status, expected, "{target} {who:?}: {answer}");
        match status {
            400 => assert!(answer["data"][0]["path"].is_array(), "{answer}"),
            409 => assert_eq!(answer["data"]["sandboxId"], json!(id)),
            500 => assert_eq!(answer["message"], "Internal Server Error"),
            _ => {}
        }
    }
    // Another scope is another sandbox; ids are not bound to it.
    let scoped = json!({ "projectId": "web", "scope": { "kind": "agent-run", "key": "7" } });
    assert_ne!(fine(&caller, "createSandbox", scoped)["sandboxId"], json!(id));
    let huge = json!({ "sandboxId": id, "command": "head -c 2000000 /dev/zero | tr '\\0' x" });
    let (status, answer) = ask(&caller, "executeBash", ANN, huge);
    assert_eq!(status, 413, "{}", answer["message"]);
    // Sandboxes made elsewhere are none of the service's.
    let own = daemon.create();
    daemon.destroy(&own);
    daemon.ids().iter().for_each(|id| daemon.destroy(id));
}

#[test]
fn a_504_has_ended_the_whole_tree() {
    skip_if!(obstacle());
    skip_if!(missing());
    let server = Server::start();
    let (caller, daemon) = (Caller::new(&server), server.daemon(&ON));
    let uuid = made(&caller);
    let command = "echo on >&2; setsid sleep 100000 & sleep 100000";
    let asked = json!({ "sandboxId": uuid, "command": command, "timeoutMs": 700 });
    let (status, answer) = ask(&caller, "executeBash", ANN, asked);
    assert_eq!(status, 504, "{answer}");
    let data = json!({ "sandboxId": uuid, "command": command, "cwd": "/workspace",
        "timeoutMs": 700, "stderr": "on\n" });
    assert_eq!(answer["data"], data);
    let id = only(&daemon);
    until("the whole tree is killed", Patience::Long, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() == 1
    });
    daemon.destroy(&id);
}

#[test]
fn forty_commands_to_two_daemons_are_forty_executions() {
    skip_if!(obstacle());
    skip_if!(missing());
    let server = Server::start();
    let caller = Caller::new(&server);
    let daemons = [server.daemon(&ON), server.daemon(&ON)];
    let (subject, _) = command("createSandbox", ANN, &Value::Null);
    let scoped = |number: usize| {
        let key = number.to_string();
        let scope = json!({ "kind": "conversation", "key": key });
        command("createSandbox", ANN, &json!({ "projectId": "web", "scope": scope })).1
    };
    let replies = caller.all(&subject, &(0..40).map(scoped).collect::<Vec<_>>());
    let mut made: Vec<&str> =
        replies.iter().filter_map(|reply| reply["payload"]["sandboxId"].as_str()).collect();
    made.sort_unstable();
    made.dedup();
    assert_eq!(made.len(), 40, "{:?}", replies.first());
    let counts = daemons.each_ref().map(|daemon| daemon.ids().len());
    assert_eq!(counts.iter().sum::<usize>(), 40, "{counts:?}");
    for daemon in &daemons {
        daemon.ids().iter().for_each(|id| daemon.destroy(id));
        daemon.assert_no_leaks();
    }
}

#[test]
fn after_kill_9_and_loss_of_the_registry_the_owner_and_the_scope_are_known() {
    skip_if!(obstacle());
    skip_if!(missing());
    let server = Server::start();
    let (caller, mut daemon) = (Caller::new(&server), server.daemon(&ON));
    let scope = json!({ "projectId": "web", "scope": { "kind": "agent-run", "key": "7:a" } });
    let uuid = fine(&caller, "createSandbox", scope.clone())["sandboxId"].clone();
    let slow = json!({ "sandboxId": uuid, "command": "sleep 100000", "timeoutMs": 600_000 });
    let (subject, message) = command("executeBash", ANN, &slow);
    let inbox = caller.client.new_inbox();
    let sent = caller.client.publish_with_reply(subject, inbox, message.to_string().into());
    caller.wait(sent).expect("it is sent");
    let id = only(&daemon);
    until("the command runs", Patience::Long, || {
        processes_in_cgroup(&format!("{}/{id}", daemon.instance())).len() > 1
    });
    daemon.kill_9();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(daemon.data_dir().join(format!("registry.sqlite3{suffix}")));
    }
    daemon.start_again(&server.setup(&ON));
    wait_for_answers(&daemon);
    let ensured = fine(&caller, "ensureSandbox", scope.clone());
    assert_eq!((&ensured["sandboxId"], &ensured["created"]), (&uuid, &json!(false)));
    let (status, answer) = ask(&caller, "createSandbox", ANN, scope);
    assert_eq!((status, &answer["data"]["sandboxId"]), (409, &uuid));
    let (status, _) = ask(
        &caller,
        "executeBash",
        ("evil", "ann"),
        json!({ "sandboxId": uuid, "command": "true" }),
    );
    assert_eq!(status, 403);
    let ran = fine(&caller, "executeBash", json!({ "sandboxId": uuid, "command": "echo here" }));
    assert_eq!(ran["stdout"], "here\n");
    daemon.destroy(&id);
}

#[test]
fn what_happens_without_a_connection_is_told_later_also_by_the_next_daemon() {
    skip_if!(obstacle());
    skip_if!(missing());
    let mut server = Server::start();
    let caller = Caller::new(&server);
    let mut daemon = server.daemon(&ON);
    made(&caller);
    let id = only(&daemon);
    drop(caller);
    server.kill();
    daemon.destroy(&id);
    daemon.kill_9();
    server.start_again();
    let caller = Caller::new(&server);
    let mut events = caller.subscribe("purista.custom_message.>");
    daemon.start_again(&server.setup(&ON));
    let told = json_of(&caller.wait(events.next()).expect("it is told"));
    assert_eq!(
        (&told["eventName"], &told["tenantId"]),
        (&json!("SandboxDestroyed"), &json!("acme"))
    );
    assert_eq!(told["payload"]["userId"], "ann");
    assert_eq!(told["id"].as_str().map(str::len), Some(32));
    // It was told, so the next daemon does not tell it again.
    let position = daemon.data_dir().join("events/positions/purista");
    until("that is written down", Patience::Long, || {
        let last = crate::events::all(&daemon).last().map_or(0, |event| event.seq.get());
        std::fs::read_to_string(&position).is_ok_and(|text| text.trim() == last.to_string())
    });
    daemon.stop();
    daemon.start_again(&server.setup(&ON));
    wait_for_answers(&daemon);
    made(&caller);
    let next = json_of(&caller.wait(events.next()).expect("it is told"));
    assert_eq!(next["eventName"], "SandboxStarted", "{next}");
    daemon.destroy(&only(&daemon));
}

#[test]
fn purista_is_refused_without_trust() {
    let ran = crate::support::binary()
        .args(["config", "--nats-url", "nats://127.0.0.1:1", "--purista-enabled"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{said}");
    assert!(said.contains("purista.trust"), "{said}");
}

/// The server's configuration in the guide.
fn guide() -> String {
    let text = std::fs::read_to_string(top().join("docs/guides/purista.md")).expect("the guide");
    let block = text.split("```conf\n").nth(1).expect("a configuration");
    block.split("```").next().expect("its end").to_owned()
}

/// Somebody with a password of the guide, and what the server says of them.
fn login(server: &Server, user: &str) -> (Caller, mpsc::UnboundedReceiver<String>) {
    let (tell, told) = mpsc::unbounded_channel();
    let options =
        ConnectOptions::with_user_and_password(user.to_owned(), format!("{user}-password"))
            .event_callback(move |event| {
                if let Event::ServerError(ServerError::Other(problem)) = event {
                    let _ = tell.send(problem);
                }
                async {}
            });
    (Caller::with(server, options), told)
}

#[test]
fn the_permissions_of_the_guide_keep_others_from_naming_tenants() {
    skip_if!(obstacle());
    skip_if!(missing());
    let place = tempfile::tempdir().expect("a temp dir");
    let config = place.path().join("nats.conf");
    std::fs::write(&config, guide()).expect("a writable directory");
    let server = Server::configured(&config);
    let setup = server.setup(&ON);
    let setup = setup.argument("--nats-user").argument("sandkeep");
    let setup = setup.argument("--nats-password").argument("sandkeep-password");
    let daemon = Daemon::start_with(&setup);
    wait_for_answers(&daemon);
    let (trusted, _) = login(&server, "purista");
    let uuid = made(&trusted);
    let (other, mut told) = login(&server, "other");
    let (subject, message) = command("destroySandbox", ANN, &json!({ "sandboxId": uuid }));
    let client: &Client = &other.client;
    other.wait(client.publish(subject, message.to_string().into())).expect("it is sent");
    let said = other.wait(told.recv()).expect("the server refuses it");
    assert!(said.to_lowercase().contains("permissions violation"), "{said}");
    let read = json!({ "sandboxId": uuid, "path": "/etc/hostname" });
    assert!(fine(&trusted, "readFile", read).is_string());
    daemon.destroy(&only(&daemon));
}

/// Where `./test` installs PURISTA's library.
fn home() -> PathBuf {
    top().join("target/purista")
}

fn no_library() -> Option<&'static str> {
    let there = home().join("installed.json").exists();
    (!there).then_some("PURISTA's library is not installed; ./test does it from npm")
}

#[test]
fn puristas_own_library_is_served_unchanged() {
    skip_if!(obstacle());
    skip_if!(missing());
    skip_if!(no_library());
    let server = Server::start();
    let daemon = server.daemon(&ON);
    let script = home().join("caller.mjs");
    std::fs::copy(top().join("tests/purista/caller.mjs"), &script).expect("it is there");
    let ran = Command::new("node").arg(&script).env("NATS_URL", &server.url).output();
    let ran = ran.expect("it runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("all is well"), "{said}\n{errors}");
    daemon.ids().iter().for_each(|id| daemon.destroy(id));
}
