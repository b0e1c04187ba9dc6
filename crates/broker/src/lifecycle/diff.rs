//! Diffs: what changed in a sandbox between two points in time.
//!
//! Snapshots and the sandbox's base are immutable. The present is not, so for a running sandbox a temporary snapshot is
//! taken like any other: sync, freeze, copy, thaw. It is not recorded, and is removed after it was read; after a crash
//! reconcile removes it. If the runtime cannot freeze, the volume is read while it is written to, and the answer says
//! so.
//!
//! Host files that are visible inside (bind mounts of templates, `/dev` and `/proc`) do not belong to the sandbox and
//! are not reported.

mod apply;
mod base;
mod bundle;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::RwLockReadGuard;
use tracing::warn;

use super::handle::Handle;
use super::snapshot::Record;
use super::volume::Stored;
use super::work::FileWork;
use crate::Broker;
use crate::error::Error;
use crate::shared::Shared;
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{Principal, SandboxId, SnapshotId, SnapshotName, Spec, State, limits};
use sandkeep_image::identity;
use sandkeep_tree::{
    TreePath, View,
    diff::{self, Diff, DiffReport, FileChange, Lineage, Options, Renames, Side},
};

pub use bundle::DiffBundle;
pub(crate) use bundle::{Listed, pass_on};

/// The names of points in time that are not snapshots.
const NOW: &str = "now";
const BASE: &str = "base";
/// Name of the comparing thread's work, for errors.
pub(crate) const READ: &str = "read files of two points in time";
/// Where runtimes mount something of their own in every sandbox.
const MOUNTED: [&str; 2] = ["dev", "proc"];

/// The points in time to compare, and how.
#[derive(Clone, Debug, Default)]
pub struct DiffRequest {
    /// By default the files that the sandbox started with.
    pub from: Option<String>,
    /// Default: the present.
    pub to: Option<String>,
    /// If set, only changes at or below this path.
    pub path: Option<String>,
    /// Maximum number of changes; [`limits::DIFF_CHANGES_DEFAULT`] if left out.
    pub limit: Option<usize>,
    pub text: DiffText,
}

/// Whether changed lines are included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiffText {
    Included,
    #[default]
    Omitted,
}

/// A point in time of a sandbox.
#[derive(Clone)]
enum Point {
    Base,
    Snapshot(Arc<Record>),
    /// A snapshot of a sandbox that this one is a fork of.
    OfAncestor(Arc<Handle>, Arc<Record>),
    Now,
}

/// The input of a comparison.
struct Comparison {
    handle: Arc<Handle>,
    volume: Stored,
    work: FileWork,
    from: Point,
    to: Point,
    options: Options,
    /// The temporary snapshot of the present.
    stand_in: Option<SnapshotId>,
    frozen: bool,
}

/// What an answer says of the two points in time.
struct Sides {
    from: Side,
    to: Side,
    frozen: bool,
}

impl Broker {
    /// The diff, and the memory reserved for it, to be held until it was sent.
    pub async fn diff(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: DiffRequest,
    ) -> Result<(DiffReport, Option<Arc<Reservation>>), Error> {
        let text = request.text;
        let slot = self.shared.file_work.take(&who.organization)?;
        let comparison = self.comparison(who, id, request)?;
        let memory = comparison.options.memory.clone();
        let told = self.compare(slot, comparison, move |sides, from, to, options| {
            let mut diff = diff::compare(&from, &to, options)?;
            if text == DiffText::Included {
                diff::add_text(&mut diff, &from, &to)?;
            }
            let changes = diff.changes.iter().map(FileChange::of).collect();
            Ok(sides.tell(&diff, changes))
        });
        Ok((told.await?, memory))
    }

    /// Does something with two points in time of a sandbox, which are kept meanwhile.
    async fn compare<T: Send + 'static>(
        &self,
        slot: impl Send + 'static,
        mut comparison: Comparison,
        work: impl FnOnce(Sides, View, View, &Options) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let broker = self.clone();
        let _unheard = comparison.work.effort.cancel_on_drop();
        // If the caller disconnects in between, the temporary snapshot is still removed.
        let told = self.shared.tasks.spawn(async move {
            let _slot = slot;
            broker.stand_in(&mut comparison).await?;
            let kept = comparison.keep().await;
            let told = broker.compared(&comparison, work).await;
            drop(kept);
            broker.remove_stand_in(&comparison).await;
            told
        });
        told.await.unwrap_or(Err(Error::ShuttingDown))
    }

    async fn compared<T: Send + 'static>(
        &self,
        comparison: &Comparison,
        work: impl FnOnce(Sides, View, View, &Options) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let (from, to) = self.views(comparison).await?;
        let (options, sides) = (comparison.options.clone(), comparison.sides());
        comparison.work.run(READ, move || work(sides, from, to, &options)).await
    }

    fn comparison(
        &self,
        who: &Principal,
        id: &SandboxId,
        request: DiffRequest,
    ) -> Result<Comparison, Error> {
        let handle = self.shared.find(who, id)?;
        let volume = handle.volume.stored("a diff")?.clone();
        let from = self.point(&handle, "from", request.from.as_deref().unwrap_or(BASE))?;
        let to = self.point(&handle, "to", request.to.as_deref().unwrap_or(NOW))?;
        let spec = &handle.meta().spec;
        let beneath = request.path.as_deref().map(|path| inside("path", spec, path)).transpose()?;
        let (limit, max) = (request.limit, limits::DIFF_CHANGES_MAX);
        let limit = limit.unwrap_or(limits::DIFF_CHANGES_DEFAULT);
        if limit == 0 || limit > max {
            let problem = format!("it must be from 1 to {max}");
            return Err(Error::InvalidField { field: "limit", problem });
        }
        let mut hidden = self.hidden(&handle)?;
        if [&from, &to].iter().any(|point| matches!(point, Point::OfAncestor(..))) {
            // A fork has an identity of its own, which is no change.
            hidden.extend(own_identity());
        }
        let options = Options {
            hidden,
            beneath: beneath.into_iter().collect(),
            lineage: self.lineage(&handle, &volume, [&from, &to]),
            renames: Renames::Found,
            changes_max: limit,
            memory: Some(Arc::new(self.shared.answers.open(&handle.meta().owner))),
        };
        let (stand_in, frozen) = (None, true);
        let work = FileWork::new(&self.shared, id, handle.destroys.subscribe());
        Ok(Comparison { handle, volume, work, from, to, options, stand_in, frozen })
    }

    /// What a caller means by the name of a point in time: a snapshot of the sandbox, what the sandbox started with, or
    /// a snapshot of the sandboxes that it is a fork of.
    fn point(&self, handle: &Arc<Handle>, field: &'static str, text: &str) -> Result<Point, Error> {
        if text == NOW {
            return Ok(Point::Now);
        }
        let name: SnapshotName =
            text.parse().map_err(|problem: sandkeep_core::InvalidSnapshotName| {
                Error::InvalidField { field, problem: problem.to_string() }
            })?;
        match handle.snapshot_named(&name) {
            Ok(record) => Ok(Point::Snapshot(record)),
            Err(_) if text == BASE => Ok(Point::Base),
            Err(error) => self.ancestors_point(handle, &name).ok_or(error),
        }
    }

    /// The nearest ancestor's that has one of this name. All of a family have one owner.
    fn ancestors_point(&self, handle: &Handle, name: &SnapshotName) -> Option<Point> {
        let mut origin = handle.meta().forked_from.clone();
        while let Some(fork) = origin {
            let ancestor = self.shared.supervised(&fork.sandbox)?;
            if let Ok(record) = ancestor.snapshot_named(name) {
                return Some(Point::OfAncestor(ancestor, record));
            }
            origin = ancestor.meta().forked_from.clone();
        }
        None
    }

    /// What is mounted in a sandbox, and not part of its volume.
    pub(crate) fn hidden(&self, handle: &Handle) -> Result<Vec<TreePath>, Error> {
        hidden(&self.shared, handle)
    }

    /// Clones keep inode numbers on btrfs, and on no other known file system.
    fn lineage(&self, handle: &Handle, volume: &Stored, points: [&Point; 2]) -> Lineage {
        if volume.name() != "btrfs" {
            return Lineage::Unrelated;
        }
        let made = |point: &Point| match point {
            Point::Base => SystemTime::from(handle.meta().created_at),
            Point::Snapshot(record) | Point::OfAncestor(_, record) => {
                SystemTime::from(record.created_at)
            }
            Point::Now => SystemTime::from(self.shared.clock.wall()),
        };
        let [one, other] = points.map(made);
        Lineage::SameInodes { since: one.min(other) }
    }

    /// Takes a snapshot of a running sandbox, if the present is to be compared.
    async fn stand_in(&self, comparison: &mut Comparison) -> Result<(), Error> {
        let handle = &comparison.handle;
        let present = [&comparison.from, &comparison.to].iter().any(|p| matches!(p, Point::Now));
        let runs = handle.published.borrow().status.state() == State::Running;
        if !present || !runs {
            return Ok(());
        }
        let freezes = self.shared.runtime(handle.meta().spec.runtime())?.capabilities().pause;
        if !freezes || !comparison.volume.capabilities().snapshots {
            comparison.frozen = false;
            return Ok(());
        }
        comparison.stand_in = Some(handle.transient_snapshot(&self.shared).await?);
        Ok(())
    }

    async fn remove_stand_in(&self, comparison: &Comparison) {
        let Some(id) = &comparison.stand_in else { return };
        let handle = &comparison.handle;
        if let Err(error) = handle.delete_snapshot(&self.shared, id.clone()).await {
            warn!(id = %handle.id, %error, "cannot remove a snapshot that a diff was made of");
        }
    }

    async fn views(&self, comparison: &Comparison) -> Result<(View, View), Error> {
        let from = self.view(comparison, &comparison.from).await?;
        let to = self.view(comparison, &comparison.to).await?;
        let effort = &comparison.work.effort;
        Ok((from.within(effort), to.within(effort)))
    }

    async fn view(&self, comparison: &Comparison, point: &Point) -> Result<View, Error> {
        let snapshot = match point {
            Point::Base => {
                let Comparison { handle, volume, work, .. } = comparison;
                let spec = &handle.meta().spec;
                return base::view(&self.shared, (volume, work), &handle.id, spec).await;
            }
            Point::OfAncestor(handle, record) => {
                return handle.volume.stored("a diff")?.view(Some(&record.id)).await;
            }
            Point::Snapshot(record) => Some(&record.id),
            Point::Now => comparison.stand_in.as_ref(),
        };
        comparison.volume.view(snapshot).await
    }
}

impl Comparison {
    /// Keeps the snapshots that are compared until it is dropped.
    async fn keep(&self) -> Vec<RwLockReadGuard<'_, ()>> {
        let mut kept = vec![self.handle.snapshots.reading().await];
        for point in [&self.from, &self.to] {
            if let Point::OfAncestor(handle, _) = point {
                kept.push(handle.snapshots.reading().await);
            }
        }
        kept
    }

    fn sides(&self) -> Sides {
        Sides { from: self.from.side(), to: self.to.side(), frozen: self.frozen }
    }
}

impl Sides {
    fn tell(self, diff: &Diff, changes: Vec<FileChange>) -> DiffReport {
        DiffReport {
            from: self.from,
            to: self.to,
            frozen: self.frozen,
            changes,
            truncated: diff.truncated,
            unreadable: diff.unreadable,
        }
    }
}

impl Point {
    fn side(&self) -> Side {
        match self {
            Self::Base => Side::Base,
            Self::Snapshot(record) | Self::OfAncestor(_, record) => {
                Side::Snapshot { id: record.id.clone(), name: record.name.to_string() }
            }
            Self::Now => Side::Now,
        }
    }
}

pub(super) fn hidden(shared: &Shared, handle: &Handle) -> Result<Vec<TreePath>, Error> {
    let binds = shared.template_of(&handle.meta().spec)?.binds();
    let bound = binds.iter().map(|bind| bind.target.as_os_str().as_encoded_bytes());
    let all = MOUNTED.iter().map(|name| name.as_bytes()).chain(bound);
    Ok(all.filter_map(|path| TreePath::clean(path).ok()).collect())
}

/// The files in which a fork differs from its source although nobody changed them.
pub(super) fn own_identity() -> impl Iterator<Item = TreePath> {
    identity::files().filter_map(|path| TreePath::clean(path.as_bytes()).ok())
}

/// A path inside, as a caller gave it; a relative one begins in the working directory. That as a whole is `.`, and never
/// an empty path.
pub(super) fn inside(field: &'static str, spec: &Spec, path: &str) -> Result<TreePath, Error> {
    let invalid = |problem: String| Error::InvalidField { field, problem };
    if path.is_empty() {
        return Err(invalid("a path is empty".to_owned()));
    }
    let clean = TreePath::clean(spec.absolute(path).as_bytes());
    clean.map_err(|problem| invalid(format!("{path:?}: {problem}")))
}
