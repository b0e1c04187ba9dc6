//! Following a journal: each watcher reads the files at its own pace and waits only for more data. It holds one block
//! of what it has read, whatever the exec writes and however slow the watcher is.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;

use super::cover::{self, TAIL_MAGIC, read_up_to};
use super::record::{HEADER_LEN, Header, RECORD_MAX};
use super::recover::{BLOCK_LEN, header_at};
use super::writer::TAILS_KEPT;
use super::{Journal, Progress};
use crate::{ExecEnd, ExecEvent, Offsets, OutputStream};

/// The offset at which a watcher starts in each stream; `None` leaves the stream out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct From {
    pub stdout: Option<u64>,
    pub stderr: Option<u64>,
}

impl From {
    pub fn start() -> Self {
        Self::both(Offsets::default())
    }

    pub fn both(offsets: Offsets) -> Self {
        Self { stdout: Some(offsets.stdout), stderr: Some(offsets.stderr) }
    }

    pub fn only(stream: OutputStream, offset: u64) -> Self {
        match stream {
            OutputStream::Stdout => Self { stdout: Some(offset), stderr: None },
            OutputStream::Stderr => Self { stdout: None, stderr: Some(offset) },
        }
    }

    fn of_mut(&mut self, stream: OutputStream) -> &mut Option<u64> {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }
}

/// Whether a watcher waits for further output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    ToTheEnd,
    WhatIsThere,
}

pub struct Watch {
    journal: Arc<Journal>,
    progress: watch::Receiver<Progress>,
    /// The next byte of each stream.
    next: From,
    segment: u32,
    file: Option<Arc<File>>,
    at: u64,
    ready: VecDeque<ExecEvent>,
    phase: FollowPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FollowPhase {
    Reading,
    Over,
}

/// The result of an attempt to read on.
enum Step {
    Moved,
    /// Everything that is written was read.
    UpToDate,
    /// The files are gone, with the sandbox or because others are kept instead.
    Removed,
}

impl Watch {
    pub(super) fn new(journal: Arc<Journal>, from: From) -> Self {
        let progress = journal.progress.subscribe();
        let (file, ready) = (None, VecDeque::new());
        Self {
            journal,
            progress,
            next: from,
            segment: 0,
            file,
            at: 0,
            ready,
            phase: FollowPhase::Reading,
        }
    }

    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// The next event; `None` after the end or, without following, after the existing events. Cancel-safe.
    pub async fn next(&mut self, follow: Follow) -> io::Result<Option<ExecEvent>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(Some(event));
            }
            if self.phase == FollowPhase::Over {
                return Ok(None);
            }
            let progress = self.progress.borrow_and_update().clone();
            match (self.read_on(&progress).await?, progress.end) {
                (Step::Moved, _) => {}
                (Step::UpToDate | Step::Removed, Some(end)) => self.finish(&end),
                (Step::Removed, None) => return Err(io::ErrorKind::NotFound.into()),
                (Step::UpToDate, None) => match follow {
                    Follow::WhatIsThere => return Ok(None),
                    Follow::ToTheEnd => {
                        self.progress.changed().await.expect("the journal holds the sender");
                    }
                },
            }
        }
    }

    fn finish(&mut self, end: &ExecEnd) {
        self.phase = FollowPhase::Over;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let to = super::record::of(&end.written, stream);
            self.skip_to(stream, to);
        }
        self.ready.push_back(ExecEvent::Ended(end.clone()));
    }

    /// Reports the gap before this offset.
    fn skip_to(&mut self, stream: OutputStream, to: u64) {
        if let Some(from) = self.next.of_mut(stream).as_mut().filter(|from| **from < to) {
            let from = std::mem::replace(from, to);
            self.ready.push_back(ExecEvent::Gap { stream, from, to });
        }
    }

    async fn read_on(&mut self, progress: &Progress) -> io::Result<Step> {
        let Some(file) = &self.file else { return self.open().await };
        let limit = if self.segment == progress.segment {
            progress.len
        } else {
            // A completed segment no longer changes.
            file.metadata()?.len()
        };
        if self.at < limit {
            let block = self.read(Arc::clone(file), limit, progress).await?;
            return match self.take(block) {
                0 => Err(io::Error::other(
                    "the journal is damaged: there is no record where one begins",
                )),
                _ => Ok(Step::Moved),
            };
        }
        if self.segment == progress.segment {
            return Ok(Step::UpToDate);
        }
        let oldest = progress.segment.saturating_sub(TAILS_KEPT - 1).max(1);
        self.segment = (self.segment + 1).max(oldest);
        self.file = None;
        Ok(Step::Moved)
    }

    /// Opens the next segment. If it is gone already, a newer one has taken its place.
    async fn open(&mut self) -> io::Result<Step> {
        let (journal, segment) = (Arc::clone(&self.journal), self.segment);
        let opened = blocking(move || {
            let file = File::open(journal.segment(segment))?;
            let start = match segment {
                0 => cover::read(&file)?.map_or(0, |cover| cover.len),
                _ => TAIL_MAGIC.len() as u64,
            };
            Ok((file, start))
        });
        match opened.await {
            Ok((file, start)) => {
                (self.file, self.at) = (Some(Arc::new(file)), start);
                Ok(Step::Moved)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let newest = self.progress.borrow().segment;
                let oldest = newest.saturating_sub(TAILS_KEPT - 1).max(1);
                if self.segment == 0 || self.segment >= oldest {
                    return Ok(Step::Removed);
                }
                self.segment = oldest;
                Ok(Step::Moved)
            }
            Err(error) => Err(error),
        }
    }

    /// The next block. Recent data is in memory and read at once; old data may be on disk, and is read by a thread that
    /// may block.
    async fn read(&self, file: Arc<File>, limit: u64, progress: &Progress) -> io::Result<Bytes> {
        let at = self.at;
        let len = usize::try_from(limit - at).unwrap_or(usize::MAX).min(BLOCK_LEN);
        let read = move || {
            let mut block = vec![0; len];
            let count = read_up_to(&file, &mut block, at)?;
            block.truncate(count);
            Ok(Bytes::from(block))
        };
        if len <= RECORD_MAX + HEADER_LEN && progress.end.is_none() {
            read()
        } else {
            blocking(read).await
        }
    }

    /// Takes the complete records of a block; returns how many there were.
    fn take(&mut self, block: Bytes) -> usize {
        let (mut at, mut count) = (0, 0);
        while let Some(header) = header_at(&block, at) {
            let start = at + HEADER_LEN;
            let end = start + header.len as usize;
            if end > block.len() {
                break;
            }
            self.take_record(header, block.slice(start..end));
            at = end;
            count += 1;
        }
        self.at += at as u64;
        count
    }

    fn take_record(&mut self, header: Header, mut data: Bytes) {
        let stream = header.stream;
        let Some(next) = *self.next.of_mut(stream) else { return };
        if header.end() <= next {
            return;
        }
        self.skip_to(stream, header.offset);
        // At most the length of a record.
        let known = next.saturating_sub(header.offset);
        let data = data.split_off(known as usize);
        *self.next.of_mut(stream) = Some(header.end());
        self.ready.push_back(ExecEvent::Output { stream, offset: header.offset + known, data });
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}
