//! Tools for agents, through the real daemon: answers, refusals, and that a call with an id is executed once.

mod bare;
mod git;
mod large;
mod snapshots;

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Ran, binary, processes_in_cgroup, until};

fn target(id: &str, name: &str) -> String {
    format!("/api/v1/sandboxes/{id}/tools/{name}")
}

/// The answer of a tool, whatever it says.
fn call(daemon: &Daemon, id: &str, name: &str, arguments: &Value) -> Value {
    daemon.expect(200, "POST", &target(id, name), arguments)
}

fn text(answer: &Value) -> String {
    let blocks = answer["content"].as_array().expect("content");
    blocks.iter().map(|block| block["text"].as_str().expect("text")).collect::<Vec<_>>().join("\n")
}

/// The text of an answer that is no error.
fn done(daemon: &Daemon, id: &str, name: &str, arguments: &Value) -> String {
    let answer = call(daemon, id, name, arguments);
    assert_eq!(answer["is_error"], false, "{answer:#}");
    text(&answer)
}

/// The text of a refusal of this kind, which says what it must.
fn refused(daemon: &Daemon, id: &str, name: &str, arguments: &Value, code: &str) -> String {
    let answer = call(daemon, id, name, arguments);
    assert_eq!(
        (&answer["is_error"], &answer["refusal"]),
        (&json!(true), &json!(code)),
        "{answer:#}"
    );
    let said = text(&answer);
    assert!(said.contains("rule: ") && said.contains("instead: "), "{said}");
    said
}

#[test]
fn files_are_written_read_edited_listed_and_searched() {
    let daemon = daemon!();
    let id = daemon.create();
    let file = "src/main.rs";
    let content = "fn main() {\r\n    println!(\"hello\");\r\n}\r\n";
    done(&daemon, &id, "write_file", &json!({ "path": file, "content": content }));
    let read = call(&daemon, &id, "read_file", &json!({ "path": "/home/user/src/main.rs" }));
    assert_eq!(text(&read), "     1\tfn main() {\n     2\t    println!(\"hello\");\n     3\t}\n");
    assert_eq!((&read["tier"], read["duration_ms"].is_u64()), (&json!(1), true), "{read}");
    assert!(read.get("exit_code").is_none() && read.get("exec_id").is_none(), "{read}");

    daemon.sh(&id, "chmod 750 src/main.rs").ok();
    let edit = json!({ "path": file, "old_string": "hello\");\n}", "new_string": "bye\");\n}" });
    done(&daemon, &id, "edit_file", &edit);
    let after = daemon.sh(&id, "stat -c %a src/main.rs; cat src/main.rs");
    assert_eq!(after.stdout_text(), "750\nfn main() {\r\n    println!(\"bye\");\r\n}\r\n");
    let near = json!({ "path": file, "old_string": "    print!(\"bye\");", "new_string": "" });
    let said = refused(&daemon, &id, "edit_file", &near, "no_match");
    assert!(said.contains("line 2") && said.contains("+    println!(\"bye\");"), "{said}");

    assert_eq!(done(&daemon, &id, "ls", &json!({ "path": "src" })), "main.rs (38 bytes)\n");
    assert_eq!(done(&daemon, &id, "glob", &json!({ "pattern": "**/*.rs" })), "src/main.rs\n");
    let found = done(&daemon, &id, "grep", &json!({ "pattern": "b[a-z]e", "glob": "*.rs" }));
    assert_eq!(found, "src/main.rs:2:    println!(\"bye\");\n");
    assert_eq!(daemon.sh(&id, "ls -A src").ok(), "main.rs", "nothing is left beside the file");
}

#[test]
fn what_the_sandbox_forbids_is_refused_with_its_rule() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "resources": { "disk_mb": 16 } }));
    daemon.sh(&id, "head -c 100 /dev/zero > bin; mkfifo pipe; echo a > one; echo a a > two").ok();
    let path = |path: &str| json!({ "path": path });
    refused(&daemon, &id, "read_file", &path("nowhere"), "not_found");
    refused(&daemon, &id, "read_file", &path("bin"), "binary");
    refused(&daemon, &id, "read_file", &path("pipe"), "not_regular");
    refused(&daemon, &id, "ls", &path("one"), "not_directory");
    let write = |path: &str| json!({ "path": path, "content": "x" });
    refused(&daemon, &id, "write_file", &write("/usr/x"), "read_only");
    refused(&daemon, &id, "write_file", &write("/root/x"), "not_permitted");
    let twice = json!({ "path": "two", "old_string": "a", "new_string": "b" });
    refused(&daemon, &id, "edit_file", &twice, "not_unique");
    refused(&daemon, &id, "grep", &json!({ "pattern": "(" }), "bad_pattern");

    daemon.sh(&id, "head -c 50M /dev/zero > fill; true").ok();
    let large = json!({ "path": "one", "content": "x".repeat(2_000_000) });
    refused(&daemon, &id, "write_file", &large, "quota_reached");
    assert_eq!(daemon.sh(&id, "cat one; ls -A").ok(), "a\nbin\nfill\none\npipe\ntwo", "as it was");
}

#[test]
fn bash_answers_what_a_command_says_and_how_it_ends() {
    let daemon = daemon!();
    let id = daemon.create();
    let answer = call(
        &daemon,
        &id,
        "bash",
        &json!({ "command": "echo ${BASH_VERSION:+bash}; pwd; echo no >&2; exit 3", "cwd": "/usr" }),
    );
    assert_eq!((&answer["exit_code"], &answer["tier"]), (&json!(3), &json!(2)), "{answer:#}");
    assert_eq!(answer["is_error"], true);
    assert_eq!(text(&answer), "bash\n/usr\n\nstderr:\nno\n\nexit code 3");
    let exec = answer["exec_id"].as_str().expect("an exec like any other");
    assert_eq!(daemon.exec_view(&id, exec)["exit_code"], 3);

    let flood = done(&daemon, &id, "bash", &json!({ "command": "seq 1 100000" }));
    assert!(flood.starts_with("1\n2\n") && flood.ends_with("99999\n100000\n"), "{}", flood.len());
    assert!(flood.contains("bytes left out here") && flood.len() < 40_000, "{}", flood.len());
    assert_eq!(done(&daemon, &id, "bash", &json!({ "command": "true" })), "(no output)");
    let nowhere = json!({ "command": "true", "cwd": "/nowhere" });
    let said = refused(&daemon, &id, "bash", &nowhere, "cannot_start");
    assert!(said.contains("/nowhere"), "{said}");
}

#[test]
fn a_tool_that_takes_too_long_is_killed_with_all_it_has_started() {
    let daemon = daemon!();
    let id = daemon.create();
    let slow = json!({ "command": "echo begun; sleep 1000 & sleep 1000", "timeout_ms": 300 });
    let said = refused(&daemon, &id, "bash", &slow, "timed_out");
    assert!(said.contains("begun") && said.contains("300 ms"), "{said}");
    let by_resources = json!({ "command": "sleep 1000", "resources": { "timeout_ms": 200 } });
    refused(&daemon, &id, "bash", &by_resources, "timed_out");
    let group = format!("{}/{id}", daemon.instance());
    until("nothing is left but the guest", Patience::Long, || {
        processes_in_cgroup(&group).len() == 1
    });
}

#[test]
fn who_leaves_a_call_ends_it() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = json!({ "command": "echo here; sleep 1000 & sleep 1000" }).to_string();
    let group = format!("{}/{id}", daemon.instance());
    {
        let connection = daemon.connection().expect("a connection");
        let live = format!("{}?stream=true", target(&id, "bash"));
        let (status, mut lines) = connection.stream("POST", &live, &body).expect("an answer");
        assert_eq!(status, 200);
        let first = lines.next().expect("a line").expect("text");
        assert!(first.contains("\"started\"") && first.contains("exec_id"), "{first}");
        until("it runs", Patience::Long, || processes_in_cgroup(&group).len() > 2);
    }
    until("it is gone", Patience::Long, || processes_in_cgroup(&group).len() == 1);
}

#[test]
fn a_live_call_tells_what_it_says_and_its_answer_last() {
    let daemon = daemon!();
    let id = daemon.create();
    let events = |name: &str, body: Value| -> Vec<Value> {
        let connection = daemon.connection().expect("a connection");
        let live = format!("{}?stream=true", target(&id, name));
        let (status, lines) =
            connection.stream("POST", &live, &body.to_string()).expect("an answer");
        assert_eq!(status, 200);
        lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect()
    };
    let told = events("bash", json!({ "command": "echo out; echo err >&2" }));
    let types: Vec<&str> = told.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!((types[0], types[types.len() - 1]), ("started", "result"), "{types:?}");
    assert!(types.contains(&"stdout") && types.contains(&"stderr"), "{types:?}");
    assert_eq!(told[told.len() - 1]["exit_code"], 0);
    let told = events("ls", json!({ "path": "/nowhere" }));
    assert_eq!((&told[0]["type"], &told[0]["refusal"]), (&json!("result"), &json!("not_found")));
    let (status, _) =
        daemon.request("POST", &format!("{}?stream=true", target(&id, "ls")), &json!({}));
    assert_eq!(status, 400, "what is refused before anything was said is no stream");
}

#[test]
fn a_repeated_call_is_made_once_and_errors_are_not_kept() {
    let daemon = daemon!();
    let id = daemon.create();
    let count = json!({ "command": "echo x >> runs; wc -l < runs", "tool_call_id": "c-1" });
    let first = call(&daemon, &id, "bash", &count);
    assert_eq!(call(&daemon, &id, "bash", &count), first);
    assert_eq!(daemon.sh(&id, "wc -l < runs").ok(), "1");
    let (status, problem) = daemon.request(
        "POST",
        &target(&id, "bash"),
        &json!({ "command": "true", "tool_call_id": "c-1" }),
    );
    assert_eq!((status, &problem["code"]), (422, &json!("tool_call_mismatch")), "{problem}");

    let read = json!({ "path": "later", "tool_call_id": "c-2" });
    refused(&daemon, &id, "read_file", &read, "not_found");
    daemon.sh(&id, "echo now > later").ok();
    assert_eq!(done(&daemon, &id, "read_file", &read), "     1\tnow\n");
    let other = daemon.create();
    refused(&daemon, &other, "read_file", &read, "not_found");

    let slow =
        json!({ "command": "echo y >> slow; until test -e go; do :; done", "tool_call_id": "c-3" });
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let callers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| call(&daemon, &id, "bash", &slow))).collect();
        until("it has begun", Patience::Long, || daemon.sh(&id, "cat slow").exit_code == Some(0));
        daemon.sh(&id, "touch go").ok();
        callers.into_iter().map(|caller| caller.join().expect("an answer")).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    assert_eq!(daemon.sh(&id, "cat slow").ok(), "y", "one flight for all");
}

#[test]
fn a_call_with_an_id_outlives_its_connection() {
    let daemon = daemon!();
    let id = daemon.create();
    let body = json!({ "command": "until test -e go; do :; done; echo done", "tool_call_id": "k" });
    {
        let connection = daemon.connection().expect("a connection");
        let live = format!("{}?stream=true", target(&id, "bash"));
        let (_, mut lines) =
            connection.stream("POST", &live, &body.to_string()).expect("an answer");
        assert!(lines.next().expect("a line").expect("text").contains("started"));
    }
    daemon.sh(&id, "touch go").ok();
    assert_eq!(done(&daemon, &id, "bash", &body), "done\n");
    let execs = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/execs"), &Value::Null);
    let loops = execs["items"].as_array().expect("execs").iter();
    assert_eq!(loops.filter(|exec| exec["argv"][0] == "bash").count(), 1, "it was made once");
}

#[test]
fn wrong_arguments_are_refused_by_name_before_anything_is_done() {
    let daemon = daemon!();
    let id = daemon.create();
    let problem = |name: &str, body: Value, status: u16, code: &str| -> String {
        let problem = daemon.expect(status, "POST", &target(&id, name), &body);
        assert_eq!(problem["code"], code, "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    };
    let misspelt = problem("read_file", json!({ "file": "x" }), 400, "invalid_argument");
    assert!(misspelt.contains("file: there is no such parameter"), "{misspelt}");
    assert!(misspelt.contains("path, offset?, limit?"), "{misspelt}");
    let missing = problem("write_file", json!({ "path": "x" }), 400, "invalid_argument");
    assert!(missing.contains("content: it is missing"), "{missing}");
    let wrong = json!({ "path": "x", "limit": "ten" });
    assert!(problem("read_file", wrong, 400, "invalid_argument").contains("limit"));
    let option = json!({ "url": "--upload-pack=x" });
    assert!(problem("git_clone", option, 400, "invalid_argument").contains("url"));
    problem("no_such_tool", json!({}), 404, "tool_not_found");
    let bad_id = json!({ "path": "x", "tool_call_id": "a b" });
    problem("read_file", bad_id, 400, "invalid_field");
    daemon.verb(&id, "stop");
    problem("bash", json!({ "command": "true" }), 409, "wrong_state");
}

#[test]
fn every_tool_is_listed_with_its_schema_and_can_be_called_from_the_command_line() {
    let daemon = daemon!();
    let id = daemon.create();
    let listed = daemon.expect(200, "GET", &format!("/api/v1/sandboxes/{id}/tools"), &Value::Null);
    let tools = listed["tools"].as_array().expect("tools");
    assert_eq!(tools.len(), 17);
    for tool in tools {
        assert_eq!(tool["input_schema"]["type"], "object", "{tool}");
        assert_eq!(tool["input_schema"]["additionalProperties"], false, "{tool}");
        assert!(tool["annotations"]["read_only"].is_boolean(), "{tool}");
    }
    let cli = |arguments: &[&str]| {
        let mut command = binary();
        command.args(arguments).env("SANDKEEP_URL", daemon.url());
        Ran::from(command.output().expect("the binary runs"))
    };
    let shown = cli(&["tools"]);
    assert!(
        shown.stdout.contains("read_file") && shown.stdout.contains("path, offset?"),
        "{shown:?}"
    );
    cli(&["tool", &id, "write_file", "path=a", "content=one\ntwo\n"]);
    let read = cli(&["tool", &id, "read_file", "path=a", "limit=1"]);
    assert!(read.stdout.starts_with("     1\tone\n"), "{read:?}");
    let failed = cli(&["tool", &id, "read_file", "--json", "{\"path\": \"b\"}"]);
    assert_eq!(failed.code, 1, "{failed:?}");
    assert!(failed.stdout.contains("instead: "), "{failed:?}");
}

#[test]
fn a_call_can_keep_what_the_files_are_after_it() {
    let daemon = daemon!();
    let id = daemon.create();
    let write = json!({ "path": "a", "content": "one\n", "snapshot": true });
    let answer = call(&daemon, &id, "write_file", &write);
    let snapshot = answer["snapshot_id"].as_str().unwrap_or_else(|| panic!("{answer:#}"));
    done(&daemon, &id, "write_file", &json!({ "path": "a", "content": "two\n" }));
    let target = format!("/api/v1/sandboxes/{id}/rollback");
    daemon.expect(200, "POST", &target, &json!({ "snapshot": snapshot }));
    assert_eq!(done(&daemon, &id, "read_file", &json!({ "path": "a" })), "     1\tone\n");
}
