//! Trees as archives, in both directions, and malicious archives.

use std::io::Read;

use tar::{Builder, EntryType, Header};

use super::Place;
use crate::daemon;

/// An archive of one entry, whatever it is called: written by hand where the library would refuse.
fn entry(kind: EntryType, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(0o4755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(1_000_000_000);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, content).expect("a buffer takes it");
    builder.into_inner().expect("a buffer takes it")
}

/// Several of them as one.
fn joined(parts: &[Vec<u8>]) -> Vec<u8> {
    const END_BYTES: usize = 1024;
    let mut all: Vec<u8> =
        parts.iter().flat_map(|part| part[..part.len() - END_BYTES].to_vec()).collect();
    all.extend([0; END_BYTES]);
    all
}

#[test]
fn a_tree_goes_down_and_up_again_as_it_was() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh(
        "mkdir -p t/sub/empty && cd t && echo one > sub/one && chmod 640 sub/one && ln -s ../gone sub/link \
         && ln sub/one hard && mkfifo fifo && truncate -s 100M holes && touch -d 2001-02-03 sub/one \
         && touch \"$(printf 'odd\\377')\" && mkdir -p $(printf 'd%.0s' $(seq 200))/$(printf 'e%.0s' $(seq 200))",
    );
    let archive = place.get("/archive?path=t");
    assert_eq!(archive.status, 200, "{}", archive.text());
    assert_eq!(archive.header("x-sandkeep-archive-of"), Some("directory"));
    assert!(archive.body.len() < 1_000_000, "holes are not sent: {}", archive.body.len());
    let reply = place.ask("PUT", "/archive?path=copy&parents=true", &[], &archive.body);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let look = "find . ! -name fifo -printf '%P %y %m %s %l %n\\n' | sort";
    let look = |dir: &str| place.sh(&format!("cd {dir} && {look} | grep -v '^ d'"));
    assert_eq!(look("copy"), look("t"));
    assert_eq!(
        place.sh("stat -c %y copy/sub/one | cut -c1-10; du -k copy/holes | cut -f1"),
        "2001-02-03\n0"
    );
    assert_eq!(place.sh("test -e copy/fifo || echo left out"), "left out");
}

#[test]
fn a_single_file_is_an_archive_of_one() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.put("note", b"text");
    let reply = place.get("/archive?path=/home/user/note");
    assert_eq!(reply.header("x-sandkeep-archive-of"), Some("file"));
    let mut archive = tar::Archive::new(reply.body.as_slice());
    let mut entries = archive.entries().expect("an archive");
    let mut file = entries.next().expect("one").expect("an entry");
    let mut content = String::new();
    file.read_to_string(&mut content).expect("text");
    assert_eq!((file.path().expect("a name").to_str(), content.as_str()), (Some("note"), "text"));
    assert!(entries.next().is_none());
}

#[test]
fn an_archive_that_would_lead_elsewhere_is_refused_and_touches_nothing_there() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir in");
    let file = |name: &str| entry(EntryType::Regular, name, "", b"bad");
    let up = |bytes: &[u8]| place.ask("PUT", "/archive?path=in", &[], bytes);
    for (what, archive) in [
        ("an absolute path", file("/tmp/bad")),
        ("dots", file("../bad")),
        ("dots within", file("a/../../bad")),
        ("a hard link out", entry(EntryType::Link, "hard", "../../etc/passwd", b"")),
        ("an absolute hard link", entry(EntryType::Link, "hard", "/etc/passwd", b"")),
        ("through a link", joined(&[entry(EntryType::Symlink, "l", "/tmp", b""), file("l/bad")])),
    ] {
        assert_eq!(place.refused(&up(&archive), 400), "file_request_invalid", "{what}");
    }
    for kind in [EntryType::Char, EntryType::Block, EntryType::Fifo] {
        let refused = up(&entry(kind, "node", "", b""));
        assert_eq!(place.refused(&refused, 409), "not_a_regular_file", "{kind:?}");
    }
    assert_eq!(place.sh("ls -A /tmp ~ | grep -c bad; find in -mindepth 1 ! -type l"), "0");
    assert!(!std::path::Path::new("/tmp/bad").exists());
}

#[test]
fn links_out_are_made_and_not_followed_and_nothing_becomes_more_than_the_users() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir in; echo mine > in/file; ln -s /etc/passwd in/was-link");
    let archive = joined(&[
        entry(EntryType::Symlink, "out", "/etc/passwd", b""),
        entry(EntryType::Regular, "file", "", b"theirs"),
        entry(EntryType::Regular, "was-link", "", b"a file now"),
        entry(EntryType::Regular, "new/deep", "", b"x"),
    ]);
    let reply = place.ask("PUT", "/archive?path=in", &[], &archive);
    assert_eq!(
        (reply.status, reply.json()["entries"].as_u64()),
        (200, Some(4)),
        "{}",
        reply.text()
    );
    assert_eq!(
        place.sh("readlink in/out; cat in/file in/was-link"),
        "/etc/passwd\ntheirsa file now"
    );
    assert_eq!(
        place.sh("stat -c '%U %a' in/file in/new/deep"),
        "user 755\nuser 755",
        "no set-user-ID"
    );
}

#[test]
fn what_is_no_archive_or_breaks_off_says_so() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    place.sh("mkdir in");
    let refused = place.ask("PUT", "/archive?path=in", &[], &[b'x'; 2000]);
    assert_eq!(place.refused(&refused, 400), "file_request_invalid");
    let whole = entry(EntryType::Regular, "file", "", &[b'x'; 5000]);
    let refused = place.ask("PUT", "/archive?path=in", &[], &whole[..3000]);
    assert_eq!(place.refused(&refused, 400), "file_request_invalid");
    assert_eq!(place.sh("ls -A in"), "", "half a file is no file");
    let missing = place.ask("PUT", "/archive?path=gone", &[], &whole);
    assert_eq!(place.refused(&missing, 404), "file_not_found");
}

#[test]
fn a_tree_that_cannot_be_read_whole_is_refused_before_any_byte() {
    let daemon = daemon!();
    let place = Place::new(&daemon);
    daemon
        .root_sh(&place.id, "mkdir -p /tmp/t && touch /tmp/t/secret && chmod 600 /tmp/t/secret")
        .ok();
    let refused = place.get("/archive?path=/tmp/t");
    assert_eq!(place.refused(&refused, 403), "file_not_permitted");
    assert!(refused.json()["detail"].as_str().expect("a detail").contains("t/secret"));
}
