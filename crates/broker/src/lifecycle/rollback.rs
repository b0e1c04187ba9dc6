//! rollback: restores all files from a snapshot. All processes end, the volume is swapped, and the guest is launched
//! again. The sandbox keeps its id, owner, labels, slot, journals, all snapshots and all forks.
//!
//! The intent names the snapshot and cannot be undone: a daemon that finds it repeats all of it.

use std::sync::Arc;
use std::time::Duration;

use super::request::Command;
use super::snapshot::{Record, not_found};
use super::supervisor::Supervisor;
use crate::Broker;
use crate::error::Error;
use crate::view::View;
use sandkeep_core::event::EventKind;
use sandkeep_core::{
    Operation, Principal, SandboxId, SnapshotName, State, Trigger, Verb, failpoint, with_causes,
};
use sandkeep_traces::{step, within};

/// A rollback request.
pub(crate) struct RollbackRequest {
    pub snapshot: Arc<Record>,
    pub execs: OnExecs,
}

/// What happens to running commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExecs {
    /// They continue, and the rollback is refused.
    Refuse,
    /// They end with everything else.
    End,
}

impl Broker {
    /// Restores the files of a sandbox from a snapshot.
    pub async fn rollback(
        &self,
        who: &Principal,
        id: &SandboxId,
        snapshot: &SnapshotName,
        execs: OnExecs,
    ) -> Result<View, Error> {
        let handle = self.shared.find(who, id)?;
        handle.volume.with_snapshots()?;
        handle.activity.touch();
        let request = RollbackRequest { snapshot: handle.snapshot_named(snapshot)?, execs };
        let rollback = |reply| Command::Rollback(request, reply);
        handle.ask(&self.shared, Verb::Rollback, rollback).await?;
        Ok(handle.view())
    }
}

impl Supervisor {
    pub(crate) async fn rollback(&mut self, request: RollbackRequest) -> Result<(), Error> {
        let RollbackRequest { snapshot, execs } = request;
        // It may have been deleted while the request was queued.
        if self.snapshots.get(&snapshot.id).is_none() {
            return Err(not_found(self.id(), &snapshot.name));
        }
        let (status, _) = self.next(Trigger::RollBack(snapshot.id.clone()))?;
        if status.state() != State::Stopped {
            self.shared.usable_runtime(self.meta.spec.runtime())?;
        }
        self.commands_allow(execs)?;
        self.begin_anew(status.state());
        self.record(status).await?;
        failpoint!("rollback.after_intent");
        // After the intent no more commands start; one may have started before.
        if let Err(running) = self.commands_allow(execs) {
            let status = self.after(Trigger::CalledOff(Operation::Rollback));
            self.settle(status).await;
            return Err(running);
        }
        self.finish_rollback().await
    }

    fn commands_allow(&self, execs: OnExecs) -> Result<(), Error> {
        match execs {
            OnExecs::Refuse if self.execs.activity.commands() > 0 => {
                Err(self.execs_in_flight(Verb::Rollback))
            }
            OnExecs::Refuse | OnExecs::End => Ok(()),
        }
    }

    /// The timeout restarts: a sandbox that was paused at its timeout could not be used otherwise.
    fn begin_anew(&mut self, before: State) {
        if !matches!(before, State::Running | State::Stopped) {
            self.meta_mut().began = self.shared.now();
            self.activity.touch();
        }
        if before == State::Failed {
            self.expect_network();
        }
    }

    /// Everything after the intent; reconcile also runs this for an interrupted rollback.
    pub(crate) async fn finish_rollback(&mut self) -> Result<(), Error> {
        let to = self.status().rollback_to().and_then(|id| self.snapshots.get(id));
        let result = self.swap_and_launch().await;
        let event = match &result {
            Ok(()) => Trigger::Done(Operation::Rollback),
            Err(cause) => {
                self.expect_death();
                Trigger::Failed(Operation::Rollback, with_causes(cause))
            }
        };
        let status = self.after(event);
        let state = status.state();
        self.settle(status).await;
        if let (Ok(()), Some(to)) = (&result, to) {
            self.emit(&EventKind::SandboxRolledBack { name: to.name.clone(), state });
        }
        self.set_alarm();
        failpoint!("rollback.after_outcome");
        result?;
        match self.status().state() {
            State::Running => self.start_up().await,
            _ => Ok(()),
        }
    }

    async fn swap_and_launch(&mut self) -> Result<(), Error> {
        let status = self.status();
        let nothing_named = || Error::SandboxFailed {
            id: self.id().clone(),
            reason: "a rollback was begun that names no snapshot".to_owned(),
        };
        let snapshot = status.rollback_to().cloned().ok_or_else(nothing_named)?;
        self.expect_death();
        self.forget_guest();
        self.network.close();
        // Anything they would still write is discarded anyway.
        self.before_its_processes_end().await;
        within(step!("runtime.stop"), self.runtime.stop(self.id(), Duration::ZERO)).await?;
        failpoint!("rollback.after_processes");
        let volume = self.volume.with_snapshots()?;
        let root = self.unless_destroyed(volume.rollback(&snapshot)).await?;
        failpoint!("rollback.after_volume");
        // Restored files must be writable again from the start.
        self.volume.tend().await;
        if status.state() != State::Stopped {
            self.meta_mut().boot_id = self.shared.data.boot_id().to_owned();
            self.prepare_launch().await?;
            self.launch(Some(root)).await?;
            failpoint!("rollback.after_launch");
        }
        Ok(())
    }
}
