//! Decides what to do with a sandbox without a supervisor: a pure function of the evidence.
//!
//! | row | home | verdict |
//! |---|---|---|
//! | `creating` | meta `ready` | it was created; the runtime decides its state |
//! | `creating`, `destroying` | anything else | remove |
//! | any | meta `destroying` | remove: a destroy was requested |
//! | any other | meta | keep; the runtime decides its state, or `stopped` if nothing runs after a reboot |
//! | any other | missing | `failed`: nothing `ready` is deleted without a recorded destroy |
//! | unreadable | | leave alone |
//! | none | meta `ready` | adopt |
//! | none | meta `creating`, `destroying` | remove |
//! | none | empty | remove the home |
//! | none | unreadable | quarantine |
//!
//! A damaged meta with a readable row has been [`mended`] before, so that the runtimes could read it, too.

use std::io;

use crate::records::registry::{Record, Row};
use sandkeep_core::{Liveness, Next, Operation, Purpose, Status, Trigger, Verb, apply};
use sandkeep_home::{HomeState, Meta, Phase, Unreadable};
use sandkeep_store::Revision;

/// Everything that is known of one sandbox.
pub(super) struct Evidence {
    pub row: Option<Row>,
    pub home: HomeState,
    /// `None`: no runtime knows it.
    pub liveness: Option<Liveness>,
}

pub(super) enum Verdict {
    Nothing,
    Leave { why: String },
    RemoveHome,
    Quarantine { why: String },
    Supervise(Box<Case>),
}

/// A sandbox as last recorded, and what has been found since.
pub(super) struct Case {
    /// As on disk, if it exists.
    pub meta: Meta,
    pub status: Status,
    pub revision: Option<Revision>,
    pub trigger: Trigger,
    pub copy: Copy,
}

/// Whether the metadata agree with the row on everything that can change. The row is authoritative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Copy {
    Current,
    Stale,
}

impl Case {
    /// The status shown while its runtime is unavailable; `None` if it is to be removed anyway. It is not written to
    /// the row, whose content is valid again when the runtime is back.
    pub fn without_runtime(&self) -> Option<Status> {
        if matches!(self.trigger, Trigger::Begin(_)) {
            return None;
        }
        let why = format!("runtime {} is not offered by this daemon", self.meta.spec.runtime());
        match apply(&self.status, Trigger::Missing(why)) {
            Ok((status, Next::Record)) => Some(status),
            Ok((_, Next::Stay | Next::Carry(_) | Next::Forget)) | Err(_) => None,
        }
    }
}

/// The metadata to write in place of a damaged file; `None` if the file is not known to be damaged, only unintelligible
/// to this version.
pub(super) fn mended(record: &Record, home: &HomeState) -> Option<Meta> {
    let damaged = match home {
        HomeState::Unreadable(Unreadable::Malformed(_)) => true,
        HomeState::Unreadable(Unreadable::Io(error)) => error.kind() == io::ErrorKind::NotFound,
        HomeState::Unreadable(
            Unreadable::Version { .. }
            | Unreadable::OtherSandbox { .. }
            | Unreadable::OtherInstance { .. },
        )
        | HomeState::Missing
        | HomeState::Empty
        | HomeState::Known(_) => false,
    };
    let phase = match record.status.operation() {
        Some(Operation::Create) => Phase::Creating,
        Some(Operation::Destroy) => Phase::Destroying,
        Some(
            Operation::Start
            | Operation::Stop
            | Operation::Pause
            | Operation::Resume
            | Operation::Snapshot
            | Operation::Rollback,
        )
        | None => Phase::Ready,
    };
    damaged.then(|| {
        let mut meta = record.meta.clone();
        meta.phase = phase;
        meta
    })
}

pub(super) fn judge(evidence: Evidence, boot_id: &str) -> Verdict {
    let Evidence { row, home, liveness } = evidence;
    let liveness = liveness.unwrap_or(Liveness::NotRunning);
    let Some(Row { record, revision }) = row else {
        return without_row(home, liveness, boot_id);
    };
    let Record { meta, mut status } = match record {
        Ok(record) => record,
        Err(why) => return Verdict::Leave { why: why.to_string() },
    };
    let mut copy = Copy::Current;
    let (meta, trigger) = match home {
        // The build that it was created for has ended with its daemon.
        HomeState::Missing | HomeState::Empty if meta.spec.purpose() == Purpose::Build => {
            (meta, Trigger::Begin(Verb::Destroy))
        }
        HomeState::Known(mut found) => {
            let names_differ = (&found.name, &found.renaming) != (&meta.name, &meta.renaming);
            let terms = (&found.terms, &found.began, found.turn);
            if names_differ || terms != (&meta.terms, &meta.began, meta.turn) {
                (found.terms, found.began) = (meta.terms, meta.began);
                (found.name, found.renaming) = (meta.name, meta.renaming);
                // No number is given twice, whichever of the two is older.
                found.turn = found.turn.max(meta.turn);
                copy = Copy::Stale;
            }
            let meta = found;
            if meta.phase == Phase::Ready && status.operation() == Some(Operation::Create) {
                status = made(&status);
            }
            let trigger = match meta.phase {
                Phase::Destroying => Trigger::Begin(Verb::Destroy),
                Phase::Creating | Phase::Ready if meta.spec.purpose() == Purpose::Build => {
                    Trigger::Begin(Verb::Destroy)
                }
                Phase::Creating | Phase::Ready => look(&meta, liveness, boot_id),
            };
            (*meta, trigger)
        }
        HomeState::Missing | HomeState::Empty => {
            (meta, Trigger::Missing("its home directory".to_owned()))
        }
        HomeState::Unreadable(why) => return Verdict::Leave { why: why.to_string() },
    };
    Verdict::Supervise(Box::new(Case { meta, status, revision: Some(revision), trigger, copy }))
}

fn without_row(home: HomeState, liveness: Liveness, boot_id: &str) -> Verdict {
    match home {
        HomeState::Missing => Verdict::Nothing,
        HomeState::Empty => Verdict::RemoveHome,
        HomeState::Unreadable(why) => Verdict::Quarantine { why: why.to_string() },
        HomeState::Known(meta) => {
            let (status, trigger) = known_by_meta(&meta, liveness, boot_id);
            let copy = Copy::Current;
            let case = Case { meta: *meta, status, revision: None, trigger, copy };
            Verdict::Supervise(Box::new(case))
        }
    }
}

/// Only the files are left, and they do not say whether it was meant to run.
fn known_by_meta(meta: &Meta, liveness: Liveness, boot_id: &str) -> (Status, Trigger) {
    let creating = Status::creating();
    if meta.spec.purpose() == Purpose::Build {
        return (creating, Trigger::Begin(Verb::Destroy));
    }
    match (meta.phase, look(meta, liveness, boot_id)) {
        (Phase::Destroying, _) => (creating, Trigger::Begin(Verb::Destroy)),
        (Phase::Creating, look) => (creating, look),
        (Phase::Ready, Trigger::HostRebooted) => (made(&creating), Trigger::HostRebooted),
        (Phase::Ready, look) => (Status::stopped(), look),
    }
}

/// Every launch first writes its boot id into the metadata, so they tell whether what ran then can still be running. A
/// sandbox that does run needs no such proof.
fn look(meta: &Meta, liveness: Liveness, boot_id: &str) -> Trigger {
    match (liveness, meta.boot_id == boot_id) {
        (Liveness::Running, _) | (Liveness::NotRunning, true) => Trigger::Found(liveness),
        (Liveness::NotRunning, false) => Trigger::HostRebooted,
    }
}

/// The status of a create that finished without being recorded.
fn made(creating: &Status) -> Status {
    apply(creating, Trigger::Done(Operation::Create)).expect("a create is under way").0
}
