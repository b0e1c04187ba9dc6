//! Large files are transferred in constant memory: the daemon's, and that of the sandbox, which is smaller than the
//! file.

use std::fs;
use std::io::Write;

use super::Place;
use crate::support::{Daemon, Ground, Raw, Setup, obstacle};

const MIB: usize = 1024 * 1024;

/// How much more memory than before the daemon may have had at any time.
const GROWTH_MAX_KIB: u64 = 32 * 1024;

/// What the whole file is made of, over and over; no two places of it are alike.
fn block() -> Vec<u8> {
    (0..MIB as u32 / 4)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

fn status_kib(daemon: &Daemon, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().expect("a number")
}

/// The most memory that the daemon has while `work` is done, less what it had before.
fn growth_kib(daemon: &Daemon, work: impl FnOnce()) -> u64 {
    // Makes the kernel forget the highest there was.
    fs::write(format!("/proc/{}/clear_refs", daemon.pid()), "5").expect("our own process");
    let before = status_kib(daemon, "VmRSS");
    work();
    status_kib(daemon, "VmHWM").saturating_sub(before)
}

fn up_and_down(blocks: usize, setup: &Setup) {
    let daemon = Daemon::start_with(setup);
    let size = blocks * MIB;
    let resources = serde_json::json!({ "memory_mb": 96, "disk_mb": 2 * blocks });
    let id = daemon.create_with(&serde_json::json!({ "resources": resources }));
    let place = Place { daemon: &daemon, id };
    let block = block();
    // Structures that are made once are not counted.
    assert_eq!(place.put("large", &block).status, 201);
    place.read("large");

    let head = |method: &str, length: usize| {
        let target = place.target("?path=large");
        let host = daemon.address();
        format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n")
    };
    let grown = growth_kib(&daemon, || {
        let mut raw = Raw::open(daemon.address());
        raw.stream.write_all(head("PUT", size).as_bytes()).expect("the daemon reads");
        for _ in 0..blocks {
            raw.stream.write_all(&block).expect("the daemon reads");
        }
        let reply = raw.reply("PUT");
        assert_eq!(reply.status, 200, "{}", reply.text());
    });
    assert!(grown <= GROWTH_MAX_KIB, "the daemon grew by {grown} KiB for {blocks} MiB up");
    assert_eq!(place.stat("large")["size"], size);

    let grown = growth_kib(&daemon, || {
        let mut raw = Raw::open(daemon.address());
        raw.send(head("GET", 0).as_bytes());
        let reply = raw.head();
        let length = reply.header("content-length").and_then(|length| length.parse().ok());
        assert_eq!((reply.status, length), (200, Some(size)));
        for number in 0..blocks {
            assert!(raw.exactly(MIB) == block, "block {number} is another");
        }
    });
    assert!(grown <= GROWTH_MAX_KIB, "the daemon grew by {grown} KiB for {blocks} MiB down");
}

#[test]
fn a_large_file_goes_up_and_down_in_constant_memory() {
    crate::skip_if!(obstacle());
    up_and_down(128, &Setup::default());
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn a_gigabyte_goes_up_and_down_in_constant_memory() {
    crate::skip_if!(obstacle());
    up_and_down(1024, &Setup::default().env("SANDKEEP_STORAGE_SIZE_MB", "3072"));
}

/// The filesystem gives back what is gone only with its next commit, or when it is needed.
#[test]
fn the_room_of_files_that_are_gone_can_be_used_at_once() {
    crate::skip_if!(obstacle());
    let daemon = Daemon::start_with(&Ground::Btrfs.setup());
    let place = Place::with(&daemon, &serde_json::json!({ "resources": { "disk_mb": 64 } }));
    let bytes = block().repeat(28);
    for round in 0..6 {
        // The old one and the new one fit, and no third.
        let reply = place.put("large", &bytes);
        assert!(matches!(reply.status, 200 | 201), "round {round}: {}", reply.text());
    }
    for over in ["rm -f ~/large", "true", "mv ~/large ~/old; rm ~/old"] {
        let write = "head -c 56M /dev/zero > ~/large";
        place.sh(&format!("for i in 1 2 3 4; do {over} && {write} || exit 1; done"));
    }
}
