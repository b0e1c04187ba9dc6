//! The events of a sandbox: each outcome is published once, whichever daemon records it.
//!
//! A change of state is published after its row was written. A daemon that adopts a sandbox compares its row with what
//! the timeline says was published, and publishes the difference. The end of a sandbox is published before its row is
//! removed, because afterwards nothing would be left to compare: a daemon that finds the row looks for that event in
//! the log.

use std::collections::BTreeMap;

use tracing::warn;

use super::Supervisor;
use crate::lifecycle::snapshot::Record;
use crate::records::events::Revisited;
use crate::records::timeline::{self, Past};
use sandkeep_core::event::{EventKind, SnapshotMade, Subject};
use sandkeep_core::{Operation, Purpose, Reason, State, Status};
use sandkeep_home::Meta;

/// What subscribers know of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishedState {
    /// Unknown so far, or they know of its end: nothing is published.
    Hushed,
    /// They know nothing of it.
    Nothing,
    State(State),
}

/// The subject of a sandbox's events; `None` for a build sandbox, whose events are not published.
pub(crate) fn subject(meta: &Meta) -> Option<Subject> {
    match meta.spec.purpose() {
        Purpose::Use => Some(Subject { owner: meta.owner.clone(), sandbox: Some(meta.id.clone()) }),
        Purpose::Build => None,
    }
}

/// Whether its create was not, or will not be, acknowledged.
fn was_never_made(status: &Status) -> bool {
    let failed = match status.reason() {
        Some(Reason::VerbFailed { operation, .. } | Reason::Interrupted { operation }) => {
            *operation == Operation::Create
        }
        Some(_) | None => false,
    };
    failed || status.operation() == Some(Operation::Create)
}

impl Supervisor {
    pub(crate) fn emit(&self, kind: &EventKind) {
        if let Some(subject) = &self.execs.subject {
            self.shared.emit(subject, kind);
        }
    }

    /// The labels that consumers need in events. They cannot ask for them when the sandbox is gone.
    fn told_labels(&self) -> BTreeMap<String, String> {
        let all = &self.meta.terms.labels;
        let wanted = self.shared.policy.event_labels.iter();
        wanted
            .filter_map(|name| all.get_key_value(name))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Tells the status that was just published, if it is a change that was not told.
    pub(super) fn tell_state(&mut self, before: &Status) {
        let after = self.status();
        if self.told == PublishedState::Hushed || after.operation().is_some() {
            return;
        }
        let was = match self.told {
            PublishedState::State(state) => state,
            PublishedState::Nothing | PublishedState::Hushed => {
                let (runtime, template) = (self.meta.spec.runtime(), self.meta.spec.template());
                let (runtime, template) = (runtime.to_owned(), template.to_owned());
                let labels = self.told_labels();
                self.emit(&EventKind::SandboxCreated { runtime, template, labels });
                State::Running
            }
        };
        if let Some(mut kind) = EventKind::of_status(was, before, &after) {
            if let EventKind::SandboxFailed { runtime, labels, .. } = &mut kind {
                *runtime = Some(self.meta.spec.runtime().to_owned());
                *labels = self.told_labels();
            }
            self.emit(&kind);
        }
        self.told = PublishedState::State(after.state());
    }

    /// Publishes that everything but its row is gone.
    pub(crate) fn tell_destroyed(&mut self) {
        if let PublishedState::State(_) = self.told {
            let reason = self.status().reason().map(ToString::to_string);
            let runtime = Some(self.meta.spec.runtime().to_owned());
            let labels = self.told_labels();
            self.emit(&EventKind::SandboxDestroyed { reason, runtime, labels });
        }
        self.told = PublishedState::Hushed;
    }

    pub(crate) fn tell_snapshot(&self, record: &Record) {
        let (snapshot, name) = (record.id.clone(), record.name.clone());
        let made = SnapshotMade { snapshot, name, bytes: record.bytes, note: record.note.clone() };
        self.emit(&match record.kind.turn() {
            Some(turn) => EventKind::TurnCompleted { turn, snapshot: made },
            None => EventKind::SnapshotCreated(made),
        });
    }

    /// Finds out what an earlier daemon has published about this sandbox. A missing snapshot event is published now, a
    /// missing state with the next [`Self::publish`].
    pub(crate) async fn restore_told(&mut self, recorded: &Status, revisited: &Revisited) {
        let past = timeline::past(&self.shared, self.id()).await.unwrap_or_else(|error| {
            warn!(id = %self.id(), %error, "cannot read the timeline of a sandbox");
            Past::default()
        });
        let last = past.events.iter().rev().find_map(|event| event.kind.state());
        let home_is_gone = !self.home.path().exists();
        self.told = match last {
            _ if revisited.destroyed.contains(self.id()) => PublishedState::Hushed,
            Some(state) => PublishedState::State(state),
            None if was_never_made(recorded) => PublishedState::Nothing,
            // The timeline was truncated, or is gone with the home.
            None if home_is_gone || !past.events.is_empty() => {
                PublishedState::State(recorded.state())
            }
            None => PublishedState::Nothing,
        };
        let Some(newest) = self.snapshots.all().pop() else { return };
        let is_newest = |made: &SnapshotMade| made.snapshot == newest.id;
        let told = past.events.iter().any(|event| match &event.kind {
            EventKind::SnapshotCreated(made) => is_newest(made),
            EventKind::TurnCompleted { snapshot: made, .. } => is_newest(made),
            _ => false,
        });
        if recorded.operation() == Some(Operation::Snapshot) && !told {
            self.tell_snapshot(&newest);
        }
    }
}
