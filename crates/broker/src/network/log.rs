//! Writes the network logs of all sandboxes and the events about their networks, on a thread of its own: decisions are
//! made on the way of a connection, which must not wait for a disk.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::clock::Clock;
use crate::records::events::EventLog;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::limits;
use sandkeep_core::network::Decision;
use sandkeep_home::network_log;

pub(super) enum Line {
    Decided {
        home: PathBuf,
        decision: Decision,
    },
    /// Of its limit the sandbox has used so much.
    Used {
        home: PathBuf,
        bytes: u64,
    },
    Told {
        subject: Subject,
        kind: EventKind,
    },
    /// Everything before it was written.
    Written(oneshot::Sender<()>),
}

/// Begins to write when there is something to write.
pub(super) struct LogWriter {
    events: Arc<EventLog>,
    clock: Arc<dyn Clock>,
    queue: OnceLock<mpsc::Sender<Line>>,
}

impl LogWriter {
    pub fn begin(events: Arc<EventLog>, clock: Arc<dyn Clock>) -> Self {
        Self { events, clock, queue: OnceLock::new() }
    }

    /// Where lines go. A full queue loses them: the disk is too slow for what sandboxes do.
    pub fn queue(&self) -> mpsc::Sender<Line> {
        let begin = || {
            let (queue, lines) = mpsc::channel(limits::NETWORK_LOG_QUEUE_MAX);
            let (events, clock) = (Arc::clone(&self.events), Arc::clone(&self.clock));
            let writer = std::thread::Builder::new().name("network-log".to_owned());
            if let Err(error) = writer.spawn(move || write_all(lines, &events, clock.as_ref())) {
                warn!(%error, "cannot write the network logs of sandboxes");
            }
            queue
        };
        self.queue.get_or_init(begin).clone()
    }

    /// Returns when everything that was queued before is written.
    pub async fn flush(&self) {
        let Some(queue) = self.queue.get() else { return };
        let (written, answer) = oneshot::channel();
        if queue.send(Line::Written(written)).await.is_ok() {
            let _ = answer.await;
        }
    }
}

/// Ends when nobody can send lines any more.
fn write_all(mut lines: mpsc::Receiver<Line>, events: &EventLog, clock: &dyn Clock) {
    let mut failed = false;
    while let Some(line) = lines.blocking_recv() {
        match line {
            Line::Decided { home, decision } => {
                let text = serde_json::to_vec(&decision).expect("a decision is text and numbers");
                let written = network_log::append(&home, &text);
                if let (Err(error), false) = (&written, failed) {
                    warn!(%error, home = %home.display(), "cannot write a network log");
                }
                failed = written.is_err();
            }
            Line::Used { home, bytes } => {
                if let Err(error) = network_log::keep_used_bytes(&home, bytes) {
                    warn!(%error, home = %home.display(), "cannot note the bytes that a network used");
                }
            }
            Line::Told { subject, kind } => drop(events.append(clock.wall(), &subject, &kind)),
            Line::Written(done) => drop(done.send(())),
        }
    }
}
