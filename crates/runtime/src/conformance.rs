//! The conformance suite of the contracts [`Runtime`] and [`Guest`](sandkeep_guestlink::Guest), which every runtime
//! passes.
//!
//! A promise is a function that uses a runtime like the broker does and reports what was broken. Optional features are
//! tested if the capabilities declare them, and otherwise must be refused without side effects. A runtime's author
//! supplies a [`Bench`] and calls [`run_all`].
//!
//! `tests` tests the suite itself: deliberately broken runtimes are detected by the name of the promise they break.

mod execs;
#[cfg(test)]
mod instance;
mod lab;
#[cfg(test)]
mod layered;
mod lifecycle;
mod limits;
mod mounts;
mod network;
mod ports;
mod shells;
mod terminals;
#[cfg(test)]
mod tests;
mod trees;
mod waits;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use super::{Plan, Runtime};
#[cfg(test)]
pub(crate) use instance::{Instance, discard};
use lab::Lab;
#[cfg(test)]
pub(crate) use layered::{Setuid, keeps_above_layers, keeps_above_many_layers};
use sandkeep_core::{
    Resources, SandboxId,
    promises::{Failure, Violation},
};

/// No promise needs this long; one that does hangs.
pub const PROMISE_MAX: Duration = Duration::from_secs(60);

/// What a runtime's author supplies: the runtime and its environment.
#[async_trait]
pub trait Bench: Send + Sync {
    fn runtime(&self) -> Arc<dyn Runtime>;

    /// The same technology on the same machine, for another instance.
    fn neighbour(&self) -> Arc<dyn Runtime>;

    /// A plan for a new sandbox of `runtime`, its volume and its home, with `meta.json`, in place.
    async fn plan(&self, resources: Resources) -> Plan;

    /// The same for `neighbour`.
    async fn neighbour_plan(&self, resources: Resources) -> Plan;

    /// Kills a running sandbox as an administrator would, past the runtime.
    async fn kill_from_outside(&self, id: &SandboxId);

    /// Removes the volume and the home; the sandbox itself is already gone.
    async fn discard(&self, plan: &Plan);

    /// How long one promise may take.
    fn patience(&self) -> Duration {
        PROMISE_MAX
    }
}

pub struct Promise {
    pub name: &'static str,
    check: for<'a> fn(&'a Lab<'a>) -> BoxFuture<'a, Result<(), Failure>>,
}

/// Lists every promise once; both the list and the tests are generated from it.
macro_rules! with_promises {
    ($then:ident $($argument:tt)*) => {
        $then! { $($argument)* =>
            lifecycle::a_created_sandbox_is_listed_and_does_not_run,
            lifecycle::create_may_be_repeated,
            lifecycle::what_is_reserved_is_used_or_removed,
            lifecycle::a_started_sandbox_runs_and_answers,
            lifecycle::stop_ends_everything_and_may_be_repeated,
            lifecycle::a_stopped_sandbox_starts_again,
            lifecycle::each_sandbox_is_called_by_its_id,
            lifecycle::a_volume_that_was_swapped_comes_back_with_the_guest,
            lifecycle::destroy_leaves_nothing_and_may_be_repeated,
            lifecycle::destroy_takes_what_is_half_made,
            lifecycle::only_a_running_sandbox_has_a_way_inside,
            lifecycle::list_gives_back_the_full_labels,
            lifecycle::another_instance_is_not_listed,
            lifecycle::twenty_at_once_do_not_disturb_each_other,
            lifecycle::stats_are_those_of_a_known_sandbox,
            waits::wait_resolves_on_stop,
            waits::wait_resolves_on_destroy,
            waits::wait_resolves_when_killed_from_outside,
            waits::wait_resolves_at_once_where_nothing_runs,
            waits::pause_freezes_or_is_refused,
            execs::exec_gives_the_exit_code,
            execs::exec_tells_the_pid_that_the_command_sees_or_none,
            execs::exec_keeps_stdout_and_stderr_apart,
            execs::exec_offsets_have_no_gaps,
            execs::exec_feeds_stdin,
            execs::exec_without_stdin_sees_its_end,
            execs::exec_has_the_environment_it_was_given_and_no_other,
            execs::exec_runs_where_it_was_told_to,
            execs::exec_runs_as_whom_it_was_told_to,
            execs::exec_that_takes_too_long_is_timed_out,
            execs::exec_can_be_canceled,
            execs::exec_can_be_signaled,
            execs::exec_can_be_ended,
            execs::exec_of_no_such_command_is_127,
            execs::exec_of_what_cannot_be_executed_is_126,
            execs::execs_run_side_by_side,
            execs::exec_left_alone_can_be_joined_at_an_offset,
            execs::exec_that_ended_unwatched_tells_all_to_who_comes_later,
            execs::exec_stdin_goes_on_where_it_was_after_joining_again,
            execs::exec_ends_with_its_sandbox,
            trees::timeout_kills_the_whole_tree,
            trees::cancel_kills_the_whole_tree,
            trees::end_takes_the_whole_tree,
            trees::a_background_process_does_not_hold_the_exec,
            terminals::a_terminal_is_the_users_own_and_has_its_size,
            terminals::a_terminal_passes_on_keys_and_sizes,
            terminals::a_terminal_loses_nothing_at_its_end,
            shells::a_shell_keeps_its_state_between_commands,
            shells::a_shell_outlives_the_timeout_of_its_command,
            ports::a_port_inside_carries_bytes_both_ways_to_their_ends,
            ports::a_closed_port_is_refused_at_once,
            ports::a_hundred_connections_do_not_disturb_each_other,
            network::connections_and_queries_to_everywhere_are_caught,
            network::everything_else_is_refused_at_once_and_loopback_is_its_own,
            network::nobody_inside_changes_what_catches,
            network::without_the_sockets_everything_out_is_refused_at_once,
            network::new_sockets_replace_those_before_and_a_start_takes_none_away,
            mounts::a_tree_of_the_host_is_mounted_or_refused,
            mounts::a_tree_mounted_for_reading_is_not_written,
            mounts::a_link_on_the_way_to_a_mount_is_not_followed,
            limits::a_memory_bomb_is_killed_and_named,
            limits::a_fork_bomb_stays_inside,
            limits::a_command_has_its_own_memory_limit_or_is_refused,
            limits::a_command_has_its_own_limit_of_processes_or_is_refused,
        }
    };
}

macro_rules! list_of_promises {
    (=> $($room:ident::$name:ident,)*) => {
        pub const PROMISES: &[Promise] = &[$(
            Promise { name: stringify!($name), check: |lab| Box::pin($room::$name(lab)) },
        )*];
    };
}

with_promises!(list_of_promises);

/// One test for each promise.
#[cfg(test)]
macro_rules! promise_tests {
    ([$bench:expr] => $($room:ident::$name:ident,)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let Some(bench) = $bench.await else { return };
            let kept = $crate::conformance::keeps(&bench, stringify!($name)).await;
            if let Err(violation) = kept {
                panic!("{violation}");
            }
        }
    )*};
}

/// The whole suite for the bench that a future creates; see the module.
#[cfg(test)]
macro_rules! runtime_conformance {
    ($bench:expr) => {
        $crate::conformance::with_promises! { promise_tests [$bench] }
    };
}

#[cfg(test)]
pub(crate) use {promise_tests, runtime_conformance, with_promises};

/// Checks one promise, and removes everything that it created.
pub async fn keeps(bench: &dyn Bench, name: &str) -> Result<(), Violation> {
    let promise = PROMISES.iter().find(|promise| promise.name == name).expect("it is listed");
    check(bench, promise).await
}

/// Checks every promise in turn; returns the broken ones.
pub async fn run_all(bench: &dyn Bench) -> Vec<Violation> {
    run_at_once(bench, 1).await
}

/// The same with this many concurrently: for runtimes whose bench is expensive and whose verbs are slow.
pub async fn run_at_once(bench: &dyn Bench, width: usize) -> Vec<Violation> {
    let checks = PROMISES.iter().map(|promise| check(bench, promise));
    let results = futures_util::stream::iter(checks).buffer_unordered(width);
    results.filter_map(|result| std::future::ready(result.err())).collect().await
}

/// Both instances, or `None`, with the reason printed, if this machine cannot run them.
pub fn unless_skipped<T>(made: (anyhow::Result<T>, anyhow::Result<T>)) -> Option<(T, T)> {
    match made {
        (Ok(ours), Ok(theirs)) => Some((ours, theirs)),
        (Err(reason), _) | (_, Err(reason)) => {
            let thread = std::thread::current();
            eprintln!("SKIP {}: {reason}", thread.name().unwrap_or("runtime"));
            None
        }
    }
}

async fn check(bench: &dyn Bench, promise: &Promise) -> Result<(), Violation> {
    let lab = Lab::new(bench);
    let kept = tokio::time::timeout(bench.patience(), (promise.check)(&lab)).await;
    let kept = kept.unwrap_or_else(|_| {
        Err(Failure(format!("it came to no end within {} s", bench.patience().as_secs())))
    });
    let cleaned = lab.clean_up().await;
    kept.and(cleaned).map_err(|Failure(detail)| Violation { promise: promise.name, detail })
}
