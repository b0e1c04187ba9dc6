//! What happened to a sandbox, for whoever looks back: its creation, states, snapshots and forks from the timeline
//! in its home, its execs from their journals. Both are bounded, and the oldest goes first.

use std::sync::Arc;

use tracing::debug;

use crate::Broker;
use crate::error::Error;
use crate::lifecycle::snapshot::Record;
use crate::lifecycle::supervisor::Supervisor;
use crate::shared::Shared;
use sandkeep_core::{Principal, SandboxId, api::Exec};
use sandkeep_home::{Home, timeline};

pub use sandkeep_core::api::{Happening, LogEntry};

pub(crate) fn of_snapshot(record: &Record) -> Happening {
    let (snapshot, name) = (record.id.clone(), record.name.clone());
    let (bytes, note) = (record.bytes, record.note.clone());
    match record.kind.turn() {
        Some(turn) => Happening::Turn { snapshot, name, turn, bytes, note },
        None => Happening::Snapshot { snapshot, name, bytes, note },
    }
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
    /// The last things that happened to a sandbox, at most `limit`, the oldest first.
    pub async fn log(
        &self,
        who: &Principal,
        id: &SandboxId,
        limit: usize,
    ) -> Result<Vec<LogEntry>, Error> {
        let handle = self.shared.find(who, id)?;
        let execs = self.last_execs(&handle, limit).await?;
        let home = self.shared.data.home(id);
        let lines = self.shared.blocking(move |_| timeline::read(home.path())).await?;
        let created = Happening::Created {
            runtime: handle.meta().spec.runtime().to_owned(),
            template: handle.meta().spec.template().to_owned(),
        };
        let mut entries = vec![LogEntry { at: handle.meta().created_at, what: created }];
        // A line that a crash has cut short says nothing.
        let lines = lines.split(|byte| *byte == b'\n');
        entries.extend(lines.filter_map(|line| serde_json::from_slice::<LogEntry>(line).ok()));
        entries.extend(execs.into_iter().map(of_exec));
        entries.sort_by_key(|entry| entry.at);
        Ok(entries.split_off(entries.len().saturating_sub(limit)))
    }
}

impl Shared {
    /// Writes down what happened. Nothing follows from it, so nothing fails for it.
    pub async fn note(self: &Arc<Self>, home: &Home, what: Happening) {
        let entry = LogEntry { at: self.clock.wall(), what };
        let line = serde_json::to_vec(&entry).expect("an entry holds only strings and numbers");
        let home = home.clone();
        let noted = self.blocking(move |_| timeline::append(home.path(), &line)).await;
        if let Err(error) = noted {
            debug!(%error, "cannot note down what happened to a sandbox");
        }
    }
}

impl Supervisor {
    pub(crate) async fn note(&self, what: Happening) {
        self.shared.note(&self.home, what).await;
    }

    /// The same for the state that it is in now.
    pub(crate) async fn note_state(&self) {
        use sandkeep_core::State;
        let status = self.status();
        let reason = status.reason().map(ToString::to_string);
        let what = match status.state() {
            State::Stopped => Happening::Stopped { reason },
            State::Paused => Happening::Paused { reason },
            State::Failed => Happening::Failed { reason: reason.unwrap_or_default() },
            State::Creating | State::Running | State::Destroying => return,
        };
        self.note(what).await;
    }
}
