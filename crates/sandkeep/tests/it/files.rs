//! The files of a sandbox, through the real daemon: read, written, listed, changed and watched with the rights of its
//! user, without access to the host's.

mod archives;
mod copying;
mod odd;
mod runtimes;
mod transfer;
mod watching;

use serde_json::{Value, json};

use crate::daemon;
use crate::support::{Daemon, Patience, Raw, Reply, Setup, until};

/// A sandbox and the way to its files.
pub struct Place<'a> {
    pub daemon: &'a Daemon,
    pub id: String,
}

impl<'a> Place<'a> {
    pub fn new(daemon: &'a Daemon) -> Self {
        Self::with(daemon, &json!({}))
    }

    pub fn with(daemon: &'a Daemon, spec: &Value) -> Self {
        Self { daemon, id: daemon.create_with(spec) }
    }

    pub fn target(&self, rest: &str) -> String {
        format!("/api/v1/sandboxes/{}/files{rest}", self.id)
    }

    /// A request with headers and a body of one's own.
    pub fn ask(&self, method: &str, rest: &str, headers: &[&str], body: &[u8]) -> Reply {
        let mut head = format!(
            "{method} {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
            self.target(rest),
            self.daemon.address(),
            body.len()
        );
        headers.iter().for_each(|header| head += &format!("{header}\r\n"));
        head += "\r\n";
        let mut raw = Raw::open(self.daemon.address());
        raw.send(head.as_bytes());
        // A server that refuses early may not have read all of it.
        let _ = std::io::Write::write_all(&mut raw.stream, body);
        raw.reply(method)
    }

    pub fn get(&self, rest: &str) -> Reply {
        self.ask("GET", rest, &[], b"")
    }

    pub fn put(&self, path: &str, body: &[u8]) -> Reply {
        self.ask("PUT", &format!("?path={path}"), &[], body)
    }

    /// The file must be there; its bytes.
    pub fn read(&self, path: &str) -> Vec<u8> {
        let reply = self.get(&format!("?path={path}"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.body
    }

    pub fn post(&self, what: &str, body: &Value) -> (u16, Value) {
        self.daemon.request("POST", &self.target(what), body)
    }

    pub fn stat(&self, path: &str) -> Value {
        let reply = self.get(&format!("/stat?path={path}"));
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
        reply.json()
    }

    /// The names in a directory, as a list says them.
    pub fn names(&self, rest: &str) -> Vec<String> {
        let reply = self.get(rest);
        assert_eq!(reply.status, 200, "{rest}: {}", reply.text());
        let listing = reply.json();
        let items = listing["items"].as_array().expect("items");
        items.iter().map(|item| item["path"].as_str().expect("a path").to_owned()).collect()
    }

    pub fn sh(&self, command: &str) -> String {
        self.daemon.sh(&self.id, command).ok()
    }

    /// A refusal that says what to do; its code.
    pub fn refused(&self, reply: &Reply, status: u16) -> String {
        assert_eq!(reply.status, status, "{}", reply.text());
        let problem = reply.json();
        assert!(!problem["remediation"].as_str().expect("a remedy").is_empty(), "{problem:#}");
        problem["code"].as_str().expect("a code").to_owned()
    }
}

#[test]
fn a_file_is_what_was_written_and_belongs_to_the_sandboxs_user() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let bytes: Vec<u8> = (0..200_000u32).flat_map(u32::to_le_bytes).collect();
    let reply = place.put("note.bin", &bytes);
    assert_eq!(reply.status, 201, "{}", reply.text());
    assert_eq!(reply.json()["size"], bytes.len());
    assert_eq!(place.read("note.bin"), bytes);
    assert_eq!(place.read("/home/user/note.bin"), bytes, "relative paths begin at home");
    assert_eq!(place.sh("stat -c '%U %a' ~/note.bin; ls -A ~"), "user 644\nnote.bin");
    assert_eq!(place.put("note.bin", b"").status, 200, "it was there");
    assert_eq!(place.read("note.bin"), b"");
}

#[test]
fn a_write_keeps_the_mode_follows_a_link_and_makes_directories_only_if_asked() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("echo old > run.sh && chmod 750 run.sh && ln -s run.sh link");
    assert_eq!(place.put("link", b"new").status, 200);
    assert_eq!(place.sh("readlink link; cat run.sh; stat -c %a run.sh"), "run.sh\nnew750");
    assert_eq!(place.ask("PUT", "?path=x&mode=0600", &[], b"x").status, 201);
    assert_eq!(place.sh("stat -c %a x"), "600");
    assert_eq!(place.refused(&place.put("a/b/c", b"x"), 404), "file_not_found");
    assert_eq!(place.ask("PUT", "?path=a/b/c&parents=true", &[], b"deep").status, 201);
    assert_eq!(place.read("a/b/c"), b"deep");
}

#[test]
fn ranges_are_read_as_http_has_them() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("digits", b"0123456789");
    let read = |range: &str| place.ask("GET", "?path=digits", &[&format!("range: {range}")], b"");
    for (range, bytes, shown) in [
        ("bytes=2-4", &b"234"[..], "bytes 2-4/10"),
        ("bytes=7-", b"789", "bytes 7-9/10"),
        ("bytes=-2", b"89", "bytes 8-9/10"),
        ("bytes=8-99", b"89", "bytes 8-9/10"),
    ] {
        let reply = read(range);
        assert_eq!((reply.status, reply.body.as_slice()), (206, bytes), "{range}");
        assert_eq!(reply.header("content-range"), Some(shown));
    }
    let beyond = read("bytes=10-");
    assert_eq!(place.refused(&beyond, 416), "range_not_satisfiable");
    assert_eq!(beyond.header("content-range"), Some("bytes */10"));
    assert_eq!(read("bytes=1-2,4-5").status, 200, "several at once are all of it");
    let head = place.ask("HEAD", "?path=digits", &[], b"");
    assert_eq!((head.status, head.header("content-length")), (200, Some("10")));
}

#[test]
fn directories_are_made_moved_listed_and_deleted() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    assert_eq!(place.post("/mkdir", &json!({ "path": "a/b" })).0, 404);
    let (status, made) =
        place.post("/mkdir", &json!({ "path": "a/b", "parents": true, "mode": "0700" }));
    assert_eq!((status, &made["kind"], &made["mode"]), (201, &json!("directory"), &json!("0700")));
    assert_eq!(place.post("/mkdir", &json!({ "path": "a/b" })).0, 409);
    place.put("a/b/one", b"1");
    place.put("a/two", b"2");
    let (status, moved) = place.post("/move", &json!({ "from": "a/two", "to": "a/b/one" }));
    assert_eq!((status, &moved["code"]), (409, &json!("file_exists")), "{moved:#}");
    let over = json!({ "from": "a/two", "to": "a/b/one", "overwrite": true });
    assert_eq!(place.post("/move", &over).0, 200);
    assert_eq!(place.read("a/b/one"), b"2");
    let (status, changed) = place.post("/chmod", &json!({ "path": "a/b/one", "mode": "0400" }));
    assert_eq!((status, &changed["mode"]), (200, &json!("0400")));
    assert_eq!(place.names("/list?path=a&depth=5"), ["a/b", "a/b/one"]);
    assert_eq!(place.names("/list"), ["./a"]);
    let refused = place.ask("DELETE", "?path=a", &[], b"");
    assert_eq!(place.refused(&refused, 409), "directory_not_empty");
    assert_eq!(place.ask("DELETE", "?path=a&recursive=true", &[], b"").status, 204);
    assert_eq!(place.refused(&place.get("/stat?path=a"), 404), "file_not_found");
    assert_eq!(place.sh("ls -A"), "");
}

#[test]
fn a_hundred_thousand_entries_come_in_pages_each_once() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir many && cd many && seq -f 'file-%06.0f' 1 100000 | xargs touch");
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let listing = place.get(&format!("/list?path=many&limit=10000{cursor}")).json();
        let items = listing["items"].as_array().expect("items").clone();
        seen.extend(items.iter().map(|item| item["path"].as_str().expect("a path").to_owned()));
        match listing["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 100_000);
    assert_eq!(seen[99_999], "many/file-100000");
    assert!(seen.is_sorted());
    assert_eq!(place.ask("DELETE", "?path=many&recursive=true", &[], b"").status, 204);
}

#[test]
fn what_the_user_may_not_do_is_refused_and_says_what_to_do() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    assert_eq!(place.refused(&place.put("/usr/x", b"x"), 403), "file_read_only");
    daemon.root_sh(&place.id, "touch /tmp/secret; chmod 600 /tmp/secret").ok();
    assert_eq!(place.refused(&place.get("?path=/tmp/secret"), 403), "file_not_permitted");
    assert_eq!(place.refused(&place.put("/tmp/secret", b"x"), 403), "file_not_permitted");
    assert_eq!(place.refused(&place.get("?path=/etc"), 409), "is_a_directory");
    assert_eq!(place.refused(&place.get("/list?path=/etc/passwd"), 409), "not_a_directory");
    assert_eq!(place.refused(&place.get("?path="), 400), "invalid_field");
    assert_eq!(place.refused(&place.get(""), 400), "invalid_query");
    assert_eq!(place.refused(&place.get("?path=x&paht=y"), 400), "invalid_query");
    let root = place.ask("DELETE", "?path=/&recursive=true", &[], b"");
    assert_eq!(place.refused(&root, 400), "file_request_invalid");
    let long = place.put(&"n".repeat(256), b"x");
    assert_eq!(place.refused(&long, 400), "file_request_invalid");
}

#[test]
fn a_sandbox_that_does_not_run_says_how_to_make_it() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("note", b"kept");
    for (verb, back) in [("pause", "resume"), ("stop", "start")] {
        daemon.verb(&place.id, verb);
        let refused = place.get("?path=note");
        assert_eq!(place.refused(&refused, 409), "wrong_state");
        let remedy = refused.json()["remediation"].as_str().expect("a remedy").to_owned();
        assert!(remedy.contains(back), "{remedy}");
        daemon.verb(&place.id, back);
        assert_eq!(place.read("note"), b"kept");
    }
}

#[test]
fn a_full_disk_is_said_and_the_file_stays_as_it_was() {
    let daemon = daemon!();
    let place = Place::with(&daemon, &json!({ "resources": { "disk_mb": 16 } }));
    place.put("note", b"kept");
    // What cannot be squeezed.
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u8
    })
    .take(32 * 1024 * 1024)
    .collect();
    let refused = place.put("note", &noise);
    assert_eq!(place.refused(&refused, 507), "no_space");
    assert_eq!(place.read("note"), b"kept");
    assert_eq!(place.sh("ls -A"), "note", "nothing of it is left");
}

#[test]
fn an_upload_that_breaks_off_changes_nothing() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("note", b"kept");
    let mut raw = Raw::open(daemon.address());
    let head = format!(
        "PUT {} HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000000\r\n\r\n",
        place.target("?path=note"),
        daemon.address()
    );
    raw.send(head.as_bytes()).send(&[b'x'; 100_000]);
    until("the upload has begun", Patience::Long, || place.sh("ls -A").contains(".sandkeep-"));
    drop(raw);
    until("it is cleaned up", Patience::Long, || place.sh("ls -A") == "note");
    assert_eq!(place.read("note"), b"kept");
}

#[test]
fn an_upload_whose_daemon_is_killed_changes_nothing() {
    let mut daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo kept > note").ok();
    let mut raw = Raw::open(daemon.address());
    let head = format!(
        "PUT /api/v1/sandboxes/{id}/files?path=note HTTP/1.1\r\nhost: {}\r\ncontent-length: 1000000\r\n\r\n",
        daemon.address()
    );
    raw.send(head.as_bytes()).send(&[b'x'; 100_000]);
    let left = |daemon: &Daemon| daemon.sh(&id, "ls -A").ok();
    until("the upload has begun", Patience::Long, || left(&daemon).contains(".sandkeep-"));
    daemon.kill_9();
    daemon.start_again(&Setup::default());
    until("it is cleaned up", Patience::Long, || left(&daemon) == "note");
    assert_eq!(daemon.sh(&id, "cat note").ok(), "kept");
}

#[test]
fn a_form_is_not_taken_for_a_file() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let form = b"--x\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\ntext\r\n--x--\r\n";
    let kind = "Content-Type: multipart/form-data; boundary=x";
    let refused = place.ask("PUT", "?path=f", &[kind], form);
    assert_eq!(refused.status, 415, "{}", refused.text());
    assert!(refused.text().contains("not_raw"), "{}", refused.text());
    assert_eq!(place.get("?path=f").status, 404);
}
