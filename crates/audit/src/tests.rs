mod bounds;
mod chaining;
mod crashes;
mod mapping;
mod reference;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;

use crate::files::Files;
use crate::{
    Actor, AuditLog, Bounds, Effect, Entry, OnFull, Options, Outcome, Reader, Reads, Record,
    Request,
};

/// Files of 2 KiB, so that a few records fill one.
const SMALL: Bounds = Bounds { max_bytes: 16 * 1024, max_age: Duration::from_secs(1 << 30) };
const LARGE: Bounds = Bounds { max_bytes: 1 << 30, max_age: Duration::from_secs(1 << 30) };

fn options(bounds: Bounds, on_full: OnFull) -> Options {
    Options { bounds, on_full, reads: Reads::Skip, lost: Counter::default() }
}

fn open(data: &Path, bounds: Bounds) -> Arc<AuditLog> {
    AuditLog::open(data, options(bounds, OnFull::Refuse), "test")
}

/// Files stay as small as in `SMALL`, and none expires.
fn open_unbounded(data: &Path) -> Arc<AuditLog> {
    let log = open(data, SMALL);
    let firsts = Files::of(data).list().expect("files");
    assert!(!firsts.is_empty());
    log
}

fn actor(organization: &str) -> Actor {
    Actor {
        organization: organization.to_owned(),
        user: "ann".to_owned(),
        project: None,
        key: Some("k1".to_owned()),
    }
}

fn change(number: u64) -> Request {
    Request {
        door: "rest".to_owned(),
        operation: "create_sandbox".to_owned(),
        method: Some("POST".to_owned()),
        actor: Some(actor("acme")),
        resource: Some(number.to_string()),
        status: Some(201),
        ..Request::default()
    }
}

fn refusal(organization: &str, code: &str) -> Request {
    Request {
        operation: "get_sandbox".to_owned(),
        actor: Some(actor(organization)),
        effect: Effect::Reads,
        outcome: Outcome::Refused,
        code: Some(code.to_owned()),
        ..Request::default()
    }
}

fn write(log: &Arc<AuditLog>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let _room = log.admit().expect("space");
        log.record(change(number)).expect("written");
    }
}

fn read(data: &Path) -> Vec<Record> {
    let (mut reader, mut all) = (Reader::open(data, 0), Vec::new());
    loop {
        let batch = reader.read().expect("a readable log");
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
    }
}

fn requests(data: &Path) -> Vec<Request> {
    let request = |record: Record| match record.entry {
        Entry::Request(request) => Some(*request),
        _ => None,
    };
    read(data).into_iter().filter_map(request).collect()
}

fn numbers(data: &Path) -> Vec<u64> {
    requests(data).iter().filter_map(|request| request.resource.as_ref()?.parse().ok()).collect()
}

fn paths(data: &Path) -> Vec<PathBuf> {
    let files = Files::of(data);
    files.list().expect("files").into_iter().map(|first| files.path(first)).collect()
}

fn newest(data: &Path) -> PathBuf {
    paths(data).pop().expect("a file")
}

fn lines(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).expect("a file");
    bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect()
}
