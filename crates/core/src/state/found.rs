//! How a new daemon interprets a record: the operation in progress is finished, undone, or was already complete.

use super::{Liveness, Next, Operation, Reason, State, Status, done};

pub(super) fn found(status: &Status, liveness: Liveness) -> (Status, Next) {
    match (status.operation, liveness) {
        (Some(Operation::Create), _) => half_made(),
        (Some(Operation::Destroy), _) => (status.clone(), Next::Carry(Operation::Destroy)),
        (Some(Operation::Start), Liveness::Running) => done(status, Operation::Start),
        (Some(Operation::Start), Liveness::NotRunning) => {
            let reason = Reason::Interrupted { operation: Operation::Start };
            (Status::settled_because(State::Stopped, reason), Next::Record)
        }
        (Some(Operation::Stop), Liveness::Running) => {
            (status.clone(), Next::Carry(Operation::Stop))
        }
        (Some(Operation::Stop), Liveness::NotRunning) => done(status, Operation::Stop),
        (Some(Operation::Rollback), _) => (status.clone(), Next::Carry(Operation::Rollback)),
        (
            Some(operation @ (Operation::Pause | Operation::Resume | Operation::Snapshot)),
            Liveness::Running,
        ) => (status.clone(), Next::Carry(operation)),
        (
            Some(Operation::Pause | Operation::Resume | Operation::Snapshot),
            Liveness::NotRunning,
        ) => match found_settled(&status.without_operation(), liveness) {
            (settled, Next::Stay) => (settled, Next::Record),
            otherwise => otherwise,
        },
        (None, _) => found_settled(status, liveness),
    }
}

fn found_settled(status: &Status, liveness: Liveness) -> (Status, Next) {
    match (status.state, liveness) {
        (State::Running | State::Paused, Liveness::NotRunning) => {
            (Status::settled_because(State::Failed, Reason::FoundDead), Next::Record)
        }
        // It was started by something else; the guest answers, so it is running.
        (State::Stopped | State::Failed, Liveness::Running) => {
            (Status::settled(State::Running), Next::Record)
        }
        (State::Running | State::Paused, Liveness::Running)
        | (State::Stopped | State::Failed, Liveness::NotRunning)
        | (State::Creating | State::Destroying, _) => (status.clone(), Next::Stay),
    }
}

pub(super) fn rebooted(status: &Status) -> (Status, Next) {
    match (status.operation, status.state) {
        (Some(Operation::Create), _) => half_made(),
        (Some(Operation::Destroy), _) => (status.clone(), Next::Carry(Operation::Destroy)),
        // The files are restored all the same; the processes stay stopped, like everything that ran.
        (Some(Operation::Rollback), State::Stopped) => {
            (status.clone(), Next::Carry(Operation::Rollback))
        }
        (Some(Operation::Rollback), _) => {
            let stopped = Status {
                state: State::Stopped,
                reason: Some(Reason::HostRebooted),
                ..status.clone()
            };
            (stopped, Next::Carry(Operation::Rollback))
        }
        (Some(Operation::Snapshot), State::Stopped | State::Failed) => {
            (status.without_operation(), Next::Record)
        }
        (None, State::Stopped | State::Failed) => (status.clone(), Next::Stay),
        (_, _) => (Status::settled_because(State::Stopped, Reason::HostRebooted), Next::Record),
    }
}

pub(super) fn missing(status: &Status, detail: String) -> (Status, Next) {
    match status.operation {
        Some(Operation::Create) => half_made(),
        Some(Operation::Destroy) => (status.clone(), Next::Carry(Operation::Destroy)),
        Some(
            Operation::Start
            | Operation::Stop
            | Operation::Pause
            | Operation::Resume
            | Operation::Snapshot
            | Operation::Rollback,
        )
        | None => {
            (Status::settled_because(State::Failed, Reason::Missing { detail }), Next::Record)
        }
    }
}

/// A create that the daemon did not finish: no caller was promised the sandbox, so it is removed.
fn half_made() -> (Status, Next) {
    let reason = Reason::Interrupted { operation: Operation::Create };
    (Status::destroying(Some(reason)), Next::Carry(Operation::Destroy))
}
