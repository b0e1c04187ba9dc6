//! The audit log: who did what is written down before it is answered, from every door, and nobody changes it unnoticed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, keys, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Ran, Setup, binary, obstacle, until};

const API: &str = "/api/v1/sandboxes";
const SECRET: &str = "marker-that-must-not-be-recorded";

fn audit(data_dir: &Path, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.arg("audit").args(arguments).arg("--data-dir").arg(data_dir);
    command.output().expect("the binary runs").into()
}

fn assert_intact(data_dir: &Path) {
    let ran = audit(data_dir, &["verify"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("intact: "), "{ran:?}");
}

/// All requests that are recorded, as `sandkeep audit export` prints them.
fn requests(data_dir: &Path) -> Vec<Value> {
    let ran = audit(data_dir, &["export"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines = ran.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON"));
    lines.filter(|record: &Value| record["kind"] == "request").collect()
}

/// One request with a key of its own; returns status and answer.
fn ask(daemon: &Daemon, key: &str, method: &str, target: &str, body: &Value) -> (u16, Value) {
    let accept = if target == "/mcp" { "application/json, text/event-stream" } else { "*/*" };
    let headers = [("x-api-key", key), ("accept", accept)];
    daemon.request_with(&headers, method, target, body).expect("an answer")
}

fn find<'a>(records: &'a [Value], expected: &[(&str, Value)]) -> &'a Value {
    let is = |record: &&Value| {
        expected.iter().all(|(pointer, value)| record.pointer(pointer) == Some(value))
    };
    let found = records.iter().find(is);
    found.unwrap_or_else(|| panic!("no record with {expected:?} in {records:#?}"))
}

/// Asks for port 8080 of a sandbox by its host name, with a forged token; returns the status.
fn ask_port(daemon: &Daemon, id: &str) -> u16 {
    let address = daemon.address();
    let mut stream = TcpStream::connect(address).expect("it listens");
    let port = address.port();
    write!(
        stream,
        "GET /?sandkeep_token={SECRET} HTTP/1.1\r\nhost: 8080-{id}.localhost:{port}\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

/// What was asked for in [`ask_at_every_door`].
struct Asked {
    ann: Value,
    bob: Value,
    id: String,
    session: String,
}

/// Changes and refusals of two tenants, with secrets wherever a request can carry one.
fn ask_at_every_door(daemon: &Daemon) -> Asked {
    let data = daemon.data_dir();
    let ann = create_key(&data, "acme", "ann", &[]);
    let bob = create_key(&data, "other", "bob", &[]);
    let looker = create_key(&data, "acme", "eve", &["--scope", "read"]);
    let [ann_key, bob_key, eve_key] = [&ann, &bob, &looker].map(key_of);

    let spec = json!({ "env": { "TOKEN": SECRET } });
    let (status, view) = ask(daemon, ann_key, "POST", API, &spec);
    assert_eq!(status, 201, "{view}");
    let id = view["id"].as_str().expect("an id").to_owned();
    let own = format!("{API}/{id}");
    let exec =
        json!({ "command": format!("echo {SECRET}"), "env": { "A": SECRET }, "stdin": SECRET });
    assert_eq!(ask(daemon, ann_key, "POST", &format!("{own}/execs"), &exec).0, 200);
    // Refusals: of another tenant, without a scope, and without a good key.
    for _ in 0..50 {
        assert_eq!(ask(daemon, bob_key, "GET", &own, &Value::Null).0, 404);
    }
    assert_eq!(ask(daemon, eve_key, "POST", API, &json!({})).0, 403);
    assert_eq!(ask(daemon, &format!("sk_{SECRET}"), "GET", API, &Value::Null).0, 401);
    // The other doors.
    let (status, session) = ask(
        daemon,
        ann_key,
        "POST",
        "/api/v1/sessions",
        &json!({ "workspaceId": "w1", "runtimeProfile": "default" }),
    );
    assert_eq!(status, 201, "{session}");
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let call = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": { "name": "write_file", "arguments": { "sandbox": id, "path": "f", "content": SECRET } },
    });
    let (status, answer) = ask(daemon, ann_key, "POST", "/mcp", &call);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(ask_port(daemon, &id), 403);
    assert_eq!(keys(&data, &["revoke", bob["id"].as_str().expect("an id")]).code, 0);
    assert_eq!(ask(daemon, ann_key, "DELETE", &own, &Value::Null).0, 204);
    assert_eq!(ask(daemon, ann_key, "DELETE", &format!("{API}/{session}"), &Value::Null).0, 204);
    Asked { ann, bob, id, session }
}

#[test]
fn every_change_and_every_refusal_is_recorded_from_every_door_without_any_secret() {
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let data = daemon.data_dir();
    let Asked { ann, bob, id, session } = ask_at_every_door(&daemon);
    assert_intact(&data);
    let all = requests(&data);
    let ann_id = &ann["id"];
    let created = find(
        &all,
        &[
            ("/operation", json!("create_sandbox")),
            ("/sandbox", json!(id)),
            ("/actor/organization", json!("acme")),
            ("/actor/user", json!("ann")),
            ("/actor/key", ann_id.clone()),
            ("/address", json!("127.0.0.1")),
            ("/door", json!("rest")),
            ("/method", json!("POST")),
            ("/route", json!(API)),
            ("/outcome", json!("success")),
            ("/status", json!(201)),
        ],
    );
    assert!(created["correlation_id"].is_string() && created["duration_us"].is_u64());
    find(
        &all,
        &[
            ("/operation", json!("create_exec")),
            ("/sandbox", json!(id)),
            ("/outcome", json!("success")),
        ],
    );
    let refused = |code: &str, user: &str| {
        find(
            &all,
            &[("/outcome", json!("refused")), ("/code", json!(code)), ("/actor/user", json!(user))],
        )
    };
    assert_eq!(refused("not_found", "bob")["sandbox"], json!(id));
    refused("forbidden", "eve");
    let unknown = find(&all, &[("/code", json!("unauthenticated"))]);
    assert!(unknown["actor"].is_null(), "{unknown}");
    find(&all, &[("/door", json!("urule")), ("/sandbox", json!(session))]);
    find(
        &all,
        &[("/door", json!("mcp")), ("/operation", json!("write_file")), ("/sandbox", json!(id))],
    );
    find(&all, &[("/door", json!("ports")), ("/sandbox", json!(id)), ("/resource", json!("8080"))]);
    find(
        &all,
        &[
            ("/door", json!("cli")),
            ("/operation", json!("revoke_key")),
            ("/resource", bob["id"].clone()),
        ],
    );
    find(&all, &[("/operation", json!("destroy_sandbox")), ("/sandbox", json!(id))]);
    let repeated: u64 = all
        .iter()
        .filter(|record| record["actor"]["user"] == "bob")
        .map(|record| record["count"].as_u64().unwrap_or(1))
        .sum();
    let lines = all.iter().filter(|record| record["actor"]["user"] == "bob").count();
    assert!(lines < 50 && repeated <= 50, "{lines} records of {repeated} refusals");
    for file in fs::read_dir(data.join("audit")).expect("the log") {
        let text = fs::read_to_string(file.expect("a file").path()).expect("text");
        assert!(!text.contains(SECRET), "{text}");
    }
    assert_eq!(
        ask(&daemon, key_of(&ann), "GET", "/api/v1/audit", &Value::Null).0,
        403,
        "admins only"
    );
}

#[test]
fn every_acknowledged_change_has_its_record_after_kill_9_under_load() {
    skip_if!(obstacle());
    let mut daemon = Daemon::start();
    let id = daemon.create();
    let acknowledged = Mutex::new(Vec::new());
    for round in 0..3 {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (daemon, over, acknowledged, id) = (&daemon, &over, &acknowledged, &id);
                scope.spawn(move || {
                    for number in 0.. {
                        let name = format!("r{round}-w{worker}-{number}");
                        let patch = json!({ "labels": { "n": name } });
                        let headers = [("x-correlation-id", name.as_str())];
                        let target = format!("{API}/{id}");
                        match daemon.request_with(&headers, "PATCH", &target, &patch) {
                            Ok((200, _)) => acknowledged.lock().expect("no panic").push(name),
                            Ok((status, answer)) => panic!("{status}: {answer}"),
                            Err(_) if over.load(Ordering::Relaxed) => return,
                            Err(_) => std::thread::yield_now(),
                        }
                    }
                });
            }
            let before = acknowledged.lock().expect("no panic").len();
            until("work was acknowledged", Patience::Long, || {
                acknowledged.lock().expect("no panic").len() >= before + 100
            });
            over.store(true, Ordering::Relaxed);
            let pid = rustix::process::Pid::from_raw(daemon.pid() as i32).expect("a pid");
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
        });
        daemon.wait_for_end();
        daemon.start_again(&Setup::default());
    }
    assert_intact(&daemon.data_dir());
    let all = requests(&daemon.data_dir());
    let recorded: std::collections::HashSet<&str> =
        all.iter().filter_map(|record| record["correlation_id"].as_str()).collect();
    for name in acknowledged.into_inner().expect("no panic") {
        assert!(recorded.contains(name.as_str()), "{name} was acknowledged and is not recorded");
    }
}

/// A small filesystem where the audit log is.
struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    fn mount(data: &Path) -> Self {
        let dir = data.join("audit");
        fs::remove_dir_all(&dir).expect("removed");
        fs::create_dir(&dir).expect("made");
        mount("tmpfs", &dir, "tmpfs", MountFlags::empty(), Some(c"size=1m")).expect("mounted");
        Self(dir)
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        while std::io::Write::write_all(&mut file, &[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("removed");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_refuses_changes_and_not_reads_and_keeps_no_daemon_from_starting() {
    skip_if!(obstacle());
    let mut daemon = Daemon::start();
    daemon.stop();
    let disk = SmallDisk::mount(&daemon.data_dir());
    disk.fill();
    daemon.start_again(&Setup::default());
    let (status, problem) = daemon.request("POST", API, &json!({}));
    assert_eq!((status, &problem["code"]), (507, &json!("audit_full")), "{problem}");
    assert!(daemon.ids().is_empty(), "reads go on, and nothing was made");
    disk.free();
    let id = daemon.create();
    daemon.destroy(&id);
    assert_intact(&daemon.data_dir());
    daemon.stop();

    daemon.start_again(&Setup::default().env("SANDKEEP_AUDIT_ON_FULL", "continue"));
    disk.fill();
    // Blocks that were allocated before may take some more records.
    until("a record is lost", Patience::Long, || {
        let id = daemon.create();
        daemon.destroy(&id);
        let (_, page) = daemon.fetch("/metrics", "*/*").expect("metrics");
        let page = String::from_utf8(page).expect("text");
        let lost =
            page.lines().find_map(|line| line.strip_prefix("sandkeep_audit_records_lost_total "));
        lost.is_some_and(|lost| lost != "0")
    });
    disk.free();
    let id = daemon.create();
    daemon.destroy(&id);
    assert_intact(&daemon.data_dir());
    let ran = audit(&daemon.data_dir(), &["export"]);
    assert!(
        ran.stdout.contains(r#""kind":"gap","reason":"full""#)
            || ran.stdout.contains(r#""reason":"full""#),
        "{ran:?}"
    );
    daemon.stop();
    drop(disk);
}

#[test]
fn tampering_is_found_and_named_and_records_can_be_followed_and_exported() {
    skip_if!(obstacle());
    let mut daemon = Daemon::start();
    let data = daemon.data_dir();
    let mut follower = binary()
        .args(["--url", &daemon.url(), "audit", "tail", "-f", "-n", "0", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut lines = BufReader::new(follower.stdout.take().expect("piped")).lines();
    let id = daemon.create();
    // It may have begun after the first one; later ones come in any case.
    let followed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !followed.load(Ordering::Relaxed) {
                let target = format!("{API}/{id}/keepalive");
                daemon.expect(200, "POST", &target, &json!({}));
            }
        });
        let record: Value =
            serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("JSON");
        followed.store(true, Ordering::Relaxed);
        assert_eq!(record["kind"], "request", "{record}");
    });
    follower.kill().expect("it is our child");
    follower.wait().expect("it is our child");
    daemon.destroy(&id);

    let ran = audit(&data, &["export", "--format", "ocsf", "--owner", "local"]);
    let event: Value = ran
        .stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .find(|event: &Value| event["class_uid"] == 6003)
        .expect("an API activity");
    assert_eq!(event["api"]["operation"], "create_sandbox");
    let head = audit(&data, &["head"]).stdout.trim().to_owned();
    assert_eq!(audit(&data, &["verify", "--head", &head]).code, 0);
    let api: Value = daemon.expect(200, "GET", "/api/v1/audit/head", &Value::Null);
    assert_eq!(head, format!("{}:{}", api["seq"], api["hash"].as_str().expect("a hash")));
    daemon.stop();
    let path = data.join("audit").join(format!("{:020}.log", 1));
    let text = fs::read_to_string(&path).expect("the log");
    let forged = text.replacen("create_sandbox", "create_sandb0x", 1);
    assert_ne!(text, forged);
    fs::write(&path, &forged).expect("written");
    let ran = audit(&data, &["verify"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("BROKEN at record 2"), "{ran:?}");
    fs::write(&path, text).expect("written");
    assert_intact(&data);
}
