//! The conformance suite of storages, run on every implementation. `broken` shows that it can fail.

pub mod acts;
#[cfg(test)]
mod broken;
#[cfg(test)]
pub(crate) mod crashes;
mod filling;
pub mod fixture;
mod layers;
mod snapshots;
pub mod view;
mod volumes;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::{Base, Quota, Storage};
use sandkeep_core::{
    SandboxId,
    promises::{Failure, Verdict, Violation, checks, ensure},
};

/// A storage under test.
#[derive(Clone)]
pub struct StorageUnderTest {
    pub storage: Arc<dyn Storage>,
    /// Produces what a crash in the middle of `create` leaves, in the directory of the volumes.
    pub half_make: fn(&Path, &SandboxId),
    /// Opens the same storage again, like the next daemon.
    pub reopen: Reopen,
}

pub type Reopen = Arc<dyn Fn() -> Arc<dyn Storage> + Send + Sync>;

type Check = fn(StorageUnderTest) -> BoxFuture<'static, Verdict>;

const CHECKS: &[(&str, Check)] = checks![
    volumes::a_new_volume_is_an_empty_directory_of_root,
    volumes::a_volume_is_made_only_once,
    volumes::what_does_not_exist_is_not_found,
    volumes::destroy_may_be_repeated,
    volumes::a_half_made_volume_is_listed_and_destroyed,
    volumes::only_volumes_are_listed,
    volumes::fifty_at_once_leave_nothing,
    volumes::what_it_cannot_do_it_refuses,
    filling::destroy_removes_all_and_nothing_else,
    filling::usage_follows_what_is_written,
    layers::a_volume_shows_all_its_layers,
    layers::the_kind_of_a_root_is_known_before_it_is_made,
    layers::what_is_written_above_is_seen_by_nobody_else,
    layers::a_layer_may_hide_all_below_it,
    layers::a_draft_is_no_layer_before_it_is_kept,
    layers::a_layer_is_kept_once_and_for_all,
    layers::a_missing_layer_is_named,
    layers::a_removed_layer_is_gone_and_no_volume_breaks,
    layers::a_draft_that_a_crash_left_is_swept,
    layers::what_a_volume_holds_becomes_a_layer,
    snapshots::a_snapshot_keeps_what_the_volume_held,
    snapshots::a_rollback_brings_all_back_and_takes_no_snapshot,
    snapshots::a_fork_needs_its_source_no_more,
    snapshots::a_deleted_snapshot_takes_nothing_with_it,
    snapshots::a_snapshot_that_is_not_there_is_named,
    snapshots::snapshots_go_with_their_volume,
    snapshots::a_snapshot_becomes_a_layer,
    snapshots::what_a_snapshot_holds_is_counted,
];

/// Checks for storages that enforce limits.
const LIMIT_CHECKS: &[(&str, Check)] = checks![
    filling::a_quota_holds_or_is_refused,
    layers::a_quota_holds_above_layers,
    snapshots::the_limit_of_the_tree_holds_for_clones,
    snapshots::a_full_tree_can_be_taken_forked_and_rolled_back,
    snapshots::the_limit_of_tree_and_snapshots_holds,
    snapshots::a_clone_above_layers_counts_only_its_own,
];

/// Runs every check; stops at the first broken promise. The storage must be empty before, and is empty after a run
/// without a violation.
pub async fn run(subject: StorageUnderTest) -> Result<(), Violation> {
    run_all(&subject, CHECKS).await?;
    run_all(&subject, LIMIT_CHECKS).await
}

async fn run_all(
    subject: &StorageUnderTest,
    checks: &[(&'static str, Check)],
) -> Result<(), Violation> {
    for (promise, check) in checks {
        if let Err(Failure(detail)) = check(subject.clone()).await {
            return Err(Violation { promise, detail });
        }
        let storage = &subject.storage;
        let left = (storage.list().await, storage.layers().await, storage.snapshots().await);
        let is_clear = matches!(&left, (Ok(volumes), Ok(layers), Ok(snapshots))
            if volumes.is_empty() && layers.is_empty() && snapshots.is_empty());
        if !is_clear {
            return Err(Violation { promise, detail: format!("it leaves {left:?}") });
        }
    }
    Ok(())
}

/// Creates a volume and returns its directory.
async fn make(subject: &StorageUnderTest, quota: Quota) -> Result<(SandboxId, PathBuf), Failure> {
    let id = SandboxId::random();
    let root = subject.storage.create(&id, &Base::Empty, &quota).await?;
    Ok((id, root.own_dir().to_owned()))
}
