//! The conformance suite of stores, run on every implementation. A check gets stores from a factory and returns the
//! promise that was broken. `broken` shows that the suite can fail.

mod broken;
mod comparing;
mod keys;
mod watching;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{Change, StateStore, Watch};
use sandkeep_core::promises::{Failure, Verdict, Violation, checks, ensure};

/// Creates an empty store that keeps at most this many changes.
pub(super) type Factory = Arc<dyn Fn(usize) -> Arc<dyn StateStore> + Send + Sync>;

type Check = fn(Factory) -> BoxFuture<'static, Verdict>;

const CHECKS: &[(&str, Check)] = checks![
    comparing::a_write_is_read_back_until_it_is_deleted,
    comparing::every_write_gets_the_next_revision,
    comparing::a_conflict_changes_nothing,
    comparing::of_many_creates_one_wins,
    comparing::of_many_updates_one_wins,
    comparing::no_increment_is_lost,
    comparing::an_old_revision_does_not_fit_a_key_made_anew,
    comparing::a_value_over_the_limit_is_refused,
    keys::keys_hold_any_string,
    keys::a_prefix_lists_whole_segments_only,
    keys::a_listing_is_in_the_order_of_keys,
    keys::one_tenant_cannot_reach_another,
    watching::a_watch_misses_nothing_and_doubles_nothing,
    watching::a_watch_sees_only_its_prefix,
    watching::list_then_watch_sees_everything,
    watching::a_forgotten_revision_is_compacted,
    watching::a_slow_watcher_holds_up_nobody,
    watching::a_watch_ends_with_its_store,
    comparing::a_dropped_write_happened_or_did_not,
];

/// A check that takes longer than this counts as hanging.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// Runs every check; stops at the first broken promise.
pub(super) async fn run(factory: Factory) -> Result<(), Violation> {
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

/// The next `count` changes of a watch.
async fn take(watch: &mut Watch, count: usize) -> Result<Vec<Change>, Failure> {
    let mut changes = Vec::with_capacity(count);
    while changes.len() < count {
        match tokio::time::timeout(Duration::from_secs(10), watch.recv()).await {
            Ok(Some(change)) => changes.push(change?),
            Ok(None) => return Err(Failure("the watch ended".to_owned())),
            Err(_) => {
                let got = changes.len();
                return Err(Failure(format!("only {got} of {count} changes came")));
            }
        }
    }
    Ok(changes)
}
