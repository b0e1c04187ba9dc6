//! Codebases: made, filled, read and written by the API and by sandboxes at once, on each storage; and what they keep
//! out.

mod changes;
#[cfg(feature = "failpoints")]
mod crash;
mod escape;
mod rules;
mod sharing;

use serde_json::{Value, json};

use crate::on_each_storage;
use crate::skip_if;
use crate::support::{Daemon, Ground, Patience, Ran, binary, obstacle, run_with_stdin, until};

#[cfg(feature = "failpoints")]
pub use crash::killed_at;

const CODEBASES: &str = "/api/v1/codebases";

on_each_storage!(
    a_codebase_is_filled_mounted_and_read_while_sandboxes_write,
    a_codebase_that_a_sandbox_has_is_not_deleted,
    a_directory_and_an_archive_become_codebases,
);

/// An empty codebase; its id.
fn make(daemon: &Daemon, name: &str) -> String {
    let made = daemon.expect(201, "POST", CODEBASES, &json!({ "name": name }));
    assert_eq!((&made["name"], &made["state"]), (&json!(name), &json!("ready")));
    made["id"].as_str().expect("an id").to_owned()
}

fn files(codebase: &str) -> String {
    format!("{CODEBASES}/{codebase}/files")
}

fn write(daemon: &Daemon, codebase: &str, path: &str, content: &str) {
    let target = format!("{}?path={path}&parents=true", files(codebase));
    let (status, said) = daemon.put_bytes(&target, content.as_bytes().to_vec());
    assert!([200, 201].contains(&status), "{path}: {status} {said}");
}

/// The code of a refusal.
#[derive(Debug, PartialEq, Eq)]
struct Refused(String);

impl Refused {
    fn with(code: &str) -> Self {
        Self(code.to_owned())
    }
}

/// The content of a file.
fn read(daemon: &Daemon, codebase: &str, path: &str) -> Result<String, Refused> {
    let (status, body) = daemon
        .fetch(&format!("{}?path={path}", files(codebase)), "*/*")
        .expect("the daemon answers");
    let text = String::from_utf8_lossy(&body).into_owned();
    if status == 200 {
        return Ok(text);
    }
    let problem: Value = serde_json::from_str(&text).expect("a problem");
    Err(Refused::with(problem["code"].as_str().expect("a code")))
}

fn with_codebase(daemon: &Daemon, codebase: &str) -> String {
    daemon.create_with(&json!({ "codebase": codebase }))
}

fn call(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

fn a_codebase_is_filled_mounted_and_read_while_sandboxes_write(ground: &Ground) {
    let mut daemon = Daemon::start_with(&ground.setup());
    let id = make(&daemon, "site");
    write(&daemon, "site", "src/main.py", "print('hello')\n");
    let (one, two) = (with_codebase(&daemon, &id), with_codebase(&daemon, "site"));
    let look =
        "pwd && cat src/main.py && stat -c '%U %a %n' . src src/main.py && echo one > src/one";
    let expected = "/workspace\nprint('hello')\nuser 755 .\nuser 755 src\nuser 644 src/main.py";
    assert_eq!(daemon.sh(&one, look).ok(), expected, "{}", ground.name());
    // Every other sandbox and the API see it at once, and the other way round.
    assert_eq!(daemon.sh(&two, "cat src/one && echo two > two").ok(), "one");
    assert_eq!(read(&daemon, &id, "/src/one").as_deref(), Ok("one\n"));
    write(&daemon, "site", "two", "from outside\n");
    assert_eq!(daemon.sh(&one, "cat two").ok(), "from outside");
    let (_, listed) =
        daemon.request("GET", &format!("{}/list?depth=3", files("site")), &Value::Null);
    let paths: Vec<&str> = listed["items"]
        .as_array()
        .expect("items")
        .iter()
        .filter_map(|i| i["path"].as_str())
        .collect();
    assert_eq!(paths, ["./src", "./src/main.py", "./src/one", "./two"]);
    let size = daemon.expect(200, "GET", &format!("{CODEBASES}/site/size"), &Value::Null);
    assert_eq!(size, json!({ "entries": 4, "bytes": 15 + 4 + 13 }));
    let shown = &daemon.get(&one)["codebase"];
    let served = json!({ "id": id, "name": "site", "mount": "/workspace", "mode": "shared", "served": "bind" });
    assert_eq!(*shown, served);
    // It survives both, and is the same after a kill and a restart of the daemon.
    daemon.verb(&one, "stop");
    daemon.kill_9();
    daemon.start_again(&ground.setup());
    assert_eq!(daemon.sh(&two, "cat src/one").ok(), "one");
    daemon.verb(&one, "start");
    assert_eq!(daemon.sh(&one, "cat two && echo again > src/one").ok(), "from outside");
    assert_eq!(read(&daemon, &id, "src/one").as_deref(), Ok("again\n"));
    daemon.assert_no_leaks();
    daemon.destroy(&one);
    daemon.destroy(&two);
    assert_eq!(read(&daemon, &id, "two").as_deref(), Ok("from outside\n"));
    daemon.expect(204, "DELETE", &format!("{CODEBASES}/{id}"), &Value::Null);
    assert_eq!(read(&daemon, &id, "two"), Err(Refused::with("codebase_not_found")));
    daemon.assert_no_leaks();
}

fn a_codebase_that_a_sandbox_has_is_not_deleted(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = make(&daemon, "kept");
    let sandbox = with_codebase(&daemon, &id);
    daemon.verb(&sandbox, "stop");
    let refused = daemon.expect(409, "DELETE", &format!("{CODEBASES}/kept"), &Value::Null);
    assert_eq!(refused["code"], "codebase_in_use");
    assert!(
        refused["detail"].as_str().is_some_and(|detail| detail.contains(&sandbox)),
        "{refused}"
    );
    let listed = daemon.expect(200, "GET", CODEBASES, &Value::Null);
    assert_eq!(listed["items"][0]["sandboxes"], json!([sandbox]));
    let again = daemon.expect(409, "POST", CODEBASES, &json!({ "name": "kept" }));
    assert_eq!(again["code"], "codebase_exists");
    daemon.verb(&sandbox, "start");
    assert_eq!(daemon.sh(&sandbox, "touch x && ls").ok(), "x");
    daemon.destroy(&sandbox);
    daemon.expect(204, "DELETE", &format!("{CODEBASES}/kept"), &Value::Null);
    make(&daemon, "kept");
    daemon.expect(204, "DELETE", &format!("{CODEBASES}/kept"), &Value::Null);
    daemon.assert_no_leaks();
}

fn a_directory_and_an_archive_become_codebases(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let project = tempfile::Builder::new().prefix("skcb-").tempdir().expect("a directory");
    std::fs::create_dir(project.path().join("src")).expect("a directory");
    std::fs::write(project.path().join("src/a"), "of the host\n").expect("a file");
    std::os::unix::fs::symlink("src/a", project.path().join("link")).expect("a link");
    let dir = project.path().to_str().expect("text");
    let made = call(&daemon, &["codebase", "create", "from-dir", "--dir", dir]);
    assert_eq!(made.code, 0, "{made:?}");
    let packed = call(&daemon, &["codebase", "tar", "from-dir"]);
    assert_eq!(packed.code, 0, "{packed:?}");
    make(&daemon, "from-tar");
    let archive =
        daemon.fetch(&format!("{}/archive", files("from-dir")), "*/*").expect("an answer").1;
    let mut unpack = binary();
    unpack
        .args(["codebase", "tar", "--unpack", "from-tar", "below"])
        .env("SANDKEEP_URL", daemon.url());
    assert_eq!(run_with_stdin(&mut unpack, &archive).code, 0);
    assert_eq!(read(&daemon, "from-tar", "below/link").as_deref(), Ok("of the host\n"));
    let sandbox = with_codebase(&daemon, "from-dir");
    assert_eq!(daemon.sh(&sandbox, "cat link && echo mine > src/a").ok(), "of the host");
    let host = std::fs::read_to_string(project.path().join("src/a")).expect("a file");
    assert_eq!(host, "of the host\n", "the original never changes");
    for (source, status) in [
        (json!({ "dir": "/nowhere/at/all" }), 400),
        (json!({ "dir": dir, "path": "x" }), 400),
        (json!({ "git": "https://example.org/x.git" }), 400),
        (json!({}), 400),
    ] {
        daemon.expect(status, "POST", CODEBASES, &json!({ "name": "none", "source": source }));
    }
    daemon.destroy(&sandbox);
    for name in ["from-dir", "from-tar"] {
        assert_eq!(call(&daemon, &["codebase", "rm", name]).code, 0);
    }
    daemon.assert_no_leaks();
}

/// Every runtime mounts codebases, or says that it cannot before anything is made.
#[test]
fn each_runtime_mounts_a_codebase_or_refuses() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    let id = make(&daemon, "code");
    write(&daemon, &id, "f", "content");
    let runtimes = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let usable = runtimes["runtimes"].as_array().expect("runtimes").clone();
    let mut mounting = Vec::new();
    for runtime in usable.iter().filter(|runtime| runtime["usable"] == true) {
        let spec = json!({ "codebase": "code", "mount": "/srv/code", "runtime": runtime["name"] });
        if runtime["capabilities"]["mounts"] != true {
            let refused = daemon.expect(400, "POST", "/api/v1/sandboxes", &spec);
            assert!(
                refused["detail"].as_str().is_some_and(|d| d.starts_with("codebase: ")),
                "{refused}"
            );
            continue;
        }
        let sandbox = daemon.create_with(&spec);
        let name = runtime["name"].as_str().expect("a name");
        assert_eq!(
            daemon.sh(&sandbox, "pwd; cat f; touch by-user").ok(),
            "/srv/code\ncontent",
            "{name}"
        );
        let stat = daemon.expect(
            200,
            "GET",
            &format!("{}/stat?path=by-user", files("code")),
            &Value::Null,
        );
        assert_eq!(stat["uid"], 1000, "{name}");
        daemon.destroy(&sandbox);
        daemon.expect(204, "DELETE", &format!("{}?path=by-user", files("code")), &Value::Null);
        mounting.push(name.to_owned());
    }
    assert!(mounting.contains(&"native".to_owned()), "{mounting:?}");
    daemon.expect(204, "DELETE", &format!("{CODEBASES}/code"), &Value::Null);
    daemon.assert_no_leaks();
}

#[test]
fn a_request_that_cannot_be_met_makes_nothing() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    for (spec, status, start) in [
        (json!({ "codebase": "other" }), 404, "there is no codebase"),
        (json!({ "mount": "/x" }), 400, "mount: "),
        (json!({ "rules": "read-only" }), 400, "rules: "),
        (json!({ "codebase": "code", "mount": "/etc" }), 400, "mount: "),
        (json!({ "codebase": "code", "mount": "x" }), 400, "mount: "),
        (json!({ "codebase": "code", "codebase_mode": "copy" }), 400, "codebase_mode: "),
    ] {
        let refused = daemon.expect(status, "POST", "/api/v1/sandboxes", &spec);
        assert!(
            refused["detail"].as_str().is_some_and(|d| d.starts_with(start)),
            "{spec}: {refused}"
        );
    }
    assert_eq!(daemon.ids(), [""; 0]);
    for name in ["", "a/b", "../x"] {
        daemon.expect(400, "POST", CODEBASES, &json!({ "name": name }));
    }
}

/// Creates and deletes race: a sandbox never has a codebase that is gone.
#[test]
fn a_codebase_is_deleted_or_mounted_and_never_both() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    for round in 0..8 {
        let name = format!("code-{round}");
        let id = make(&daemon, &name);
        let spec = json!({ "codebase": name });
        let (created, deleted) = std::thread::scope(|scope| {
            let created = scope.spawn(|| daemon.request("POST", "/api/v1/sandboxes", &spec));
            let deleted = daemon.request("DELETE", &format!("{CODEBASES}/{id}"), &Value::Null);
            (created.join().expect("no panic"), deleted)
        });
        match (created.0, deleted.0) {
            (201, 409) => {
                let sandbox = created.1["id"].as_str().expect("an id").to_owned();
                assert_eq!(daemon.sh(&sandbox, "touch x; ls").ok(), "x");
                daemon.destroy(&sandbox);
                daemon.expect(204, "DELETE", &format!("{CODEBASES}/{id}"), &Value::Null);
            }
            (404 | 409, 204) => {}
            (404 | 409, 409) => {
                daemon.expect(204, "DELETE", &format!("{CODEBASES}/{id}"), &Value::Null);
            }
            other => panic!("{other:?}: {created:?} {deleted:?}"),
        }
    }
    until("nothing is left", Patience::Short, || daemon.ids().is_empty());
    daemon.assert_no_leaks();
}
