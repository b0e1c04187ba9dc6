use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;

use super::*;
use crate::{ExecEnd, ExecEvent, Outcome, OutputStream};
use sandkeep_core::Owner;
use sandkeep_core::ledger::{Ledger, Over, Shares};

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

struct Lab {
    _dir: tempfile::TempDir,
    path: PathBuf,
    limits: JournalLimits,
}

impl Lab {
    fn new() -> Self {
        Self::with(JournalLimits::default())
    }

    fn with(limits: JournalLimits) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { path: dir.path().join(JOURNALS), _dir: dir, limits }
    }

    /// What a daemon that has just started has.
    fn index(&self) -> JournalIndex {
        self.index_of(&Ledger::unlimited())
    }

    /// The same for an owner who may have only so much.
    fn index_of(&self, ledger: &Arc<Ledger>) -> JournalIndex {
        JournalIndex::new(&self.path, self.limits, ledger.open(&Owner::local()))
    }

    fn file(&self, id: &ExecId) -> PathBuf {
        self.path.join(id.as_str())
    }

    fn names(&self) -> Vec<String> {
        sandkeep_home::names(&self.path).expect("names")
    }

    fn disk_bytes(&self) -> u64 {
        self.names().iter().map(|name| fs::metadata(self.path.join(name)).expect("it").len()).sum()
    }
}

fn description() -> Description {
    Description {
        exec_id: ExecId::random(),
        argv: vec!["sh".to_owned(), "-c".to_owned(), "echo \"hé\"".to_owned()],
        cwd: Some("/tmp".to_owned()),
        user: "user".to_owned(),
        started_at: Timestamp::now(),
        timeout_ms: Some(5),
        stdin: StdinSource::None,
        terminal: false,
        keep: Keep::AmongTheLast,
        shell_id: None,
    }
}

fn exited(code: i32) -> ExecEnd {
    let duration = Duration::from_millis(7);
    ExecEnd::new(Outcome::Exited(code), duration)
}

/// Everything there is to see now.
async fn all(journal: &Arc<Journal>, from: From) -> Vec<ExecEvent> {
    let mut watch = journal.watch(from);
    let mut seen = Vec::new();
    while let Some(next) = watch.next(Follow::WhatIsThere).await.expect("it can be read") {
        seen.push(next);
    }
    seen
}

/// The bytes of one stream, and its gaps. Nothing comes twice and nothing is missing between.
fn bytes(seen: &[ExecEvent], wanted: OutputStream, start: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut text, mut gaps, mut at) = (Vec::new(), Vec::new(), start);
    for seen in seen {
        match seen {
            ExecEvent::Output { stream, offset, data } if *stream == wanted => {
                assert_eq!(*offset, at, "a hole or a repetition");
                at += data.len() as u64;
                text.extend_from_slice(data);
            }
            ExecEvent::Gap { stream, from, to } if *stream == wanted => {
                assert_eq!(*from, at, "a gap begins where the bytes end");
                gaps.push((*from, *to));
                at = *to;
            }
            ExecEvent::Started
            | ExecEvent::Output { .. }
            | ExecEvent::Gap { .. }
            | ExecEvent::Ended(_) => {}
        }
    }
    (text, gaps)
}

fn ends(seen: &[ExecEvent]) -> usize {
    seen.iter().filter(|seen| matches!(seen, ExecEvent::Ended(_))).count()
}

async fn say(writer: &mut Writer, stream: OutputStream, data: &[u8]) {
    let offset = record::of(&writer.written(), stream);
    writer.append(stream, offset, &Bytes::copy_from_slice(data)).await;
}

#[tokio::test]
async fn what_was_said_is_read_back_in_order_with_one_end() {
    let lab = Lab::new();
    let (index, description) = (lab.index(), description());
    let mut writer = index.begin(&description).expect("a journal");
    say(&mut writer, OutputStream::Stdout, b"one ").await;
    say(&mut writer, OutputStream::Stderr, b"two ").await;
    say(&mut writer, OutputStream::Stdout, b"three").await;
    let journal = Arc::clone(writer.journal());
    let before = all(&journal, From::start()).await;
    assert_eq!(ends(&before), 0, "it has not ended");
    let end = writer.end(exited(3));
    for journal in [journal, {
        lab.index().load().expect("read");
        reread(&lab, &description.exec_id)
    }] {
        let seen = all(&journal, From::start()).await;
        assert_eq!(seen[..3], before[..], "what was told stays the same");
        assert_eq!(seen[3..], [ExecEvent::Ended(ExecEnd::clone(&end))]);
        assert_eq!(journal.description().expect("it is there"), description);
        let one = all(&journal, From::only(OutputStream::Stdout, 6)).await;
        assert_eq!(bytes(&one, OutputStream::Stdout, 6).0, b"ree");
        assert_eq!(one.len(), 2, "the other stream is left out: {one:?}");
    }
}

/// The journal as the next daemon knows it.
fn reread(lab: &Lab, id: &ExecId) -> Arc<Journal> {
    let index = lab.index();
    index.load().expect("the directory can be read");
    index.find(id).expect("it is known")
}

#[tokio::test]
async fn a_journal_cut_anywhere_goes_on_without_a_hole_or_a_repetition() {
    let lab = Lab::new();
    let description = description();
    let whole: Vec<u8> = (0..200u8).collect();
    let mut writer = lab.index().begin(&description).expect("a journal");
    for (turn, piece) in whole.chunks(7).enumerate() {
        say(&mut writer, STREAMS[turn % 2], piece).await;
    }
    let expected = all(writer.journal(), From::start()).await;
    drop(writer);
    let file = fs::read(lab.file(&description.exec_id)).expect("a file");
    let start =
        file.windows(16).position(|w| record::Header::decode(w.try_into().expect("16")).is_some());
    for cut in start.expect("a record")..=file.len() {
        fs::write(lab.file(&description.exec_id), &file[..cut]).expect("cut");
        let mut left = lab.index().load().expect("read");
        let Unfinished { mut writer, .. } = left.pop().expect("it has no end");
        // The guest sends again from where the journal is.
        let from = writer.written();
        for seen in &expected {
            let ExecEvent::Output { stream, offset, data } = seen else { panic!("{seen:?}") };
            if offset + data.len() as u64 > record::of(&from, *stream) {
                writer.append(*stream, *offset, data).await;
            }
        }
        let journal = Arc::clone(writer.journal());
        writer.end(exited(0));
        let again = all(&journal, From::start()).await;
        for stream in STREAMS {
            assert_eq!(bytes(&again, stream, 0), bytes(&expected, stream, 0), "cut at {cut}");
        }
        assert_eq!(ends(&again), 1);
        let on_disk = all(&reread(&lab, &description.exec_id), From::start()).await;
        assert_eq!(on_disk, again, "cut at {cut}");
    }
}

#[tokio::test]
async fn garbage_after_the_last_record_is_cut_off() {
    let lab = Lab::new();
    let description = description();
    let mut writer = lab.index().begin(&description).expect("a journal");
    say(&mut writer, OutputStream::Stdout, b"good").await;
    drop(writer);
    let file = fs::OpenOptions::new().write(true).open(lab.file(&description.exec_id)).expect("it");
    let len = file.metadata().expect("it is there").len();
    for garbage in [vec![0; 4096], vec![0xff; 4096]] {
        file.write_all_at(&garbage, len).expect("written");
        let mut left = lab.index().load().expect("read");
        let writer = left.pop().expect("it has no end").writer;
        assert_eq!(writer.written().stdout, 4);
        assert_eq!(file.metadata().expect("it is there").len(), len);
    }
}

#[tokio::test]
async fn an_exec_whose_cover_is_torn_never_began() {
    let lab = Lab::new();
    let description = description();
    drop(lab.index().begin(&description).expect("a journal"));
    let cover = fs::read(lab.file(&description.exec_id)).expect("a file");
    for cut in [0, 1, 8, 2047, 2048, 2055, cover.len() - 1] {
        fs::write(lab.file(&description.exec_id), &cover[..cut]).expect("torn");
        assert!(lab.index().load().expect("read").is_empty(), "cut at {cut}");
        assert!(lab.names().is_empty(), "it is removed");
    }
}

fn small() -> JournalLimits {
    JournalLimits { max_bytes_per_exec: 64 * 1024, ..JournalLimits::default() }
}

/// A long output of both streams: what was said.
async fn flood(writer: &mut Writer) -> [Vec<u8>; 2] {
    let mut said = [Vec::new(), Vec::new()];
    for turn in 0..2_000u32 {
        let which = usize::from(turn % 3 == 0);
        let line = format!("line {turn} of a long output that is more than the journal takes\n");
        say(writer, STREAMS[which], line.as_bytes()).await;
        said[which].extend_from_slice(line.as_bytes());
    }
    said
}

#[tokio::test]
async fn a_long_output_keeps_head_and_tail_and_counts_the_middle() {
    let lab = Lab::with(small());
    let description = description();
    let mut writer = lab.index().begin(&description).expect("a journal");
    let said = flood(&mut writer).await;
    let journal = Arc::clone(writer.journal());
    let end = writer.end(exited(0));
    let disk = lab.disk_bytes();
    assert!(disk <= lab.limits.max_bytes_per_exec, "{disk} bytes on disk");
    for journal in [journal, reread(&lab, &description.exec_id)] {
        let seen = all(&journal, From::start()).await;
        for (stream, said) in STREAMS.into_iter().zip(&said) {
            let (kept, gaps) = bytes(&seen, stream, 0);
            let [(from, to)] = gaps[..] else { panic!("one gap: {gaps:?}") };
            assert_eq!(record::of(&end.dropped, stream), to - from);
            assert_eq!(record::of(&end.written, stream), said.len() as u64);
            let (head, tail) = kept.split_at(usize::try_from(from).expect("small"));
            assert_eq!(head, &said[..head.len()]);
            assert_eq!(tail, &said[usize::try_from(to).expect("small")..]);
            assert!(!tail.is_empty() && said.ends_with(tail));
        }
        assert_eq!(ends(&seen), 1);
    }
}

#[tokio::test]
async fn a_journal_with_a_gap_goes_on_after_a_crash_and_counts_the_same() {
    let lab = Lab::with(small());
    let description = description();
    let mut writer = lab.index().begin(&description).expect("a journal");
    let said = flood(&mut writer).await;
    let (written, dropped) = (writer.written(), writer.journal().progress().dropped);
    drop(writer);
    let mut writer = lab.index().load().expect("read").pop().expect("unfinished").writer;
    assert_eq!(writer.written(), written);
    assert_eq!(writer.journal().progress().dropped, dropped);
    flood(&mut writer).await;
    let end = writer.end(exited(0));
    assert_eq!(end.written.stdout, 2 * said[0].len() as u64);
    let seen = all(&reread(&lab, &description.exec_id), From::start()).await;
    let (kept, _) = bytes(&seen, OutputStream::Stdout, 0);
    assert_eq!(kept.len() as u64, end.written.stdout - end.dropped.stdout);
    assert_eq!(lab.names().len(), 3, "the head and two tails");
}

#[tokio::test]
async fn a_watcher_far_behind_slows_nobody_and_is_told_of_the_gap() {
    let lab = Lab::with(small());
    let mut writer = lab.index().begin(&description()).expect("a journal");
    let journal = Arc::clone(writer.journal());
    let (mut slow, mut idle) = (journal.watch(From::start()), journal.watch(From::start()));
    say(&mut writer, OutputStream::Stdout, b"first").await;
    assert!(matches!(slow.next(Follow::ToTheEnd).await, Ok(Some(ExecEvent::Output { .. }))));
    flood(&mut writer).await;
    writer.end(exited(0));
    for watch in [&mut slow, &mut idle] {
        let mut seen = Vec::new();
        while let Some(next) = watch.next(Follow::ToTheEnd).await.expect("it can be read") {
            seen.push(next);
        }
        assert!(seen.iter().any(|seen| matches!(seen, ExecEvent::Gap { .. })));
        assert_eq!(ends(&seen), 1);
    }
}

#[tokio::test]
async fn a_follower_waits_for_more_and_only_for_that() {
    let lab = Lab::new();
    let mut writer = lab.index().begin(&description()).expect("a journal");
    let mut watch = writer.journal().watch(From::start());
    assert_eq!(watch.next(Follow::WhatIsThere).await.expect("readable"), None);
    assert!(watch.next(Follow::ToTheEnd).now_or_never().is_none());
    say(&mut writer, OutputStream::Stderr, b"x").await;
    let seen = watch.next(Follow::ToTheEnd).await.expect("readable");
    assert!(
        matches!(seen, Some(ExecEvent::Output { stream: OutputStream::Stderr, .. })),
        "{seen:?}"
    );
    let end = writer.end(exited(1));
    assert_eq!(
        watch.next(Follow::ToTheEnd).await.expect("readable"),
        Some(ExecEvent::Ended(ExecEnd::clone(&end)))
    );
    assert_eq!(watch.next(Follow::ToTheEnd).await.expect("readable"), None);
}

#[tokio::test]
async fn only_the_last_ended_are_kept_and_those_that_run_or_must_stay() {
    let limits = JournalLimits { max_execs: 20, ..JournalLimits::default() };
    let lab = Lab::with(limits);
    let index = lab.index();
    let running = index.begin(&description()).expect("a journal");
    let stays = Description { keep: Keep::WithSandbox(ProcessTerms::default()), ..description() };
    index.begin(&stays).expect("a journal").end(exited(0));
    index.count(&stays.exec_id);
    let mut ids = Vec::new();
    for _ in 0..50 {
        let description = description();
        index.begin(&description).expect("a journal").end(exited(0));
        if index.count(&description.exec_id) {
            index.tidy();
        }
        ids.push(description.exec_id);
        assert!(index.list().len() <= 22);
    }
    assert!(index.find(&ids[49]).is_some() && index.find(&ids[35]).is_some());
    assert!(index.find(&ids[0]).is_none() && !lab.file(&ids[0]).exists());
    assert!(index.find(&stays.exec_id).is_some());
    assert!(index.find(running.journal().id()).is_some());
    assert_eq!(lab.names().len(), index.list().len());
}

#[tokio::test]
async fn large_journals_make_room_for_newer_ones() {
    let limits = JournalLimits { max_bytes: 100_000, ..JournalLimits::default() };
    let lab = Lab::with(limits);
    let index = lab.index();
    for _ in 0..10 {
        let description = description();
        let mut writer = index.begin(&description).expect("a journal");
        say(&mut writer, OutputStream::Stdout, &[b'x'; 30_000]).await;
        writer.end(exited(0));
        if index.count(&description.exec_id) {
            index.tidy();
        }
    }
    assert_eq!(index.list().len(), 3);
    assert_eq!(lab.names().len(), 3);
}

/// An owner who may have so many MiB.
fn poor(mb: u64) -> Arc<Ledger> {
    Ledger::new("host_mb", Shares { organization_mb: Some(mb), user_mb: None }, |_| Ok(()))
}

#[tokio::test]
async fn whatever_runs_no_more_is_written_than_the_owner_may_have_and_the_last_words_are_kept() {
    let lab = Lab::new();
    let ledger = poor(4);
    let index = lab.index_of(&ledger);
    let mut writers = Vec::new();
    for _ in 0..12 {
        let keep = Keep::WithSandbox(ProcessTerms::default());
        let mut writer = index.begin(&Description { keep, ..description() }).expect("a journal");
        for _ in 0..60 {
            say(&mut writer, OutputStream::Stdout, &[b'x'; 10_000]).await;
        }
        say(&mut writer, OutputStream::Stdout, b"last words").await;
        writers.push(writer);
        assert!(lab.disk_bytes() <= 4 * limits::MIB, "{} bytes on disk", lab.disk_bytes());
    }
    for writer in writers {
        let journal = Arc::clone(writer.journal());
        let end = writer.end(exited(0));
        let seen = all(&journal, From::start()).await;
        let (kept, _) = bytes(&seen, OutputStream::Stdout, 0);
        assert!(kept.ends_with(b"last words"));
        let is_whole = kept.len() == 600_010;
        assert_eq!(end.dropped.stdout, 600_010 - kept.len() as u64);
        let said = end.error.as_deref().unwrap_or_default();
        assert_eq!(said.contains("quota of 4 host_mb"), !is_whole, "{said}");
    }
    drop(index);
    // The next daemon counts the same, and the next exec takes the place of what has ended.
    let index = lab.index_of(&ledger);
    index.load().expect("read");
    let mut writer = index.begin(&description()).expect("a journal");
    for _ in 0..60 {
        say(&mut writer, OutputStream::Stdout, &[b'y'; 10_000]).await;
    }
    assert_eq!(writer.end(exited(0)).dropped, Offsets::default());
    assert!(lab.disk_bytes() <= 4 * limits::MIB, "{} bytes on disk", lab.disk_bytes());
    assert_eq!(index.processes().len(), 12, "ends of processes stay");
    for journal in [index.processes()[0].clone(), reread(&lab, index.processes()[0].id())] {
        let seen = all(&journal, From::start()).await;
        assert_eq!(bytes(&seen, OutputStream::Stdout, 0), (Vec::new(), vec![(0, 600_010)]));
        assert_eq!(ends(&seen), 1);
    }
}

#[tokio::test]
async fn what_a_journal_held_is_given_back_once_however_many_drop_it() {
    let (lab, ledger) = (Lab::new(), poor(4));
    let index = lab.index_of(&ledger);
    let mut neighbor = index.begin(&description()).expect("a journal");
    say(&mut neighbor, OutputStream::Stdout, &[b'x'; 100_000]).await;
    neighbor.end(exited(0));
    let keep = Keep::WithSandbox(ProcessTerms::default());
    let mut writer = index.begin(&Description { keep, ..description() }).expect("a journal");
    say(&mut writer, OutputStream::Stdout, &[b'y'; 100_000]).await;
    let process = Arc::clone(writer.journal());
    writer.end(exited(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| index.give_way());
        }
    });
    let left = lab.disk_bytes();
    assert!((100_000..150_000).contains(&left), "{left}");
    let probe = ledger.open(&Owner::local());
    probe.take(4 * limits::MIB - left).expect("what is not on disk is free");
    probe.take(1).expect_err("and no more");
    assert_eq!(process.let_go(1), process.progress().disk_bytes - 1);
    assert_eq!([process.let_go(5), process.let_go(0), process.let_go(0)], [0, 1, 0]);
}

#[tokio::test]
async fn an_exec_that_leaves_no_room_for_a_journal_is_refused_and_one_that_ended_gives_its_room_back()
 {
    let lab = Lab::new();
    let index = lab.index_of(&poor(1));
    let mut running = Vec::new();
    let refused = loop {
        match index.begin(&description()) {
            Ok(writer) => running.push(writer),
            Err(refused) => break refused,
        }
    };
    assert!(matches!(refused.downcast::<Over>(), Ok(Over::Quota { limit_mb: 1, .. })));
    let left = running.len();
    index.forget(running.pop().expect("at least one"));
    running.pop().expect("at least two").end(exited(0));
    running.push(index.begin(&description()).expect("the room of one that never began"));
    assert!(index.begin(&description()).is_err() || running.len() < left);
}

#[tokio::test]
async fn an_end_fits_its_place_however_long_its_reason() {
    let lab = Lab::new();
    let description = description();
    let writer = lab.index().begin(&description).expect("a journal");
    let error = Some("\u{1}é".repeat(10_000));
    writer.end(ExecEnd { error, ..exited(0) });
    let end = reread(&lab, &description.exec_id).end().expect("an end");
    assert_eq!(end.outcome, Outcome::Exited(0));
    assert!(end.error.as_ref().expect("a reason").ends_with('…'));
    assert_eq!(reread(&lab, &description.exec_id).description().expect("whole"), description);
}

/// What a journal adds to a command that says one line: run with `--run-ignored all --no-capture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn measure_what_a_journal_costs_a_short_command() {
    const ROUNDS: u32 = 5_000;
    let lab = Lab::new();
    let index = lab.index();
    let mut taken = [Duration::ZERO; 3];
    for _ in 0..ROUNDS {
        let description = description();
        let began = std::time::Instant::now();
        let mut writer = index.begin(&description).expect("a journal");
        let begun = std::time::Instant::now();
        say(&mut writer, OutputStream::Stdout, b"hello\n").await;
        let said = std::time::Instant::now();
        writer.end(exited(0));
        let due = index.count(&description.exec_id);
        taken[0] += begun - began;
        taken[1] += said - begun;
        taken[2] += said.elapsed();
        if due {
            index.tidy();
        }
    }
    let [begin, line, end] = taken.map(|taken| taken / ROUNDS);
    println!("begin {begin:?}, one line {line:?}, end {end:?}");
}

#[test]
fn an_end_is_on_disk_as_earlier_daemons_wrote_it() {
    let bare = r#"{"outcome":{"exited":3},"duration_ms":1500,"ended_at":"2026-01-02T03:04:05.000000006Z","written":{"stdout":7,"stderr":0},"dropped":{"stdout":2,"stderr":0}}"#;
    let end: ExecEnd = serde_json::from_str(bare).expect("an end without what may be left out");
    assert_eq!((end.outcome, end.duration), (Outcome::Exited(3), Duration::from_millis(1500)));
    assert_eq!((end.written.stdout, end.dropped.stdout, end.error.as_ref()), (7, 2, None));
    assert_eq!(serde_json::to_string(&end).expect("plain data"), bare);
    let lost = r#"{"outcome":"lost","error":"gone","duration_ms":0,"ended_at":"2026-01-02T03:04:05Z","written":{"stdout":0,"stderr":0},"dropped":{"stdout":0,"stderr":0},"shell":{"fate":"replaced","skipped":{"stdout":1,"stderr":2}}}"#;
    let end: ExecEnd = serde_json::from_str(lost).expect("an end with everything");
    assert_eq!(serde_json::to_string(&end).expect("plain data"), lost);
}
