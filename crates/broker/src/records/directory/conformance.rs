//! The conformance suite of directories, run on every implementation. A check gets the directories of several nodes
//! that share one store, and returns the promise that was broken. `broken` shows that the suite can fail.

mod broken;
mod named;
mod seeded;
mod single;
mod weather;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Map;

use super::{Directory, DirectoryError, NewRow, Phase, Share};
use sandkeep_core::promises::{Failure, Verdict, Violation, checks};
use sandkeep_core::{Owner, SandboxId, SlotName};
use sandkeep_store::{Revision, StateStore};

/// Creates the directory of a node on a store.
type Factory = Arc<dyn Fn(Arc<dyn StateStore>, &str) -> Arc<dyn Directory> + Send + Sync>;

type Check = fn(Factory) -> BoxFuture<'static, Verdict>;

const CHECKS: &[(&str, Check)] = checks![
    single::a_row_is_read_back_until_it_is_removed,
    single::a_write_over_another_nodes_is_fenced,
    single::a_write_whose_answer_was_lost_is_ones_own,
    single::of_many_who_accept_one_wins,
    single::of_many_claims_of_a_slot_one_wins,
    single::a_slot_whose_row_is_gone_is_free,
    single::a_slot_is_taken_only_from_the_holder_that_was_seen,
    named::of_many_claims_of_a_name_one_wins,
    named::a_name_leads_to_a_sandbox_only_while_its_row_lists_it,
    named::a_name_is_its_owners_alone,
    named::sweeps_free_names_that_no_row_of_this_node_lists,
    single::of_many_requests_under_a_key_one_wins,
    single::sweeps_touch_only_what_is_this_nodes,
    single::an_api_key_holds_for_all_until_it_is_removed,
    seeded::nodes_that_stall_and_crash_keep_slots_keys_and_quotas,
];

/// A check that takes longer than this counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(240);

/// Runs every check; stops at the first broken promise.
async fn run(factory: Factory) -> Result<(), Violation> {
    for (promise, check) in CHECKS {
        let verdict = tokio::time::timeout(HANGS_AFTER, check(Arc::clone(&factory))).await;
        let detail = match verdict {
            Ok(Ok(())) => continue,
            Ok(Err(Failure(detail))) => detail,
            Err(_) => "it hangs".to_owned(),
        };
        return Err(Violation { promise, detail });
    }
    Ok(())
}

fn slot(name: &str) -> SlotName {
    name.parse().expect("a slot")
}

/// A row of the local owner's, which uses one sandbox of the quota.
async fn put(
    directory: &dyn Directory,
    id: &SandboxId,
    phase: Phase,
    slot: Option<&SlotName>,
    known: Option<Revision>,
) -> Result<Revision, DirectoryError> {
    let share = Share { sandboxes: 1, ..Share::default() };
    let (owner, record) = (&Owner::local(), Map::new());
    let names = Vec::new();
    directory.put_row(NewRow { owner, id, phase, slot, names, share, record }, known).await
}

fn is_fenced<T>(result: &Result<T, DirectoryError>) -> bool {
    matches!(result, Err(DirectoryError::Fenced { .. }))
}
