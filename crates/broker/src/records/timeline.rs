//! The history of a sandbox: its creation, states, snapshots and forks from the timeline in its home, its execs from
//! their journals. Both are bounded, and the oldest entries are removed first.
//!
//! ```text
//!   log of events ──▶ cursor ──▶ <home>/timeline     at intervals, on request, and before sandboxes are recovered
//! ```
//!
//! A timeline is the sandbox's own part of the event log, and is kept when the log has dropped it. The cursor is
//! written after the lines: a line that is repeated after a crash is read once.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use tracing::{debug, warn};

use super::events::{Cursor, Delivery, EVENTS, EventLog};
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::event::{Event, EventKind, EventSeq};
use sandkeep_core::{Principal, SandboxId, api::Exec, limits};
use sandkeep_home::{DataDir, timeline};

pub use sandkeep_core::api::{Happening, LogEntry};

/// The position up to which events were copied to timelines, in the log's directory.
const CURSOR: &str = "timelines";

/// Copies events to the homes of their sandboxes.
pub(crate) struct Timelines {
    saved: PathBuf,
    /// Held while copying; `None` before the first time.
    cursor: Mutex<Option<Cursor>>,
    /// Held, shared, while a home is removed: nothing may be appended to its timeline meanwhile.
    removals: RwLock<()>,
}

impl Timelines {
    pub fn in_data_dir(data: &Path) -> Self {
        let saved = data.join(EVENTS).join(CURSOR);
        Self { saved, cursor: Mutex::default(), removals: RwLock::default() }
    }

    /// Nothing is appended to any timeline while this is held.
    pub fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.removals.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies all new events. Blocks.
    fn copy(&self, log: &EventLog, data: &DataDir) -> io::Result<()> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let cursor = cursor.get_or_insert_with(|| Cursor::new(log.place_of_earlier(self.saved())));
        let before = cursor.after();
        loop {
            let batch = cursor.read(log)?;
            if batch.is_empty() {
                break;
            }
            for delivery in batch {
                match delivery {
                    Delivery::Event(event) => self.add(&event, data),
                    Delivery::Gap { oldest, .. } => {
                        warn!(%oldest, "timelines lack events that are not kept any more");
                    }
                }
            }
        }
        // On a full disk the next daemon copies them again; this is no reason to fail.
        if cursor.after() != before
            && let Err(error) = fs::write(&self.saved, cursor.after().to_string())
        {
            warn!(%error, "cannot save how far the timelines of sandboxes are copied");
        }
        Ok(())
    }

    fn saved(&self) -> EventSeq {
        let saved = fs::read_to_string(&self.saved).ok().and_then(|text| text.parse().ok());
        saved.map_or(EventSeq::START, EventSeq::new)
    }

    fn add(&self, event: &Event, data: &DataDir) {
        let forks = match &event.kind {
            EventKind::SandboxForked { sandboxes, .. } => sandboxes.as_slice(),
            _ => &[],
        };
        let concerned = event.subject.sandbox.iter().chain(forks);
        for id in concerned.filter(|id| Happening::of_event(event, id).is_some()) {
            let line = serde_json::to_vec(event).expect("an event holds strings and numbers");
            let _no_removal = self.removals.write().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = timeline::append(data.home(id).path(), &line) {
                debug!(%id, %error, "cannot add an event to the timeline of a sandbox");
            }
        }
    }
}

/// Brings all timelines up to date.
pub(crate) async fn catch_up(shared: &Arc<Shared>) -> Result<(), Error> {
    let all = Arc::clone(shared);
    shared.blocking(move |data| all.timelines.copy(&all.events, data)).await
}

/// Keeps them nearly up to date until the broker closes.
pub(crate) async fn keep_up(shared: Arc<Shared>) {
    let mut last = shared.events.watch_last();
    // Recovery has published events already.
    last.mark_changed();
    loop {
        let news = async {
            // Fails only without the log, which is held here.
            let _ = last.changed().await;
            tokio::time::sleep(limits::TIMELINE_DELAY).await;
        };
        tokio::select! {
            () = shared.closing.cancelled() => return,
            () = news => {}
        }
        if let Err(error) = catch_up(&shared).await {
            warn!(%error, "cannot bring the timelines of sandboxes up to date");
        }
    }
}

/// The known history of a sandbox.
#[derive(Default)]
pub(crate) struct Past {
    /// In order, without duplicates.
    pub events: Vec<Event>,
    /// Entries of versions that had no event log yet.
    earlier: Vec<LogEntry>,
}

/// Reads the timeline of a sandbox, which is as recent as the last [`catch_up`].
pub(crate) async fn past(shared: &Arc<Shared>, id: &SandboxId) -> Result<Past, Error> {
    let home = shared.data.home(id);
    let lines = shared.blocking(move |_| timeline::read(home.path())).await?;
    let (mut events, mut earlier, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    // A line truncated by a crash is ignored.
    for line in lines.split(|byte| *byte == b'\n') {
        match serde_json::from_slice::<Event>(line) {
            Ok(event) if seen.insert(line) => events.push(event),
            Ok(_) => {}
            Err(_) => earlier.extend(serde_json::from_slice::<LogEntry>(line).ok()),
        }
    }
    Ok(Past { events, earlier })
}

fn of_exec(exec: Exec) -> LogEntry {
    let what = Happening::Exec {
        exec_id: exec.exec_id,
        argv: exec.argv,
        status: exec.status.as_str().to_owned(),
        exit_code: exec.exit_code,
        signal: exec.signal,
        duration_ms: exec.duration_ms,
    };
    LogEntry { at: exec.started_at, what }
}

impl Broker {
    /// The last entries of a sandbox's history, at most `limit`, oldest first.
    pub async fn log(
        &self,
        who: &Principal,
        id: &SandboxId,
        limit: usize,
    ) -> Result<Vec<LogEntry>, Error> {
        let handle = self.shared.find(who, id)?;
        let _turn = self.shared.log_reads.wait(&who.organization).await;
        let execs = self.last_execs(&handle, limit).await?;
        catch_up(&self.shared).await?;
        let Past { events, earlier } = past(&self.shared, id).await?;
        // Its timeline may have dropped the creation; its metadata have it.
        let created = Happening::Created {
            runtime: handle.meta().spec.runtime().to_owned(),
            template: handle.meta().spec.template().to_owned(),
        };
        let mut entries = vec![LogEntry { at: handle.meta().created_at, what: created }];
        entries.extend(earlier);
        let of_event = |event: &Event| {
            let what = Happening::of_event(event, id)?;
            (!matches!(what, Happening::Created { .. })).then_some(LogEntry { at: event.at, what })
        };
        entries.extend(events.iter().filter_map(of_event));
        entries.extend(execs.into_iter().map(of_exec));
        entries.sort_by_key(|entry| entry.at);
        Ok(entries.split_off(entries.len().saturating_sub(limit)))
    }
}
