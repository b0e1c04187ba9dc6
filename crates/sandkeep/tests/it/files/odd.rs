//! Special files and unusual names.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::Place;
use crate::daemon;
use crate::support::{Patience, Raw, until};

#[test]
fn links_and_dots_lead_where_they_lead_inside_and_never_to_the_host() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    let secret = tempfile::NamedTempFile::new().expect("a file of the host");
    std::fs::write(secret.path(), "the host's").expect("writable");
    let host = secret.path().display().to_string();
    place.sh(&format!("ln -s {host} out; ln -s / root; mkdir d; ln -s loop loop"));
    for path in
        [host.as_str(), "out", &format!("d/../../../../../../..{host}"), &format!("root{host}")]
    {
        let refused = place.get(&format!("?path={path}"));
        assert_eq!(place.refused(&refused, 404), "file_not_found", "{path}");
    }
    assert_eq!(place.read("d/../../../etc/hostname"), place.read("/etc/hostname"));
    assert_eq!(place.refused(&place.get("?path=loop"), 400), "file_request_invalid");
    let link = place.stat("out");
    assert_eq!((&link["kind"], &link["target"]), (&json!("symlink"), &json!(host)));
    // A missing target is made inside, or refused there.
    let written = place.put("out", b"x");
    assert!([201, 403, 404].contains(&written.status), "{}", written.text());
    assert_eq!(std::fs::read_to_string(secret.path()).expect("readable"), "the host's");
}

#[test]
fn what_is_no_regular_file_is_named_and_not_opened() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh(
        "mkfifo fifo; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    );
    for (path, kind) in [("fifo", "fifo"), ("socket", "socket"), ("/dev/zero", "char_device")] {
        assert_eq!(place.stat(path)["kind"], kind);
        assert_eq!(place.refused(&place.get(&format!("?path={path}")), 409), "not_a_regular_file");
        assert_eq!(place.refused(&place.put(path, b"x"), 409), "not_a_regular_file");
    }
    assert_eq!(place.ask("DELETE", "?path=fifo", &[], b"").status, 204);
}

#[test]
fn a_sparse_file_is_as_long_as_it_says() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("truncate -s 8G sparse; printf end | dd of=sparse bs=1 seek=8589934589 conv=notrunc 2>/dev/null");
    assert_eq!(place.stat("sparse")["size"], 8u64 << 30);
    let tail = place.ask("GET", "?path=sparse", &["range: bytes=-5"], b"");
    assert_eq!(tail.body, b"\0\0end");
}

#[test]
fn names_that_are_no_text_are_told_and_taken_without_loss() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir odd; touch \"odd/$(printf 'a\\377b')\"");
    let items = place.get("/list?path=odd").json()["items"].clone();
    let encoded = items[0]["path_b64"].as_str().expect("its bytes").to_owned();
    assert_eq!(STANDARD.decode(&encoded).expect("base64"), b"odd/a\xffb");
    assert_eq!(items[0]["path"], "odd/a\u{fffd}b");
    assert_eq!(place.put("odd/a%ffb", b"found").status, 200);
    let mut to = b"odd/\xfe".to_vec();
    let moved = json!({ "from_b64": encoded, "to_b64": STANDARD.encode(&to) });
    assert_eq!(place.post("/move", &moved).0, 200);
    to.clear();
    assert_eq!(place.read("odd/%fe"), b"found");
    assert_eq!(place.put("odd/new%0aline%20%2B%25", b"x").status, 201);
    assert_eq!(place.sh("ls odd | wc -l"), "3", "one name has two lines");
}

#[test]
fn a_file_that_is_replaced_while_it_is_read_is_read_to_its_old_end() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("head -c 50000000 /dev/zero | tr '\\0' a > big");
    let (mut raw, head) = begin(&place, "?path=big");
    assert_eq!(head.header("content-length"), Some("50000000"));
    assert_eq!(place.put("big", b"new").status, 200);
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut raw.stream, &mut rest).expect("all of it comes");
    assert!(rest.len() <= 50_000_000 && rest.iter().all(|byte| *byte == b'a'));
    assert_eq!(place.read("big"), b"new");
}

#[test]
fn a_file_that_becomes_shorter_while_it_is_read_breaks_the_answer_off() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("head -c 50000000 /dev/zero | tr '\\0' a > big");
    let (mut raw, head) = begin(&place, "?path=big");
    assert_eq!(head.status, 200);
    place.sh("truncate -s 10 big");
    let mut rest = Vec::new();
    let read = std::io::Read::read_to_end(&mut raw.stream, &mut rest);
    assert!(read.is_err() || rest.len() < 49_000_000, "{} bytes came", rest.len());
}

/// An answer of which only the head is read.
fn begin(place: &Place<'_>, rest: &str) -> (Raw, crate::support::Reply) {
    let mut raw = Raw::open(place.daemon.address());
    let request = format!(
        "GET {} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
        place.target(rest),
        place.daemon.address()
    );
    raw.send(request.as_bytes());
    let head = raw.head();
    (raw, head)
}

#[test]
fn whoever_leaves_ends_the_reading_inside() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("truncate -s 4G big");
    let (raw, _) = begin(&place, "?path=big");
    let running = || {
        place.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").contains("sandkeep-toolbox")
    };
    until("it is read", Patience::Long, running);
    drop(raw);
    until("nobody reads it", Patience::Long, || !running());
}
