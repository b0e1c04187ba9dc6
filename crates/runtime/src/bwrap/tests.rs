//! The conformance suite on the real tool.

use super::{Bwrap, arguments};
use crate::conformance::{
    Bench, Setuid, keeps, keeps_above_layers, promise_tests, run_all, runtime_conformance,
};
use crate::grouped::bench::{GroupedBench, Version, as_user};
use crate::staged::tests::staged;
use guest_proto::Privilege;
use sandkeep_core::SandboxId;
use sandkeep_sys::launcher::EntryKind;

runtime_conformance!(GroupedBench::new(Version::V1, staged::<Bwrap>));

/// One test, because each begins with a copy of this binary that somebody else may execute.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_root_every_promise_is_kept_that_is_made() {
    let Some(bench) = as_user(staged::<Bwrap>).await else { return };
    let capabilities = bench.runtime().capabilities();
    assert!(!capabilities.own_id_range && !capabilities.memory_limit && !capabilities.pause);
    let broken = run_all(&bench).await;
    assert!(broken.is_empty(), "{}", broken.iter().map(|b| format!("{b}\n")).collect::<String>());
}

/// Execs enter their leaves in another way there, which an own namespace of groups would forbid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_version_2_serve_as_well() {
    let Some(bench) = GroupedBench::new(Version::V2, staged::<Bwrap>).await else { return };
    keeps(&bench, "timeout_kills_the_whole_tree").await.expect("bwrap");
}

#[test]
fn a_sandbox_shares_no_namespace_and_no_capability_that_was_not_asked_for() {
    let words = arguments(&SandboxId::random(), Privilege::None, EntryKind::V1);
    // The network is that of the stage, which is no other's.
    for kind in ["pid", "ipc", "uts", "cgroup"] {
        assert!(words.contains(&format!("--unshare-{kind}")), "{kind}");
    }
    let added = words.iter().filter(|word| *word == "--cap-add").count();
    assert_eq!(added, capabilities(Privilege::None));
    assert!(!words.iter().any(|word| word.starts_with("--share") || word == "--setenv"));
}

fn capabilities(privilege: Privilege) -> usize {
    sandkeep_sys::capability::names_of_guest(privilege).len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_stands_on_layers() {
    let Some(bench) = GroupedBench::new(Version::V1, staged::<Bwrap>).await else { return };
    keeps_above_layers(&bench, Setuid::GivesNothing)
        .await
        .unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_root_a_sandbox_stands_on_layers() {
    let Some(bench) = as_user(staged::<Bwrap>).await else { return };
    keeps_above_layers(&bench, Setuid::GivesNothing)
        .await
        .unwrap_or_else(|broken| panic!("{broken}"));
}
