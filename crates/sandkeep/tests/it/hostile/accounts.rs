//! Data that the daemon writes or holds for a tenant counts against the tenant's limits, and others are not affected.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, until};
use crate::templates::owners::ask;

const MIB: u64 = 1024 * 1024;
const SANDBOXES: &str = "/api/v1/sandboxes";

/// What the files below a directory hold on the disk.
fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => disk_bytes(&entry.path()),
            Ok(found) => found.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn output_ends_at_the_quota_of_the_organization_whoever_says_it_and_its_last_words_are_kept() {
    skip_if!(obstacle());
    let setup = Setup::default().env("SANDKEEP_QUOTAS_ORGANIZATION_DISK_MB", "40");
    let mut daemon = Daemon::start_with(&setup);
    let ids = [(); 2].map(|()| daemon.create_with(&json!({ "resources": { "disk_mb": 10 } })));
    let (small, flood) =
        (json!({ "command": "echo here" }), "head -c 20000000 /dev/zero; echo last words");
    let floods = || ids.iter().flat_map(|id| [(); 3].map(|()| id.as_str()));
    let processes: Vec<(&str, String)> = floods()
        .map(|id| {
            let body = json!({ "command": flood });
            let made = daemon.expect(201, "POST", &format!("{SANDBOXES}/{id}/processes"), &body);
            (id, made["id"].as_str().expect("an id").to_owned())
        })
        .collect();
    let execs: Vec<(&str, String)> =
        floods().map(|id| (id, daemon.begin(id, &json!({ "command": flood })))).collect();
    let written = || ids.iter().map(|id| disk_bytes(&daemon.home(id).join("execs"))).sum::<u64>();
    for (id, process) in &processes {
        until("a process has ended", Patience::Long, || {
            assert!(written() <= 40 * MIB, "{} bytes are written", written());
            let target = format!("{SANDBOXES}/{id}/processes/{process}");
            daemon.expect(200, "GET", &target, &Value::Null)["status"] == "exited"
        });
    }
    for (id, exec) in &execs {
        until("an exec has ended", Patience::Long, || {
            let (status, view) = daemon.request("GET", &daemon.exec_path(id, exec), &Value::Null);
            // One that has ended may have given way already.
            status == 404 || view["status"] == "exited"
        });
    }
    assert!(written() <= 40 * MIB, "{} bytes are written", written());
    assert!(written() > 10 * MIB, "what there is room for is kept");
    // Commands go on, in both, also for the next daemon.
    daemon.kill_9();
    daemon.start_again(&setup);
    for id in &ids {
        assert_eq!(daemon.exec(id, &small).ok(), "here");
        let said = daemon.sh(id, flood);
        assert!(said.stdout_text().ends_with("last words\n"));
        daemon.destroy(id);
    }
}

#[test]
fn below_the_reserve_nothing_is_written_for_tenants_and_what_makes_room_goes_on() {
    skip_if!(obstacle());
    let setup = Setup::default();
    let mut daemon = Daemon::start_with(&setup);
    let id = daemon.create();
    let running = daemon.begin(
        &id,
        &json!({ "command": "read line; head -c 9000000 /dev/zero", "stdin_open": true }),
    );
    assert!(daemon.stop().success());
    // More than any disk has: as if another had filled it.
    daemon.start_again(&setup.env("SANDKEEP_LIMITS_HOST_RESERVE_MB", "1000000000"));
    let refused = daemon.expect(
        507,
        "POST",
        &format!("{SANDBOXES}/{id}/execs"),
        &json!({ "command": "true" }),
    );
    assert_eq!(refused["code"], "storage_full", "{refused}");
    assert!(
        refused["detail"].as_str().expect("words").contains("kept for the daemon"),
        "{refused}"
    );
    let (status, refused) = daemon.send_bytes("/api/v1/uploads", vec![0; 1000]);
    assert_eq!(status, 507, "{refused}");
    let before = disk_bytes(&daemon.home(&id).join("execs"));
    let stdin = format!("{}/stdin", daemon.exec_path(&id, &running));
    assert_eq!(daemon.send_bytes(&stdin, b"go\n".to_vec()).0, 204);
    until("what runs has ended", Patience::Long, || {
        daemon.exec_view(&id, &running)["status"] == "exited"
    });
    let more = disk_bytes(&daemon.home(&id).join("execs")) - before;
    assert!(more <= MIB, "{more} bytes were written");
    let view = daemon.exec_view(&id, &running);
    assert_eq!(
        (&view["truncated"], &view["stdout_bytes"]),
        (&json!(true), &json!(9_000_000)),
        "{view}"
    );
    daemon.verb(&id, "stop");
    daemon.destroy(&id);
}

#[test]
fn uploads_count_while_they_are_sent_and_while_they_are_kept() {
    skip_if!(obstacle());
    let setup = Setup::default().env("SANDKEEP_QUOTAS_USER_HOST_MB", "2");
    let daemon = Daemon::start_with(&setup);
    let upload = |bytes: u64| daemon.send_bytes("/api/v1/uploads", vec![7; bytes as usize]);
    let (status, refused) = upload(3 * MIB);
    assert!(status == 429 && refused.contains("host_mb"), "{status} {refused}");
    let (status, kept) = upload(3 * MIB / 2);
    assert_eq!(status, 201, "what was refused is given back: {kept}");
    let (status, refused) = upload(MIB);
    assert!(status == 429 && refused.contains("quota_exceeded"), "{status} {refused}");
    let kept: Value = serde_json::from_str(&kept).expect("JSON");
    let target = format!("/api/v1/uploads/{}", kept["id"].as_str().expect("an id"));
    daemon.expect(204, "DELETE", &target, &Value::Null);
    assert_eq!(upload(MIB).0, 201);
}

/// Bytes, compressed so that more can follow.
fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("in memory");
    encoder.finish().expect("in memory")
}

fn header(name: &str, bytes: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path(name).expect("a short name");
    header.set_size(bytes);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// An archive of one file of zeros, of a multiple of 5 MiB: much of nothing takes little.
fn zeros(mib: u64) -> Vec<u8> {
    let part = packed(&vec![0; 5 * MIB as usize]);
    let parts = part.repeat(usize::try_from(mib / 5).expect("few"));
    [packed(&header("zeros", mib * MIB)), parts, packed(&[0; 1024])].concat()
}

/// An archive of empty files.
fn empty_files(count: u32) -> Vec<u8> {
    let headers = (0..count).flat_map(|n| header(&format!("d{}/{n}", n % 100), 0));
    packed(&headers.chain([0; 1024]).collect::<Vec<u8>>())
}

#[test]
fn an_archive_is_not_unpacked_beyond_the_quota_for_templates_neither_by_bytes_nor_by_files() {
    skip_if!(obstacle());
    let setup = Setup::default()
        .env("SANDKEEP_STORAGE_SIZE_MB", "512")
        .env("SANDKEEP_STORAGE_MAX_MB", "512")
        .env("SANDKEEP_QUOTAS_USER_TEMPLATE_MB", "20");
    let daemon = Daemon::start_with(&setup);
    let import = |name: &str, packed: Vec<u8>| {
        let (status, said) = daemon.put_bytes(&format!("/api/v1/templates/{name}/upload"), packed);
        (status, serde_json::from_str::<Value>(&said).unwrap_or_else(|_| panic!("{said}")))
    };
    let (status, refused) = import("bomb", zeros(100));
    assert_eq!((status, &refused["code"]), (429, &json!("quota_exceeded")), "{refused}");
    // Decoding or unpacking all of it first would find that 100 are requested.
    let detail = refused["detail"].as_str().expect("words");
    let soon = detail.contains("20 in use") || detail.contains("21 requested");
    assert!(detail.contains("20 template_mb") && soon, "{refused}");
    let (status, refused) = import("files", empty_files(30_000));
    assert_eq!((status, &refused["code"]), (429, &json!("quota_exceeded")), "{refused}");
    // Nothing of it is left that would count, and the pool has its room again.
    let (status, made) = import("good", zeros(15));
    assert_eq!(status, 201, "{made}");
    daemon.create();
}

#[test]
fn what_is_unpacked_stops_at_the_critical_mark_of_the_pool_and_others_can_still_write() {
    skip_if!(obstacle());
    let setup = Setup::default()
        .env("SANDKEEP_STORAGE_SIZE_MB", "512")
        .env("SANDKEEP_STORAGE_MAX_MB", "512")
        .env("SANDKEEP_LIMITS_POOL_WARNING", "0.2")
        .env("SANDKEEP_LIMITS_POOL_CRITICAL", "0.3");
    let daemon = Daemon::start_with(&setup);
    let other = daemon.create();
    let bomb = zeros(200);
    let (status, refused) = daemon.put_bytes("/api/v1/templates/bomb/upload", bomb);
    assert!(status == 507 && refused.contains("pool_full"), "{status} {refused}");
    daemon.sh(&other, "head -c 20000000 /dev/urandom > ~/mine; sync ~/mine").ok();
}

/// A key of this organization.
fn key(daemon: &Daemon, organization: &str) -> String {
    key_of(&create_key(&daemon.data_dir(), organization, "someone", &[])).to_owned()
}

#[test]
fn one_organization_cannot_take_all_places_for_uploads() {
    use std::net::TcpStream;
    skip_if!(obstacle());
    let daemon = with_admin(&Setup::default());
    let [greedy, other] = ["greedy", "other"].map(|name| key(&daemon, name));
    // Each sends a part and holds its place.
    let open = |key: &str| {
        let mut stream = TcpStream::connect(daemon.address()).expect("connected");
        let head = format!(
            "POST /api/v1/uploads HTTP/1.1\r\nhost: {}\r\nx-api-key: {key}\r\ncontent-length: 100000\r\n\r\nsome bytes",
            daemon.address()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    };
    let held: Vec<TcpStream> = (0..64).map(|_| open(&greedy)).collect();
    let send = |key: &str| {
        let sent = [("x-api-key", key), ("content-type", "application/octet-stream")];
        daemon
            .request_with(&sent, "POST", "/api/v1/uploads", &json!("an archive"))
            .expect("an answer")
    };
    until("the greedy one has all it gets", Patience::Long, || send(&greedy).0 == 429);
    let (status, said) = send(&other);
    assert_eq!(status, 201, "{said}");
    drop(held);
    until("what was broken off gives its place back", Patience::Long, || send(&greedy).0 == 201);
    let (status, _) = ask(&daemon, &other, "GET", SANDBOXES, &Value::Null);
    assert_eq!(status, 200);
}

/// The memory that a process has, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
}

#[test]
fn answers_that_nobody_reads_cost_no_more_memory_than_the_output_itself() {
    use std::io::Read;
    use std::net::TcpStream;
    const EXECS: u64 = 12;
    skip_if!(obstacle());
    let daemon = Daemon::start();
    let id = daemon.create();
    let before = resident_bytes(daemon.pid());
    // JSON writes each of these bytes as six.
    let body = json!({ "command": "head -c 5000000 /dev/zero | tr '\\0' '\\1'" }).to_string();
    let ask = || {
        let mut stream = TcpStream::connect(daemon.address()).expect("connected");
        let head = format!(
            "POST {SANDBOXES}/{id}/execs HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            daemon.address(),
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        stream
    };
    let mut unread: Vec<TcpStream> = (0..EXECS).map(|_| ask()).collect();
    for stream in &mut unread {
        let mut status = [0; 12];
        stream.read_exact(&mut status).expect("the answer begins");
        assert_eq!(status, *b"HTTP/1.1 200");
    }
    let grown = resident_bytes(daemon.pid()).saturating_sub(before);
    assert!(grown < EXECS * 20_000_000, "{grown} bytes for {} of output", EXECS * 5_000_000);
    // A client that reads gets all of it.
    let mut whole = String::new();
    let mut last = unread.pop().expect("at least one");
    let until_end = |text: &String| text.ends_with("}\r\n0\r\n\r\n");
    let mut piece = vec![0; 1 << 20];
    while !until_end(&whole) {
        let read = last.read(&mut piece).expect("more");
        assert!(read > 0, "it broke off");
        whole.push_str(std::str::from_utf8(&piece[..read]).expect("escaped, so ASCII"));
    }
    assert_eq!(whole.matches("\\u0001").count(), 5_000_000, "no escape is cut in two");
}
