//! Consumers that pass events on to the outside: webhooks, message brokers. Each has a position of its own, which
//! survives the daemon: whatever was not acknowledged is delivered again.
//!
//! ```text
//!   log of events ──▶ next ──▶ the outside ──▶ acknowledge ──▶ <data>/events/positions/<name>
//! ```
//!
//! A position is replaced by a rename and ends with a line end, so a reader never takes half of one for the whole. If
//! it cannot be read, the consumer starts with the oldest event: too many are better than too few.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::reader::{Delivery, Subscription};
use super::{EVENTS, EventLog};
use sandkeep_core::event::EventSeq;
use sandkeep_home::make_directory;

/// Where positions are, in the directory of the log.
const POSITIONS: &str = "positions";

/// Where a consumer starts that has no position yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the oldest event that is kept.
    Oldest,
    /// After the last event there is.
    Newest,
    /// After this event.
    After(EventSeq),
}

/// Follows the log from a durable position.
pub struct Consumer {
    subscription: Subscription,
    log: Arc<EventLog>,
    position: Position,
}

impl Consumer {
    pub(crate) fn open(
        log: &Arc<EventLog>,
        data: &Path,
        name: &str,
        start: StartAt,
    ) -> io::Result<Self> {
        let dir = data.join(EVENTS).join(POSITIONS);
        make_directory(&dir)?;
        let position = Position::open(dir.join(name), || match start {
            StartAt::Oldest => EventSeq::START,
            StartAt::Newest => log.last(),
            StartAt::After(seq) => seq,
        })?;
        // After a loss of power the log may know less than a consumer has acknowledged.
        let after = position.acknowledged.min(log.last());
        Ok(Self { subscription: log.subscribe(Some(after)), log: Arc::clone(log), position })
    }

    /// The next event, or that some are missing; waits for one. Cancel-safe.
    pub async fn next(&mut self) -> io::Result<Delivery> {
        self.subscription.next().await
    }

    /// The next event, or that some are missing; `None` if all have been read. Cancel-safe.
    pub async fn poll(&mut self) -> io::Result<Option<Delivery>> {
        self.subscription.poll().await
    }

    /// Everything up to this one has been handed over, acknowledged or not.
    pub fn position(&self) -> EventSeq {
        self.subscription.position()
    }

    /// The last event that was acknowledged.
    pub fn acknowledged(&self) -> EventSeq {
        self.position.acknowledged
    }

    /// Everything up to this one needs no further delivery, not even by the next daemon. After an error it may be
    /// delivered again after a restart. Blocks for as long as a small file takes to be written.
    pub fn acknowledge(&mut self, seq: EventSeq) -> io::Result<()> {
        if seq <= self.position.acknowledged {
            return Ok(());
        }
        self.position.set(seq)
    }

    /// Starts again after this event. The position is set even if it cannot be written; the next acknowledgement
    /// writes it.
    pub fn rewind(&mut self, after: EventSeq) -> io::Result<()> {
        let after = after.min(self.log.last());
        self.subscription = self.log.subscribe(Some(after));
        self.position.set(after)
    }

    /// Removes the position of a consumer that is gone for good. `Ok` if it has none. Blocks.
    pub fn forget(data: &Path, name: &str) -> io::Result<()> {
        match fs::remove_file(data.join(EVENTS).join(POSITIONS).join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The number of the last event that was acknowledged, in a file.
struct Position {
    path: PathBuf,
    acknowledged: EventSeq,
}

impl Position {
    fn open(path: PathBuf, first: impl FnOnce() -> EventSeq) -> io::Result<Self> {
        match fs::read_to_string(&path) {
            Ok(text) => {
                let read = text.strip_suffix('\n').and_then(|number| number.parse().ok());
                if read.is_none() {
                    warn!(path = %path.display(), "a position in the events cannot be read; all events are delivered again");
                }
                Ok(Self { path, acknowledged: read.unwrap_or(EventSeq::START) })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut position = Self { path, acknowledged: EventSeq::START };
                // The next daemon does not skip events that come before the first acknowledgement.
                position.set(first())?;
                Ok(position)
            }
            Err(error) => Err(error),
        }
    }

    fn set(&mut self, seq: EventSeq) -> io::Result<()> {
        self.acknowledged = seq;
        let new = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(format!("{seq}\n").as_bytes())?;
        fs::rename(&new, &self.path)
    }
}
