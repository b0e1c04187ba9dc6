//! Neither links that sandboxes put into a codebase nor paths of callers lead out of it: the API's file operations have
//! no other root.

use serde_json::{Value, json};

use super::{Refused, files, make, read, with_codebase, write};
use crate::skip_if;
use crate::support::{Daemon, obstacle};

/// A file of the host that must not be reached.
const SECRET: &str = "/etc/hostname";

#[test]
fn links_in_a_codebase_lead_nowhere_outside() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    let outside = tempfile::Builder::new().prefix("skout-").tempdir().expect("a directory");
    std::fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("a mode");
    let target = outside.path().to_str().expect("text");
    let sandbox = with_codebase(&daemon, "code");
    let plant = format!(
        "ln -s {SECRET} file && ln -s / root && ln -s /proc/self/root proc && ln -s {target} dir && \
         ln -s ../../../../../../../../etc up && ln -s /proc/1/cwd cwd && mkdir -p a && echo own > a/own && \
         ln -s /a/own inside"
    );
    daemon.sh(&sandbox, &plant).ok();
    for path in
        ["file", "root/etc/hostname", "proc/etc/hostname", "up/hostname", "cwd/etc/hostname"]
    {
        let found = read(&daemon, "code", path);
        assert!(found.is_err(), "{path} leads to {found:?}");
    }
    for path in [SECRET, "../../../etc/hostname", "a/../../../../etc/hostname", "/../etc/hostname"]
    {
        let found = read(&daemon, "code", path);
        assert_eq!(found, Err(Refused::with("file_not_found")), "{path}");
    }
    // An absolute link begins at the root of the codebase.
    assert_eq!(read(&daemon, "code", "inside").as_deref(), Ok("own\n"));
    for path in ["dir/planted", "proc/tmp/planted", "root/planted"] {
        let (status, said) =
            daemon.put_bytes(&format!("{}?path={path}&parents=true", files("code")), b"x".to_vec());
        assert!(path == "root/planted" || status >= 400, "{path}: {status} {said}");
    }
    assert_eq!(std::fs::read_dir(outside.path()).expect("a directory").count(), 0);
    let archive = format!("{}/archive", files("code"));
    let (status, packed) = daemon.fetch(&archive, "*/*").expect("an answer");
    assert_eq!(status, 200);
    let secret = std::fs::read(SECRET).expect("the host has a name");
    let secret = secret.trim_ascii();
    assert!(
        !packed.windows(secret.len()).any(|part| part == secret),
        "the archive has the host's file"
    );
}

#[test]
fn archives_write_nothing_outside() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    write(&daemon, "code", "kept", "kept");
    let entry = |name: &str, kind: tar::EntryType, link: Option<&str>| {
        let mut header = tar::Header::new_gnu();
        let bytes = header.as_gnu_mut().expect("a GNU header");
        bytes.name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(0);
        if let Some(link) = link {
            header.set_link_name_literal(link).expect("a short name");
        }
        header.set_cksum();
        let mut archive = tar::Builder::new(Vec::new());
        archive.append(&header, std::io::empty()).expect("in memory");
        archive.into_inner().expect("in memory")
    };
    use tar::EntryType::{Block, Link, Regular};
    for (archive, what) in [
        (entry("../out", Regular, None), "a name with .."),
        (entry("/tmp/skcb-out", Regular, None), "an absolute name"),
        (entry("hard", Link, Some("../../etc/passwd")), "a hard link to outside"),
        (entry("disk", Block, None), "a device"),
    ] {
        let (status, said) = daemon.put_bytes(&format!("{}/archive", files("code")), archive);
        assert!((400..500).contains(&status), "{what}: {status} {said}");
    }
    assert!(!std::path::Path::new("/tmp/skcb-out").exists());
    let (_, listed) = daemon.request("GET", &format!("{}/list", files("code")), &Value::Null);
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
}

/// A sandbox exchanges a directory for a link to outside, again and again, while the API writes and reads below it.
#[test]
fn a_race_of_renames_moves_no_write_outside() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    let outside = tempfile::Builder::new().prefix("skrace-").tempdir().expect("a directory");
    std::fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("a mode");
    std::fs::write(outside.path().join("secret"), "of the host").expect("a file");
    let target = outside.path().to_str().expect("text");
    let sandbox = with_codebase(&daemon, "code");
    let race = format!(
        "mkdir -p d && ln -sfn {target} l && (while :; do mv -T d x; mv -T l d; mv -T d l; mv -T x d; done) \
         >/dev/null 2>&1 & echo $!"
    );
    daemon.sh(&sandbox, &race).ok();
    for round in 0..40 {
        let (status, said) =
            daemon.put_bytes(&format!("{}?path=d/planted-{round}", files("code")), b"x".to_vec());
        assert!(status < 500, "{status} {said}");
        let found = read(&daemon, "code", "d/secret");
        assert!(found.is_err(), "the host's file was read: {found:?}");
    }
    let left: Vec<_> = std::fs::read_dir(outside.path())
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(left, ["secret"], "written outside");
}

/// Hard links cannot cross into or out of a codebase, and no device or set-user-ID program in it works.
#[test]
fn a_mounted_codebase_gives_a_sandbox_nothing_of_the_host() {
    skip_if!(obstacle());
    let daemon = Daemon::start();
    make(&daemon, "code");
    let spec = json!({ "codebase": "code", "privilege": "root" });
    let sandbox = daemon.create_with(&spec);
    let tried = "ln /etc/passwd here 2>/dev/null; echo x > ~/own; ln ~/own here 2>/dev/null; \
                 ls /workspace/.. | grep -c '^storage$'; ls -A; \
                 grep ' /workspace ' /proc/self/mounts | grep nosuid | grep -c nodev; \
                 cd /workspace/../../../.. && pwd";
    assert_eq!(daemon.sh(&sandbox, tried).ok(), "0\n1\n/");
    // The program that the API runs on the host belongs to nobody inside, and sees the tree alone.
    let (_, root) =
        daemon.request("GET", &format!("{}/list?path=/..", files("code")), &Value::Null);
    assert_eq!(root["items"], json!([]));
    let (_, proc) =
        daemon.request("GET", &format!("{}/list?path=/proc", files("code")), &Value::Null);
    assert_eq!(proc["code"], "file_not_found", "{proc}");
}
