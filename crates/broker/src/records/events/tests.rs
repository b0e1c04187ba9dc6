use std::fs;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use sandkeep_core::Owner;
use sandkeep_core::event::Event;

const SMALL: LogBounds = LogBounds { segment_bytes: 2_000, total_bytes: 10_000 };
const BOOT: &str = "boot-1";

fn open(data: &Path, boot: &str, bounds: LogBounds) -> Arc<EventLog> {
    Arc::new(EventLog::open(data, boot, bounds, Counter::default()).expect("a log"))
}

fn subject() -> Subject {
    Subject { owner: Owner::local(), sandbox: None }
}

/// A kind that can be told from others by its number.
fn numbered(number: u64) -> EventKind {
    EventKind::PolicyRefused { code: "test".to_owned(), count: number }
}

fn append(log: &EventLog, number: u64) -> EventSeq {
    log.append(Timestamp::UNIX_EPOCH, &subject(), &numbered(number))
}

fn append_all(log: &EventLog, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        append(log, number);
    }
}

fn read_all(log: &EventLog, after: EventSeq) -> Vec<Delivery> {
    let (mut cursor, mut all) = (Cursor::new(after), Vec::new());
    loop {
        let batch = cursor.read(log).expect("a readable log");
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
    }
}

fn events(log: &EventLog, after: EventSeq) -> Vec<Event> {
    let only = |delivery| match delivery {
        Delivery::Event(event) => *event,
        Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
    };
    read_all(log, after).into_iter().map(only).collect()
}

fn numbers(events: &[Event]) -> Vec<u64> {
    let number = |event: &Event| match event.kind {
        EventKind::PolicyRefused { count, .. } => count,
        _ => panic!("{event:?}"),
    };
    events.iter().map(number).collect()
}

fn seqs(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.seq.get()).collect()
}

#[test]
fn events_are_read_in_order_and_numbers_go_on_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    assert_eq!(log.last(), EventSeq::START);
    append_all(&log, 1..=20);
    drop(log);
    let log = open(dir.path(), BOOT, SMALL);
    assert_eq!(log.last(), EventSeq::new(20));
    assert_eq!(append(&log, 21), EventSeq::new(21));
    let all = events(&log, EventSeq::START);
    assert_eq!(numbers(&all), (1..=21).collect::<Vec<_>>());
    assert_eq!(seqs(&all), (1..=21).collect::<Vec<_>>());
    assert_eq!(numbers(&events(&log, EventSeq::new(17))), [18, 19, 20, 21]);
    assert!(events(&log, log.last()).is_empty());
}

#[test]
fn a_tail_that_was_torn_at_any_byte_is_cut_and_nothing_before_it_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, LogBounds::default());
    append_all(&log, 1..=3);
    drop(log);
    let path = segment::path(&dir.path().join(EVENTS), EventSeq::new(1));
    let whole = fs::read(&path).expect("a file");
    let ends: Vec<usize> = whole
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("written");
        let log = open(dir.path(), BOOT, LogBounds::default());
        // The first line is the header.
        let kept = ends.iter().filter(|end| **end <= len).count().saturating_sub(1) as u64;
        assert_eq!(log.last().get(), kept, "cut at {len}");
        append(&log, 100);
        let expected: Vec<u64> = (1..=kept).chain([100]).collect();
        assert_eq!(numbers(&events(&log, EventSeq::START)), expected, "cut at {len}");
    }
}

#[test]
fn the_oldest_files_go_and_a_reader_is_told_about_the_gap() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    let mut slow = Cursor::new(EventSeq::START);
    append(&log, 1);
    assert_eq!(slow.read(&log).expect("an event").len(), 1, "it has the first file open");
    append_all(&log, 2..=500);
    let size: u64 = names_and_sizes(dir.path()).iter().map(|(_, size)| size).sum();
    assert!(size <= SMALL.total_bytes, "{size}");
    let all = read_all(&log, EventSeq::new(1));
    let Some(Delivery::Gap { oldest, .. }) = all.first() else { panic!("{:?}", all.first()) };
    let kept = events(&log, EventSeq::new(oldest.get() - 1));
    assert_eq!(seqs(&kept), (oldest.get()..=500).collect::<Vec<_>>());
    assert_eq!(all.len(), kept.len() + 1, "one gap, then all that is kept");
    // The slow one reads the file that it has open to its end; then comes the same gap.
    let mut rest = Vec::new();
    while let Ok(batch) = slow.read(&log)
        && !batch.is_empty()
    {
        rest.extend(batch);
    }
    let gaps = rest.iter().filter(|delivery| matches!(delivery, Delivery::Gap { .. })).count();
    assert_eq!(gaps, 1);
    let gap = &rest[rest.len() - kept.len() - 1];
    assert!(matches!(gap, Delivery::Gap { oldest: first, .. } if first == oldest), "{gap:?}");
}

fn names_and_sizes(data: &Path) -> Vec<(String, u64)> {
    let dir = data.join(EVENTS);
    let size = |name: String| {
        let size = fs::metadata(dir.join(&name)).expect("a file").len();
        (name, size)
    };
    sandkeep_home::names(&dir).expect("names").into_iter().map(size).collect()
}

#[test]
fn no_number_is_used_again_after_the_host_lost_power() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=10);
    drop(log);
    // The last events never reached the disk, and what did is followed by zeros.
    let path = segment::path(&dir.path().join(EVENTS), EventSeq::new(1));
    let mut left = fs::read(&path).expect("a file");
    let after_five = left.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(5);
    left.truncate(after_five.expect("five events").0 + 1);
    left.extend([0; 4096]);
    fs::write(&path, left).expect("written");
    let log = open(dir.path(), "boot-2", SMALL);
    assert!(append(&log, 11).get() > 10, "higher than all that were lost");
    assert_eq!(numbers(&events(&log, EventSeq::START)), [1, 2, 3, 4, 5, 11]);
    drop(log);
    let log = open(dir.path(), "boot-2", SMALL);
    append(&log, 12);
    let all = events(&log, EventSeq::new(3));
    assert_eq!(numbers(&all), [4, 5, 11, 12]);
    assert_eq!(all[3].seq.get(), all[2].seq.get() + 1, "within a boot nothing is left out");
    drop(log);
    // Not even the headers reached the disk.
    for first in segment::list(&dir.path().join(EVENTS)).expect("a list") {
        fs::write(segment::path(&dir.path().join(EVENTS), first), []).expect("written");
    }
    let log = open(dir.path(), "boot-3", SMALL);
    assert!(append(&log, 13) > all[3].seq, "the names of the files are enough");
}

#[test]
fn a_kind_of_a_later_version_is_passed_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append(&log, 1);
    drop(log);
    let path = segment::path(&dir.path().join(EVENTS), EventSeq::new(1));
    let mut file = fs::read(&path).expect("a file");
    file.extend(segment::line(EventSeq::new(2), br#"{"kind":"moon.landed","data":{}}"#));
    fs::write(&path, file).expect("written");
    let log = open(dir.path(), BOOT, SMALL);
    assert_eq!(append(&log, 3), EventSeq::new(3));
    assert_eq!(numbers(&events(&log, EventSeq::START)), [1, 3]);
}

#[test]
fn a_file_that_somebody_removed_is_a_gap_and_no_endless_search() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=30);
    let firsts = segment::list(&dir.path().join(EVENTS)).expect("a list");
    assert!(firsts.len() > 2, "{firsts:?}");
    fs::remove_file(segment::path(&dir.path().join(EVENTS), firsts[1])).expect("removed");
    let all = read_all(&log, EventSeq::START);
    let gap = all.iter().position(|delivery| matches!(delivery, Delivery::Gap { .. }));
    let before = usize::try_from(firsts[1].get() - 1).expect("few");
    assert_eq!(gap, Some(before), "all before it, then the gap");
    let after = EventSeq::new(firsts[1].get() - 1);
    assert_eq!(all[before], Delivery::Gap { after, oldest: firsts[2] });
    fs::remove_dir_all(dir.path().join(EVENTS)).expect("removed");
    assert!(Cursor::new(EventSeq::new(29)).read(&log).is_err());
}

#[test]
fn an_event_that_cannot_be_written_leaves_its_number_out_and_is_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let lost = Counter::default();
    let log = EventLog::open(dir.path(), BOOT, SMALL, lost.clone()).expect("a log");
    append(&log, 1);
    let writable = {
        let mut writer = log.writer();
        let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
        std::mem::replace(&mut writer.file, full)
    };
    append(&log, 2);
    append(&log, 3);
    assert_eq!(lost.get(), 2);
    log.writer().file = writable;
    append(&log, 4);
    assert_eq!(seqs(&events(&log, EventSeq::START)), [1, 4]);
}

#[test]
fn a_full_disk_takes_the_oldest_files_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=30);
    let mut writer = log.writer();
    let before = writer.segments.len();
    assert!(before > 2, "{before}");
    while log.remove_oldest(&mut writer) {}
    assert_eq!(writer.segments.len(), 1, "the one that is written to stays");
    drop(writer);
    assert!(matches!(read_all(&log, EventSeq::START)[0], Delivery::Gap { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_sees_every_event_once_while_many_write() {
    const WRITERS: u64 = 4;
    const EACH: u64 = 500;
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, LogBounds { segment_bytes: 5_000, total_bytes: u64::MAX / 4 });
    append(&log, 0);
    let mut from_start = log.subscribe(Some(EventSeq::START));
    let mut from_now = log.subscribe(None);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let log = Arc::clone(&log);
            std::thread::spawn(move || {
                let first = 1 + writer * EACH;
                append_all(&log, first..=first + EACH - 1);
            })
        })
        .collect();
    let mut seen = Vec::new();
    while seen.len() < (1 + WRITERS * EACH) as usize {
        match from_start.next().await.expect("a readable log") {
            Delivery::Event(event) => seen.push(*event),
            Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
        }
    }
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
    assert_eq!(seqs(&seen), (1..=1 + WRITERS * EACH).collect::<Vec<_>>());
    let mut written = numbers(&seen);
    written.sort_unstable();
    assert_eq!(written, (0..=WRITERS * EACH).collect::<Vec<_>>());
    let Ok(Delivery::Event(first)) = from_now.next().await else { panic!("no event") };
    assert_eq!(first.seq, EventSeq::new(2), "it began after the first");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However often the daemon is killed in the middle of a write, what was written before is there, once and in order.
    #[test]
    fn numbers_only_rise_over_any_number_of_crashes(
        rounds in prop::collection::vec((0_u64..40, 0_usize..300), 1..8),
    ) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut acknowledged: Vec<(u64, u64)> = Vec::new();
        let mut number = 0;
        for (count, torn) in rounds {
            let log = open(dir.path(), BOOT, LogBounds { total_bytes: 1 << 40, ..SMALL });
            for _ in 0..count {
                number += 1;
                acknowledged.push((append(&log, number).get(), number));
            }
            let half = segment::line(log.last().plus(1), &segment::encode(
                Timestamp::UNIX_EPOCH, &subject(), &numbered(999),
            ));
            let writer = log.writer();
            let half = &half[..torn.min(half.len() - 1)];
            writer.file.write_all_at(half, writer.len).expect("written");
        }
        let log = open(dir.path(), BOOT, LogBounds { total_bytes: 1 << 40, ..SMALL });
        let all = events(&log, EventSeq::START);
        let found: Vec<(u64, u64)> = seqs(&all).into_iter().zip(numbers(&all)).collect();
        prop_assert!(found.is_sorted_by(|a, b| a.0 < b.0));
        prop_assert_eq!(found, acknowledged);
    }
}

async fn next_number(consumer: &mut Consumer) -> u64 {
    match consumer.next().await.expect("a readable log") {
        Delivery::Event(event) => event.seq.get(),
        Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
    }
}

#[tokio::test]
async fn a_consumer_continues_after_the_last_event_that_it_acknowledged() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=3);
    let consume = |log: &Arc<EventLog>| {
        Consumer::open(log, dir.path(), "outside", StartAt::Newest).expect("a consumer")
    };
    let mut consumer = consume(&log);
    append_all(&log, 4..=6);
    for number in 4..=6 {
        assert_eq!(next_number(&mut consumer).await, number);
    }
    assert!(consumer.poll().await.expect("a readable log").is_none());
    consumer.acknowledge(EventSeq::new(5)).expect("written");
    consumer.acknowledge(EventSeq::new(4)).expect("an earlier one changes nothing");
    drop((consumer, log));
    let log = open(dir.path(), BOOT, SMALL);
    let mut consumer = consume(&log);
    assert_eq!(consumer.acknowledged(), EventSeq::new(5));
    assert_eq!(next_number(&mut consumer).await, 6, "it was not acknowledged");
    consumer.rewind(EventSeq::new(1)).expect("written");
    assert_eq!(next_number(&mut consumer).await, 2);
}

#[tokio::test]
async fn what_happens_before_the_first_acknowledgement_is_delivered_by_the_next_daemon() {
    // A log that is empty at first is one, too.
    for before in [0, 3] {
        let dir = tempfile::tempdir().expect("a directory");
        let log = open(dir.path(), BOOT, SMALL);
        append_all(&log, 1..=before);
        let consume = || Consumer::open(&log, dir.path(), "outside", StartAt::Newest);
        drop(consume().expect("a consumer"));
        append(&log, before + 1);
        let mut consumer = consume().expect("a consumer");
        assert_eq!(next_number(&mut consumer).await, before + 1);
    }
}

#[tokio::test]
async fn a_consumer_whose_position_is_torn_gets_too_many_events_and_not_too_few() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=30);
    let consume = || Consumer::open(&log, dir.path(), "outside", StartAt::Newest);
    drop(consume().expect("a consumer"));
    for torn in ["", "3", "x\n"] {
        let path = dir.path().join("events/positions/outside");
        fs::write(path, torn).expect("written");
        let mut consumer = consume().expect("a consumer");
        assert_eq!(next_number(&mut consumer).await, 1, "{torn:?}");
    }
}

#[tokio::test]
async fn a_subscription_knows_where_its_reader_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, SMALL);
    append_all(&log, 1..=3);
    let mut subscription = log.subscribe(Some(EventSeq::START));
    assert_eq!(subscription.position(), EventSeq::START);
    for number in 1..=3 {
        subscription.next().await.expect("a readable log");
        assert_eq!(subscription.position(), EventSeq::new(number));
    }
    assert_eq!(subscription.poll().await.expect("a readable log"), None);
    assert_eq!(subscription.position(), EventSeq::new(3));
}

#[tokio::test]
async fn an_event_that_is_longer_than_what_is_read_at_a_time_is_told_at_once_and_never_passed_over()
{
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = open(dir.path(), BOOT, SMALL);
    let long =
        EventKind::PolicyRefused { code: "x".repeat(2 * limits::EVENTS_READ_BYTES), count: 1 };
    // Each begins a file of its own, right after the header.
    for _ in 0..3 {
        log.append(Timestamp::UNIX_EPOCH, &subject(), &long);
    }
    let first = log.writer().segments.front().expect("a file").first;
    let mut reader = log.subscribe(Some(EventSeq::new(first.get() - 1)));
    for seq in first.get()..=3 {
        let next = tokio::time::timeout(std::time::Duration::from_secs(60), reader.next()).await;
        match next.expect("nobody has to write another event first").expect("a readable log") {
            Delivery::Event(event) => assert_eq!(event.seq.get(), seq),
            Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
        }
    }
}

#[tokio::test]
async fn a_reader_that_is_interrupted_at_any_time_misses_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let log = open(dir.path(), BOOT, LogBounds { total_bytes: 1_000_000, ..SMALL });
    let mut reader = log.subscribe(Some(EventSeq::START));
    let writer = Arc::clone(&log);
    let writing = std::thread::spawn(move || {
        for number in 1..=2_000 {
            append(&writer, number);
        }
    });
    let mut read = 0;
    while read < 2_000 {
        // Polled once and dropped, wherever it was.
        let once = async {
            tokio::select! {
                biased;
                delivery = reader.next() => Some(delivery),
                () = tokio::task::yield_now() => None,
            }
        };
        match once.await {
            Some(Ok(Delivery::Event(event))) => {
                read += 1;
                assert_eq!(numbers(&[*event]), [read]);
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        if read == 2_000 {
            break;
        }
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), reader.next()).await;
        match waited.expect("it is not forgotten").expect("a readable log") {
            Delivery::Event(event) => {
                read += 1;
                assert_eq!(numbers(&[*event]), [read]);
            }
            Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
        }
    }
    writing.join().expect("no panic");
}

#[tokio::test]
async fn a_reader_that_is_interrupted_all_the_time_gets_on_and_misses_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = open(dir.path(), BOOT, LogBounds::default());
    append_all(&log, 1..=3_000);
    let (mut reader, mut found) = (log.subscribe(Some(EventSeq::START)), Vec::new());
    let read = async {
        while found.len() < 6_000 {
            tokio::select! {
                biased;
                next = reader.next() => match next.expect("a readable log") {
                    Delivery::Event(event) => found.push(*event),
                    Delivery::Gap { oldest, .. } => panic!("a gap before {oldest}"),
                },
                // It leaves as soon as it has to wait.
                () = tokio::task::yield_now() => {}
            }
            if found.len() == 3_000 && log.last().get() == 3_000 {
                append_all(&log, 3_001..=6_000);
            }
        }
    };
    let bounded = tokio::time::timeout(std::time::Duration::from_secs(120), read).await;
    bounded.expect("it gets on");
    assert_eq!(numbers(&found), (1..=6_000).collect::<Vec<u64>>());
}
