//! What has changed in a codebase since it was created from its source: the same comparison, answers and bundles as
//! for the files of a sandbox. The present is read while sandboxes may write to it.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::{mpsc, oneshot, watch};

use super::{Row, TREE};
use crate::Broker;
use crate::error::Error;
use crate::lifecycle::diff::{DiffBundle, DiffText, Listed, READ, pass_on};
use crate::lifecycle::work::FileWork;
use crate::shared::Shared;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{CodebaseRef, Principal, limits};
use sandkeep_tree::{
    View,
    diff::{self, Diff, DiffReport, FileChange, Lineage, Options, Renames, Side},
};

/// The input of a comparison.
struct Comparison {
    row: Row,
    options: Options,
    work: FileWork,
    /// Nobody waits for a codebase's end as for a sandbox's: it cannot be deleted while this counts no one.
    _destroys: watch::Sender<usize>,
}

impl Broker {
    /// The changes since the codebase was created, and the memory reserved for them, to be held until they were sent.
    pub async fn codebase_diff(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        limit: Option<usize>,
        text: DiffText,
    ) -> Result<(DiffReport, Option<Arc<Reservation>>), Error> {
        let _slot = self.shared.file_work.take(&who.organization)?;
        let max = limits::DIFF_CHANGES_MAX;
        let limit = limit.unwrap_or(limits::DIFF_CHANGES_DEFAULT);
        if limit == 0 || limit > max {
            let problem = format!("it must be from 1 to {max}");
            return Err(Error::InvalidField { field: "limit", problem });
        }
        let comparison = self.codebase_comparison(who, which, limit)?;
        let _unheard = comparison.work.effort.cancel_on_drop();
        let memory = comparison.options.memory.clone();
        let (from, to) = views(&self.shared, &comparison).await?;
        let options = comparison.options.clone();
        let told = comparison.work.run(READ, move || {
            let mut diff = diff::compare(&from, &to, &options)?;
            if text == DiffText::Included {
                diff::add_text(&mut diff, &from, &to)?;
            }
            let changes = diff.changes.iter().map(FileChange::of).collect();
            Ok(tell(&diff, changes))
        });
        Ok((told.await?, memory))
    }

    /// The same with the new files, as a stream. Resolves when the changes are known; later errors break it off.
    pub async fn codebase_bundle(
        &self,
        who: &Principal,
        which: &CodebaseRef,
    ) -> Result<DiffBundle, Error> {
        let slot = self.shared.file_work.take(&who.organization)?;
        let comparison = self.codebase_comparison(who, which, limits::DIFF_CHANGES_MAX)?;
        let unread = comparison.work.effort.cancel_on_drop();
        let (sender, pieces) = mpsc::channel(limits::DIFF_CHUNKS_QUEUED);
        let (began, begun) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            let _slot = slot;
            let compared = match compared(&shared, &comparison).await {
                Ok(compared) => compared,
                Err(error) => return drop(began.send(Err(error))),
            };
            let _ = began.send(Ok(()));
            if let Err(error) = pass_on(&comparison.work, compared, &sender).await {
                // If there is no room for the error, the stream has no end marker, which says enough.
                let _ = sender.try_send(Err(io::Error::other(error)));
            }
        });
        begun.await.unwrap_or(Err(Error::ShuttingDown))?;
        Ok(DiffBundle::of(pieces, unread))
    }

    fn codebase_comparison(
        &self,
        who: &Principal,
        which: &CodebaseRef,
        changes_max: usize,
    ) -> Result<Comparison, Error> {
        let row = self.shared.codebases.ready(who, which)?;
        let lineage = match self.shared.storage.name() {
            // Clones keep inode numbers there, and on no other known file system.
            "btrfs" => Lineage::SameInodes { since: SystemTime::from(row.created_at) },
            _ => Lineage::Unrelated,
        };
        let options = Options {
            hidden: Vec::new(),
            beneath: Vec::new(),
            lineage,
            renames: Renames::Found,
            changes_max,
            memory: Some(Arc::new(self.shared.answers.open(&row.owner))),
        };
        let nobody: usize = 0;
        let (destroys, waiting) = watch::channel(nobody);
        let work = FileWork::new(&self.shared, &row.id.volume(), waiting);
        Ok(Comparison { row, options, work, _destroys: destroys })
    }
}

async fn views(shared: &Arc<Shared>, comparison: &Comparison) -> Result<(View, View), Error> {
    let Row { base, id, name, .. } = &comparison.row;
    let Some(base) = base else {
        let problem =
            format!("{name} was not created from a source, so there is nothing to compare it with");
        return Err(Error::InvalidField { field: "codebase", problem });
    };
    let volume = id.volume();
    let from = shared.storage.view(&volume, Some(base)).await?;
    let to = shared.storage.view(&volume, None).await?;
    let effort = comparison.work.effort.clone();
    let below = move || {
        let below = |view: View| Ok::<_, io::Error>(view.below(TREE.as_bytes())?.within(&effort));
        Ok((below(from)?, below(to)?))
    };
    comparison.work.run(READ, below).await
}

async fn compared(shared: &Arc<Shared>, comparison: &Comparison) -> Result<Listed, Error> {
    let (from, to) = views(shared, comparison).await?;
    let options = comparison.options.clone();
    let compared = comparison.work.run(READ, move || {
        let diff = diff::compare(&from, &to, &options)?;
        let changes = diff::told_with_digests(&diff, &from, &to)?;
        Ok((diff, changes, to))
    });
    let (diff, changes, to) = compared.await?;
    let manifest = serde_json::to_vec(&tell(&diff, changes));
    let manifest = manifest.expect("a diff holds only texts and numbers");
    Ok((diff::MANIFEST, manifest, diff, to))
}

fn tell(diff: &Diff, changes: Vec<FileChange>) -> DiffReport {
    let (truncated, unreadable) = (diff.truncated, diff.unreadable);
    DiffReport { from: Side::Base, to: Side::Now, frozen: false, changes, truncated, unreadable }
}
