//! The conformance suite on the real tool.

use super::{Bwrap, arguments};
use crate::runtime::conformance::{keeps, promise_tests, runtime_conformance};
use crate::runtime::grouped::bench::{GroupedBench, Version};
use crate::runtime::staged::tests::staged;
use crate::sys::launcher::EntryKind;
use guest_proto::Privilege;

runtime_conformance!(GroupedBench::new(Version::V1, staged::<Bwrap>));

/// Execs enter their leaves in another way there, which an own namespace of groups would forbid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_version_2_serve_as_well() {
    let Some(bench) = GroupedBench::new(Version::V2, staged::<Bwrap>).await else { return };
    keeps(&bench, "timeout_kills_the_whole_tree").await.expect("bwrap");
}

#[test]
fn a_sandbox_shares_no_namespace_and_no_capability_that_was_not_asked_for() {
    let words = arguments(Privilege::None, EntryKind::V1);
    for kind in ["pid", "net", "ipc", "uts", "cgroup"] {
        assert!(words.contains(&format!("--unshare-{kind}")), "{kind}");
    }
    let added = words.iter().filter(|word| *word == "--cap-add").count();
    assert_eq!(added, capabilities(Privilege::None));
    assert!(!words.iter().any(|word| word.starts_with("--share") || word == "--setenv"));
}

fn capabilities(privilege: Privilege) -> usize {
    crate::sys::capability::names_of_guest(privilege).len()
}
