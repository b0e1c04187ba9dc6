//! What a crash, a full disk or a second process leaves.

use super::*;
use crate::{AUDIT, GapReason, Severity, verify};
use proptest::prelude::*;

#[test]
fn a_record_torn_at_any_byte_is_cut_off_and_said_and_the_chain_holds() {
    let dir = tempfile::tempdir().expect("a directory");
    write(&open(dir.path(), LARGE), 1..=2);
    let path = newest(dir.path());
    let whole = fs::read(&path).expect("a file");
    let last = lines(&path).pop().expect("a record");
    let head = dir.path().join(AUDIT).join("head");
    let noted = fs::read(&head).expect("a head");
    for torn in 1..last.len() {
        // The record is half written, and the head was not yet noted.
        fs::write(&path, &whole[..whole.len() - torn]).expect("written");
        fs::remove_file(&head).expect("removed");
        write(&open(dir.path(), LARGE), [3]);
        let report = verify(dir.path()).expect("a log");
        assert!(report.is_intact(), "{torn}: {report:?}");
        assert!(report.findings.iter().any(|finding| finding.severity == Severity::Note));
        assert_eq!(numbers(dir.path()), [1, 3], "{torn}");
        fs::write(&path, &whole).expect("written");
        fs::write(&head, &noted).expect("written");
    }
}

#[test]
fn a_file_whose_header_was_cut_off_never_was() {
    let dir = tempfile::tempdir().expect("a directory");
    write(&open(dir.path(), LARGE), 1..=2);
    let next = Files::of(dir.path()).path(4);
    for left in ["", "sandkeep-audit 1 000"] {
        fs::write(&next, left).expect("written");
        write(&open(dir.path(), LARGE), [3]);
        assert!(!next.exists());
        assert!(verify(dir.path()).expect("a log").is_intact());
    }
}

#[test]
fn records_of_a_second_process_are_in_the_same_chain() {
    let dir = tempfile::tempdir().expect("a directory");
    let daemon = open(dir.path(), SMALL);
    for round in 0..30 {
        write(&daemon, [2 * round]);
        AuditLog::beside(dir.path()).record(change(2 * round + 1)).expect("written");
    }
    let report = verify(dir.path()).expect("a log");
    assert!(report.is_intact(), "{report:?}");
    let all = numbers(dir.path());
    assert!(all.ends_with(&[56, 57, 58, 59]), "{all:?}");
}

#[test]
fn many_writers_at_once_make_one_chain_without_gaps() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), LARGE);
    let writers: Vec<_> = (0..4_u64)
        .map(|writer| {
            let (log, data) = (Arc::clone(&log), dir.path().to_owned());
            std::thread::spawn(move || match writer {
                0 => (0..50).for_each(|number| {
                    AuditLog::beside(&data).record(change(number)).expect("written");
                }),
                _ => write(&log, writer * 100..writer * 100 + 50),
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    assert!(verify(dir.path()).expect("a log").is_intact());
    let mut all = numbers(dir.path());
    all.sort_unstable();
    let expected: Vec<u64> = (0..4).flat_map(|writer| writer * 100..writer * 100 + 50).collect();
    assert_eq!(all, expected);
}

#[test]
fn a_reader_skips_nothing_while_files_follow_each_other() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), Bounds { max_bytes: 8 * 2048, ..LARGE });
    let data = dir.path().to_owned();
    let writer = std::thread::spawn(move || write(&log, 1..=40));
    let (mut reader, mut seen) = (Reader::open(&data, 0), Vec::new());
    loop {
        // The end is looked for before the last read.
        let is_over = writer.is_finished();
        let batch = reader.read().expect("a readable log");
        if batch.is_empty() && is_over {
            break;
        }
        seen.extend(batch.into_iter().map(|record| record.seq));
        std::thread::yield_now();
    }
    writer.join().expect("no panic");
    let last = *seen.last().expect("records");
    let first = seen[0];
    assert_eq!(seen, (first..=last).collect::<Vec<_>>());
}

/// A filesystem of its own that is smaller than what is written to it; `None` without the right to mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory");
        let size = Some(c"size=1m");
        match rustix::mount::mount(
            "tmpfs",
            dir.path(),
            "tmpfs",
            rustix::mount::MountFlags::empty(),
            size,
        ) {
            Ok(()) => Some(Self(dir)),
            Err(error) => {
                eprintln!("SKIP full_disk: needs to mount a tmpfs: {error}");
                None
            }
        }
    }

    /// Leaves no room at all.
    fn fill(&self) -> PathBuf {
        let path = self.0.path().join("filler");
        let mut file = fs::File::create(&path).expect("a file");
        let page = [1_u8; 4096];
        while std::io::Write::write_all(&mut file, &page).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_refuses_changes_before_they_begin_and_keeps_what_it_promised() {
    let Some(disk) = SmallDisk::mount() else { return };
    let log = AuditLog::open(disk.0.path(), options(LARGE, OnFull::Refuse), "test");
    write(&log, 1..=3);
    let promised: Vec<_> = (0..5).map(|_| log.admit().expect("space")).collect();
    let filler = disk.fill();
    // Refusals take nothing of what was promised.
    for number in 0..2_000 {
        let _ = log.record(refusal("evil", &number.to_string()));
    }
    for number in 4..=8 {
        log.record(change(number)).expect("it was promised");
    }
    drop(promised);
    let mut admitted = Vec::new();
    while let Ok(room) = log.admit() {
        admitted.push(room);
        assert!(admitted.len() < 1_000, "a full disk has no end");
    }
    drop(admitted);
    fs::remove_file(filler).expect("removed");
    write(&log, [9]);
    assert_eq!(numbers(disk.0.path()).into_iter().filter(|n| *n <= 9).max(), Some(9));
    assert!(verify(disk.0.path()).expect("a log").is_intact());
}

#[test]
fn a_full_disk_keeps_nobody_from_starting_and_the_gap_is_said_afterwards() {
    let Some(disk) = SmallDisk::mount() else { return };
    let filler = disk.fill();
    let options = options(LARGE, OnFull::Continue);
    let lost = options.lost.clone();
    let log = AuditLog::open(disk.0.path(), options, "test");
    for number in 1..=3 {
        let _room = log.admit().expect("changes go on");
        assert!(log.record(change(number)).is_err());
    }
    assert_eq!(lost.get(), 3);
    fs::remove_file(filler).expect("removed");
    log.record(change(4)).expect("written");
    let entries: Vec<Entry> = read(disk.0.path()).into_iter().map(|record| record.entry).collect();
    assert!(entries.contains(&Entry::Gap { reason: GapReason::Full, records: 3 }), "{entries:?}");
    assert!(verify(disk.0.path()).expect("a log").is_intact());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// However often the daemon is killed in the middle of a write, every record that was acknowledged is there, in
    /// order, and the chain verifies.
    #[test]
    fn acknowledged_records_survive_any_number_of_crashes(
        rounds in prop::collection::vec((0_u64..12, 0_usize..120), 1..6),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut number, mut acknowledged) = (0, Vec::new());
        for (count, torn) in rounds {
            let log = open(dir.path(), Bounds { max_bytes: 8 * 1024, ..LARGE });
            let numbers: Vec<u64> = (number + 1..=number + count).collect();
            number += count;
            write(&log, numbers.iter().copied());
            acknowledged.extend(numbers);
            let path = newest(dir.path());
            let mut file = fs::read(&path).expect("a file");
            file.extend(std::iter::repeat_n(b'0', torn));
            fs::write(&path, file).expect("written");
        }
        drop(open(dir.path(), LARGE));
        let report = verify(dir.path()).expect("a log");
        prop_assert!(report.is_intact(), "{:?}", report);
        let found = numbers(dir.path());
        prop_assert!(acknowledged.ends_with(&found));
        prop_assert!(report.first != Some(1) || found == acknowledged);
    }
}
