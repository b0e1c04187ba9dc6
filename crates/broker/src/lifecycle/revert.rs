//! revert: restore some files from a snapshot, and change nothing else.
//!
//! ```text
//!   row `reverts/<sandbox>` ─▶ compare ─▶ archive of the differences ─▶ toolbox, inside, as root ─▶ row removed
//! ```
//!
//! If the root is a plain directory, the host changes it in place, while the sandbox is frozen or not running: the host
//! never writes to a tree that is being changed concurrently. An overlay must not be modified from outside and is
//! mounted only inside, so there the sandbox changes its own files; so it does if the runtime cannot freeze it. A
//! stopped sandbox is started for this, without its template's start command, and stopped again.
//!
//! The steps are repeatable. A daemon that finds the row of an earlier one starts over and compares again: finished
//! parts no longer differ. A revert that is too large, or takes too long, is abandoned; so is one that
//! [`limits::REVERT_ATTEMPTS_MAX`] daemons died on. The sandbox's log has the reason.

mod archive;
mod intent;

use std::sync::Arc;

use super::diff::{READ, inside};
use super::quiesce::Quiesced;
use super::request::Command;
use super::snapshot::SnapshotIndex;
use super::supervisor::Supervisor;
use super::volume::Stored;
use super::work::FileWork;
use crate::Broker;
use crate::error::Error;
use crate::inside::changed;
use crate::inside::toolbox::{self, ToolboxRequest, Whom};
use crate::policy::slots::Slot;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{
    Principal, SandboxId, SnapshotId, SnapshotName, State, Trigger, Verb, event::EventKind,
    failpoint, limits, with_causes,
};
use sandkeep_tree::{
    Root, TreePath, View,
    diff::{self, Diff, Lineage, Options, Renames},
    view::Last,
};

pub(crate) use intent::{Intent, finish_all};

/// The files to restore.
pub(crate) struct RevertRequest {
    pub snapshot: SnapshotId,
    /// The sandbox whose snapshot it is, if another's: the winner of a race.
    pub of: Option<SandboxId>,
    pub paths: Vec<TreePath>,
    /// Mount points inside.
    pub hidden: Vec<TreePath>,
    /// The sandbox was started for this, and is to be stopped again.
    pub woken: bool,
    /// How many daemons have started it.
    pub attempts: u32,
    /// The caller's slot, held until the end.
    pub _slot: Option<Slot>,
}

impl Broker {
    /// Returns the paths that differed.
    pub async fn revert(
        &self,
        who: &Principal,
        id: &SandboxId,
        snapshot: &SnapshotName,
        paths: &[String],
    ) -> Result<Vec<String>, Error> {
        let handle = self.shared.find(who, id)?;
        handle.volume.with_snapshots()?;
        let max = limits::REVERT_PATHS_MAX;
        if paths.is_empty() || paths.len() > max {
            let problem =
                format!("there must be 1 to {max} of them, and there are {}", paths.len());
            return Err(Error::InvalidField { field: "paths", problem });
        }
        let spec = &handle.meta().spec;
        let paths: Result<_, Error> =
            paths.iter().map(|path| inside("paths", spec, path)).collect();
        let request = RevertRequest {
            snapshot: handle.snapshot_named(snapshot)?.id.clone(),
            of: None,
            paths: paths?,
            hidden: self.hidden(&handle)?,
            woken: false,
            attempts: 0,
            _slot: Some(self.shared.file_work.take(&who.organization)?),
        };
        let revert = |reply| Command::Revert(Box::new(request), reply);
        let reverted = handle.ask(&self.shared, Verb::Revert, revert).await?;
        let shown = reverted
            .into_iter()
            .map(|path| if path.is_root() { "/".to_owned() } else { format!("/{}", path.shown()) });
        let shown: Vec<String> = shown.collect();
        if let Some(subject) = handle.execs.subject.as_ref().filter(|_| !shown.is_empty()) {
            let paths = shown.iter().take(limits::EVENT_PATHS_MAX).map(|path| changed::cut(path));
            let kind = EventKind::SandboxReverted {
                name: snapshot.clone(),
                paths: paths.collect(),
                count: shown.len() as u64,
                by: who.user.clone(),
            };
            self.shared.emit(subject, &kind);
        }
        Ok(shown)
    }
}

/// Who changes the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changer {
    /// The host, in place, while nothing inside runs.
    Host,
    /// The sandbox itself, as root.
    Sandbox,
}

impl Supervisor {
    pub(crate) async fn revert(&mut self, request: RevertRequest) -> Result<Vec<TreePath>, Error> {
        self.next(Trigger::Begin(Verb::Revert))?;
        let root = self.volume.with_snapshots()?.root().await?;
        let changer = match &root {
            Root::Dir(_) | Root::Shifted(_) if self.can_quiesce().is_ok() => Changer::Host,
            Root::Dir(_) | Root::Shifted(_) | Root::Overlay { .. } => Changer::Sandbox,
        };
        let sleeps = self.status().state() == State::Stopped;
        let wake = sleeps && changer == Changer::Sandbox;
        let intent = Intent::of(&request, request.woken || wake);
        intent.write(&*self.shared.store, self.id()).await?;
        failpoint!("revert.after_intent");
        let done = if request.attempts < limits::REVERT_ATTEMPTS_MAX {
            self.restore(&request, &root, changer).await
        } else {
            Err(Error::RevertAbandoned { attempts: request.attempts })
        };
        // The next daemon continues.
        if let Err(Error::ShuttingDown) = &done {
            return done;
        }
        // A sandbox that could not be started is `failed`.
        if (request.woken || wake) && self.status().state() == State::Running {
            self.stop().await?;
        }
        // After a failure as well: the caller got the error, and may retry.
        Intent::over(&*self.shared.store, self.id()).await?;
        failpoint!("revert.after_outcome");
        if let Err(error) = &done {
            self.emit(&EventKind::SandboxRevertFailed { reason: with_causes(error) });
        }
        done
    }

    async fn restore(
        &mut self,
        request: &RevertRequest,
        root: &Root,
        changer: Changer,
    ) -> Result<Vec<TreePath>, Error> {
        let quiesced = match changer {
            Changer::Sandbox => Quiesced::AtRest,
            // Nothing else changes the tree while the host does.
            Changer::Host => self.quiesce().await?,
        };
        let done = self.restore_as(request, root, changer).await;
        failpoint!("revert.after_files");
        self.unquiesce(quiesced).await?;
        done
    }

    async fn restore_as(
        &mut self,
        request: &RevertRequest,
        root: &Root,
        changer: Changer,
    ) -> Result<Vec<TreePath>, Error> {
        let (snapshots, holder) = self.holder_of(request)?;
        let _kept = snapshots.reading().await;
        let volume = self.volume.with_snapshots()?.clone();
        let work = FileWork::new(&self.shared, self.id(), self.destroys());
        let now = volume.view(None).await?.within(&work.effort);
        let then = holder.view(Some(&request.snapshot)).await?.within(&work.effort);
        let (paths, hidden) = (request.paths.clone(), request.hidden.clone());
        let memory = Arc::new(self.shared.answers.open(&self.meta.owner));
        let counted = Some(Arc::clone(&memory));
        let compared = work.run(READ, move || {
            let diff = compare(&now, &then, &paths, hidden, counted)?;
            // Before anything is changed: a revert that cannot be completed is not started.
            archive::check_size(&diff)?;
            Ok((diff, then))
        });
        let (diff, then) = compared.await?;
        if diff.truncated {
            let limit = limits::DIFF_CHANGES_MAX;
            return Err(Error::LimitReached { what: "files that differ; name fewer paths", limit });
        }
        let differed: Vec<TreePath> =
            diff.changes.iter().map(|change| change.path.clone()).collect();
        if differed.is_empty() {
            return Ok(differed);
        }
        let effort = work.effort.anew(limits::TREE_WORK_MAX_BYTES, limits::REVERT_MAX);
        let (work, then) = (work.then(effort.clone()), then.within(&effort));
        match changer {
            // Running processes see the change at once, and the rights of processes inside do not matter.
            Changer::Host => {
                let path = root.own_dir().to_owned();
                let restored = work.run(READ, move || {
                    let archive = archive::of(diff, then);
                    ::toolbox::restore(&path, archive).map_err(std::io::Error::other)
                });
                restored.await?;
            }
            Changer::Sandbox => {
                if self.status().state() == State::Stopped {
                    self.wake().await?;
                }
                self.restore_inside(&work, diff, then).await?;
            }
        }
        Ok(differed)
    }

    /// The snapshots, and the volume, that the files come from.
    fn holder_of(&self, request: &RevertRequest) -> Result<(Arc<SnapshotIndex>, Stored), Error> {
        let Some(other) = &request.of else {
            return Ok((Arc::clone(&self.snapshots), self.volume.with_snapshots()?.clone()));
        };
        let gone = || Error::NotFound { id: other.clone() };
        let handle = self.shared.supervised(other).ok_or_else(gone)?;
        Ok((Arc::clone(&handle.snapshots), handle.volume.with_snapshots()?.clone()))
    }

    async fn restore_inside(&self, work: &FileWork, diff: Diff, then: View) -> Result<(), Error> {
        let id = self.id();
        let handle = self.shared.supervised(id);
        let handle = handle.ok_or_else(|| Error::NotFound { id: id.clone() })?;
        let request = ToolboxRequest {
            whom: Whom::Root,
            timeout: Some(limits::REVERT_MAX),
            ..ToolboxRequest::long(::toolbox::Operation::Restore {})
        };
        let mut run = toolbox::begin(&self.shared, &handle, request).await?;
        let input = run.input();
        let sending = async {
            let mut archive = archive::of(diff, then);
            loop {
                let piece;
                // An incomplete archive has no end, and changes nothing more.
                (archive, piece) = work.piece(READ, archive).await?;
                if piece.is_empty() {
                    input.end().await;
                    return Ok::<(), Error>(());
                }
                input.send(&piece).await;
            }
        };
        let answered = run.answer_while::<::toolbox::Unpacked, Error>(sending);
        work.unless_unwanted(answered).await?.map(drop)
    }
}

/// The changes that turn `now` into `then` at these paths.
fn compare(
    now: &View,
    then: &View,
    paths: &[TreePath],
    hidden: Vec<TreePath>,
    memory: Option<Arc<Reservation>>,
) -> std::io::Result<Diff> {
    let mut beneath = Vec::with_capacity(paths.len());
    for path in paths {
        // As the path resolves in the snapshot or, failing that, in the present.
        let meant = match then.resolve(path, Last::Itself)? {
            Some(meant) => Some(meant),
            None => now.resolve(path, Last::Itself)?,
        };
        beneath.push(meant.unwrap_or_else(|| path.clone()));
    }
    let options = Options {
        hidden,
        beneath,
        lineage: Lineage::Unrelated,
        renames: Renames::Ignored,
        changes_max: limits::DIFF_CHANGES_MAX,
        memory,
    };
    diff::compare(now, then, &options)
}

#[cfg(test)]
mod tests;
