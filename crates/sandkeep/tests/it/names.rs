//! Names of sandboxes on a real daemon: usable wherever an id is, changed, and kept over a crash.

use std::path::Path;

use serde_json::{Value, json};

use crate::daemon;
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Ran, Setup, binary, obstacle};

const SANDBOXES: &str = "/api/v1/sandboxes";

/// `sandkeep <arguments>` of this daemon, which must succeed; what it printed.
fn call(daemon: &Daemon, arguments: &[&str]) -> String {
    let ran = try_call(daemon, arguments);
    assert_eq!(ran.code, 0, "{arguments:?}: {ran:?}");
    ran.stdout.trim().to_owned()
}

fn try_call(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

#[test]
fn a_name_is_usable_on_the_command_line_wherever_an_id_is() {
    let daemon = daemon!();
    let id = call(&daemon, &["create", "--name", "web"]);
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(file("note"), "kept").expect("a file");
    assert_eq!(call(&daemon, &["cp", &file("note"), "web:note"]), "");
    assert_eq!(call(&daemon, &["exec", "web", "--", "cat", "note"]), "kept");
    call(&daemon, &["cp", "web:note", &file("back")]);
    assert_eq!(std::fs::read_to_string(Path::new(&file("back"))).expect("a file"), "kept");
    assert!(call(&daemon, &["show", "web"]).contains(&id));
    assert!(call(&daemon, &["ls"]).lines().any(|l| l.contains("web") && l.contains(&id)));
    call(&daemon, &["tool", "web", "read_file", "path=note"]);
    for verb in ["stats", "ps", "log", "diff", "stop", "start"] {
        call(&daemon, &[verb, "web"]);
    }
    assert_eq!(call(&daemon, &["set", "web", "name=api", "label.team=blue"]), id);
    assert_ne!(try_call(&daemon, &["show", "web"]).code, 0, "nobody has the name any more");
    assert_eq!(daemon.get("api")["labels"], json!({ "team": "blue" }));
    // Without a name of its own it has a readable one, which leads to it as well.
    call(&daemon, &["set", "api", "name="]);
    let derived = daemon.get(&id)["name"].as_str().expect("a name").to_owned();
    assert!(derived.ends_with(&id[2..6]), "{derived}");
    assert_eq!(call(&daemon, &["rm", &derived]), id);
    daemon.assert_no_leaks();
}

#[test]
fn a_name_is_usable_in_every_path_and_in_every_body() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "name": "web" }));
    let other = daemon.create();
    let run = json!({ "command": "echo hello > note; echo out" });
    let ran = daemon.expect(200, "POST", &format!("{SANDBOXES}/web/execs"), &run);
    let exec = ran["exec_id"].as_str().expect("an exec");
    daemon.expect(200, "GET", &format!("{SANDBOXES}/web/execs/{exec}"), &Value::Null);
    for path in ["files/stat?path=note", "files/list?path=.", "stats", "ports", "snapshots", "log"]
    {
        let (status, answer) =
            daemon.request("GET", &format!("{SANDBOXES}/web/{path}"), &Value::Null);
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let problem = daemon.expect(404, "GET", &format!("{SANDBOXES}/nobody"), &Value::Null);
    assert_eq!(problem["code"], "not_found");
    for wrong in ["", "..", "a..b", "-a", "a/b", &id, &"a".repeat(129)] {
        let problem = daemon.expect(400, "POST", SANDBOXES, &json!({ "name": wrong }));
        assert!(problem["detail"].as_str().expect("a detail").starts_with("name"), "{problem}");
    }
    let problem = daemon.expect(409, "POST", SANDBOXES, &json!({ "name": "web" }));
    assert_eq!(problem["code"], "name_taken");
    assert!(problem["detail"].as_str().expect("a detail").contains(&id), "{problem}");
    let target = format!("{SANDBOXES}/{other}");
    let problem = daemon.expect(409, "PATCH", &target, &json!({ "name": "web" }));
    assert_eq!(problem["code"], "name_taken");
    let forks = daemon.expect(201, "POST", &format!("{SANDBOXES}/web/fork"), &json!({}));
    assert_ne!(forks["sandboxes"][0]["name"], "web", "a fork has a name of its own");
}

#[test]
fn names_outlive_a_kill_and_the_loss_of_the_registry() {
    let mut daemon = daemon!();
    let id = daemon.create_with(&json!({ "name": "web" }));
    daemon.expect(200, "PATCH", &format!("{SANDBOXES}/web"), &json!({ "name": "api" }));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.get("api")["id"], id.as_str());
    daemon.kill_9();
    for entry in std::fs::read_dir(daemon.data_dir()).expect("it is there").flatten() {
        if entry.file_name().to_string_lossy().starts_with("registry.") {
            std::fs::remove_file(entry.path()).expect("it goes");
        }
    }
    daemon.start_again(&Setup::default());
    assert_eq!(daemon.get("api")["id"], id.as_str());
    daemon.expect(409, "POST", SANDBOXES, &json!({ "name": "api" }));
    daemon.create_with(&json!({ "name": "web" }));
}

#[test]
fn a_name_says_nothing_of_the_sandboxes_of_others() {
    skip_if!(obstacle());
    let mut daemon = with_admin(&Setup::default());
    let mut ids = Vec::new();
    for user in ["ann", "bob"] {
        let key =
            create_key(&daemon.data_dir(), "acme", user, &["--scope", "write", "--scope", "read"]);
        daemon.use_key(key_of(&key));
        assert_eq!(daemon.request("GET", &format!("{SANDBOXES}/web"), &Value::Null).0, 404);
        let id = daemon.create_with(&json!({ "name": "web" }));
        assert_eq!(daemon.get("web")["id"], id.as_str(), "each has its own");
        ids.push(id);
    }
    let admin = create_key(&daemon.data_dir(), "ops", "root", &["--scope", "admin"]);
    daemon.use_key(key_of(&admin));
    let problem = daemon.expect(409, "GET", &format!("{SANDBOXES}/web"), &Value::Null);
    assert_eq!(problem["code"], "name_ambiguous");
    let detail = problem["detail"].as_str().expect("a detail");
    assert!(ids.iter().all(|id| detail.contains(id)), "{detail}");
}
