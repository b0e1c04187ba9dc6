//! What becomes of sandboxes: one supervisor per sandbox carries out the verbs in turn; reconcile finds what a crash left,
//! and the reaper what nobody needs any more.

pub(crate) mod activity;
pub(crate) mod diff;
pub(crate) mod ensure;
pub(crate) mod forks;
pub(crate) mod making;
pub(crate) mod reaper;
pub(crate) mod reconcile;
pub(crate) mod revert;
pub(crate) mod snapshots;
pub(crate) mod supervisor;
pub(crate) mod verbs;
