//! What one tenant may take of the log.

use super::*;

#[test]
fn a_flood_of_refusals_by_one_organization_takes_its_share_and_no_more() {
    let dir = tempfile::tempdir().expect("a directory");
    let bounds = Bounds { max_bytes: 512 * 1024, ..LARGE };
    let log = open(dir.path(), bounds);
    write(&log, [1]);
    // No two are the same, so none is counted with another.
    for number in 0..20_000 {
        log.record(refusal("evil", &number.to_string())).expect("written or counted");
    }
    log.record(refusal("other", "forbidden")).expect("written");
    write(&log, [2]);
    log.close();
    assert_eq!(numbers(dir.path()), [1, 2], "nothing of others was pushed out");
    let all = requests(dir.path());
    let of = |organization: &str| {
        let by = |request: &&Request| {
            request.actor.as_ref().is_some_and(|actor| actor.organization == organization)
        };
        all.iter().filter(by).count() as u64
    };
    assert_eq!(of("other"), 1);
    assert!(of("evil") > 0);
    let suppressed: u64 = read(dir.path())
        .into_iter()
        .filter_map(|record| match record.entry {
            Entry::Suppressed { organization, count }
                if organization.as_deref() == Some("evil") =>
            {
                Some(count)
            }
            _ => None,
        })
        .sum();
    assert_eq!(of("evil") + suppressed, 20_000, "none is lost from the count");
    let size = fs::metadata(newest(dir.path())).expect("a file").len();
    assert!(size < 64 * 1024 / 8 + 4096, "{size}");
}

#[test]
fn repeats_are_one_record_with_their_number_and_changes_never_are() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), LARGE);
    for _ in 0..500 {
        log.record(refusal("acme", "forbidden")).expect("counted");
        log.record(change(7)).expect("written");
    }
    log.close();
    let all = requests(dir.path());
    let changes = all.iter().filter(|request| request.outcome == Outcome::Success).count();
    assert_eq!(changes, 500);
    let refused: Vec<&Request> =
        all.iter().filter(|request| request.outcome == Outcome::Refused).collect();
    assert!(refused.len() < 500);
    assert_eq!(refused.iter().map(|request| request.count).sum::<u64>(), 500);
}

#[test]
fn reads_are_recorded_only_if_the_setting_says_so() {
    for (reads, expected) in [(Reads::Skip, 0), (Reads::Record, 1)] {
        let dir = tempfile::tempdir().expect("a directory");
        let options = Options { reads, ..options(LARGE, OnFull::Refuse) };
        let log = AuditLog::open(dir.path(), options, "test");
        let seen = Request { outcome: Outcome::Success, code: None, ..refusal("acme", "") };
        log.record(seen).expect("written or skipped");
        assert_eq!(requests(dir.path()).len(), expected);
    }
}

#[test]
fn no_text_of_a_caller_makes_a_record_too_long() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), LARGE);
    let long = "\u{1}".repeat(100_000);
    let request = Request {
        operation: long.clone(),
        route: Some(long.clone()),
        correlation_id: Some(long.clone()),
        resource: Some(long.clone()),
        actor: Some(Actor { user: long.clone(), project: Some(long.clone()), ..actor(&long) }),
        ..change(1)
    };
    log.record(request).expect("written");
    let line = lines(&newest(dir.path())).pop().expect("a record");
    assert!((line.len() as u64) < sandkeep_core::limits::AUDIT_RECORD_MAX_BYTES);
    assert_eq!(requests(dir.path()).len(), 1);
}
