//! The suite with only cgroup v2: in a virtual machine, into which this same test binary is put.

#[path = "../../../../../tests/vm/machine.rs"]
mod machine;

use std::time::Duration;

use crate::conformance::PROMISES;
use machine::keep_in_vm;

/// What depends on the kind of control groups and waits for nothing but what it asks for; the rest of
/// the promises take minutes in a machine that is emulated.
const OF_GROUPS: [&str; 6] = [
    "a_memory_bomb_is_killed_and_named",
    "a_fork_bomb_stays_inside",
    "cancel_kills_the_whole_tree",
    "pause_freezes_or_is_refused",
    "stats_are_those_of_a_known_sandbox",
    "destroy_leaves_nothing_and_may_be_repeated",
];

/// What the machine's init tries once more, with itself in a control group as in a container.
const CONTAINED: usize = 2;

const PATIENCE_FOR_SOME: Duration = Duration::from_secs(170);
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(470);

#[test]
fn where_only_version_2_is_limits_hold_and_trees_end() {
    let promises = OF_GROUPS.map(|promise| format!("tests::v2::{promise}"));
    let filters: Vec<&str> = promises.iter().map(String::as_str).collect();
    keep_in_vm(&[], &filters, filters.len() + CONTAINED, PATIENCE_FOR_SOME);
}

#[test]
#[ignore = "minutes in an emulated machine"]
fn where_only_version_2_is_every_promise_is_kept() {
    keep_in_vm(&[], &["native::tests::v2::"], PROMISES.len() + CONTAINED, PATIENCE_FOR_ALL);
}
