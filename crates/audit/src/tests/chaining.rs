//! What `verify` must notice.

use super::*;
use crate::{AUDIT, verify, verify_against};

fn first_bad(data: &Path) -> Option<u64> {
    verify(data).expect("a readable log").first_bad().map(|finding| finding.seq)
}

/// Three files of a few records each.
fn sample() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), Bounds { max_bytes: 8 * 1024, ..LARGE });
    write(&log, 1..=7);
    log.close();
    assert!(paths(dir.path()).len() >= 3, "{:?}", paths(dir.path()));
    assert_eq!(first_bad(dir.path()), None);
    dir
}

#[test]
fn an_untouched_log_is_intact_and_its_head_is_the_last_record() {
    let dir = tempfile::tempdir().expect("a directory");
    assert!(verify(dir.path()).expect("no log").is_intact());
    let log = open(dir.path(), LARGE);
    write(&log, 1..=5);
    let report = verify(dir.path()).expect("a log");
    assert!(report.is_intact() && report.findings.is_empty(), "{report:?}");
    assert_eq!((report.first, report.last, report.records), (Some(1), Some(6), 6));
    let head = log.head().expect("readable").expect("records");
    assert_eq!(report.head, Some(head.hash.to_string()));
    assert_eq!(head.seq, 6);
}

#[test]
fn a_change_of_any_byte_of_any_file_is_detected() {
    let dir = sample();
    let head = dir.path().join(AUDIT).join("head");
    for path in paths(dir.path()).into_iter().chain([head]) {
        let whole = fs::read(&path).expect("a file");
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            fs::write(&path, &changed).expect("written");
            assert!(first_bad(dir.path()).is_some(), "{} byte {at}", path.display());
        }
        fs::write(&path, &whole).expect("written");
    }
    assert_eq!(first_bad(dir.path()), None, "it is as it was");
}

#[test]
fn removing_reordering_inserting_or_cutting_off_records_is_detected() {
    let dir = sample();
    for (file, path) in paths(dir.path()).into_iter().enumerate() {
        let whole = lines(&path);
        let tamper = |what: &str, lines: Vec<Vec<u8>>| {
            fs::write(&path, lines.concat()).expect("written");
            assert!(first_bad(dir.path()).is_some(), "file {file}: {what}");
        };
        for at in 1..whole.len() {
            let mut removed = whole.clone();
            removed.remove(at);
            tamper("a record removed", removed);
            let mut repeated = whole.clone();
            repeated.insert(at, whole[at].clone());
            tamper("a record repeated", repeated);
            tamper("the rest cut off", whole[..at].to_vec());
        }
        for at in 1..whole.len() - 1 {
            let mut swapped = whole.clone();
            swapped.swap(at, at + 1);
            tamper("two records swapped", swapped);
        }
        fs::write(&path, whole.concat()).expect("written");
    }
    assert_eq!(first_bad(dir.path()), None, "it is as it was");
}

#[test]
fn a_missing_file_is_detected_wherever_it_was() {
    let dir = sample();
    for path in paths(dir.path()) {
        let whole = fs::read(&path).expect("a file");
        fs::remove_file(&path).expect("removed");
        assert!(first_bad(dir.path()).is_some(), "{}", path.display());
        fs::write(&path, whole).expect("written");
    }
    assert_eq!(first_bad(dir.path()), None);
}

#[test]
fn a_log_that_was_cut_off_while_nobody_wrote_says_so_for_ever() {
    let dir = tempfile::tempdir().expect("a directory");
    write(&open(dir.path(), LARGE), 1..=5);
    let path = newest(dir.path());
    let whole = lines(&path);
    fs::write(&path, whole[..whole.len() - 2].concat()).expect("written");
    write(&open(dir.path(), LARGE), 6..=7);
    let report = verify(dir.path()).expect("a log");
    let bad = report.first_bad().expect("it is noticed");
    assert!(bad.what.contains("the 2 records before this one were missing"), "{bad:?}");
    assert_eq!(numbers(dir.path()), [1, 2, 3, 6, 7]);
    assert_eq!(read(dir.path()).last().map(|record| record.seq), Some(10), "no number twice");
}

#[test]
fn a_damaged_file_is_left_as_evidence_and_the_log_goes_on_in_another() {
    let dir = tempfile::tempdir().expect("a directory");
    write(&open(dir.path(), LARGE), 1..=5);
    let path = newest(dir.path());
    let mut damaged = fs::read(&path).expect("a file");
    let at = damaged.len() / 2;
    damaged[at] ^= 1;
    fs::write(&path, &damaged).expect("written");
    write(&open(dir.path(), LARGE), 6..=7);
    assert_eq!(fs::read(&path).expect("a file"), damaged);
    assert_eq!(paths(dir.path()).len(), 2);
    let report = verify(dir.path()).expect("a log");
    assert!(!report.is_intact());
    let whats: Vec<&str> = report.findings.iter().map(|finding| finding.what.as_str()).collect();
    assert!(whats[0].contains("not what was written"), "{whats:?}");
    assert_eq!(report.last, Some(10), "the new file was checked to its end: {whats:?}");
}

#[test]
fn expired_files_are_removed_and_the_chain_still_verifies() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open_unbounded(dir.path());
    write(&log, 1..=200);
    let size: u64 =
        paths(dir.path()).iter().map(|path| fs::metadata(path).expect("a file").len()).sum();
    assert!(size <= SMALL.max_bytes + 4096, "{size}");
    let report = verify(dir.path()).expect("a log");
    assert!(report.is_intact(), "{report:?}");
    assert!(report.first.expect("records") > 1, "the oldest are gone");
    // One more by hand is not the same.
    fs::remove_file(&paths(dir.path())[0]).expect("removed");
    let report = verify(dir.path()).expect("a log");
    let bad = report.first_bad().expect("it is noticed");
    assert!(bad.what.contains("does not say that they expired"), "{bad:?}");
}

#[test]
fn a_log_that_was_rewritten_as_a_whole_is_told_from_a_head_that_was_noted_elsewhere() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), LARGE);
    write(&log, 1..=3);
    let head = log.head().expect("readable");
    write(&log, 4..=5);
    assert!(verify_against(dir.path(), head).expect("a log").is_intact());
    drop(log);
    fs::remove_dir_all(dir.path().join(AUDIT)).expect("removed");
    assert!(!verify_against(dir.path(), head).expect("no log").is_intact());
    write(&open(dir.path(), LARGE), 11..=15);
    assert!(verify(dir.path()).expect("a log").is_intact(), "it is right by itself");
    assert!(!verify_against(dir.path(), head).expect("a log").is_intact());
}
