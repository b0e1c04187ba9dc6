//! What becomes of sandboxes: one supervisor per sandbox carries out the verbs in turn; reconcile finds what a crash left,
//! and the reaper what nobody needs any more.

pub(crate) mod activity;
pub(crate) mod amend;
pub(crate) mod capture;
pub(crate) mod create;
pub(crate) mod destroy;
pub(crate) mod diff;
pub(crate) mod ensure;
pub(crate) mod fork;
pub(crate) mod handle;
pub(crate) mod pause;
mod quiesce;
pub(crate) mod reaper;
pub(crate) mod reconcile;
pub(crate) mod request;
pub(crate) mod revert;
pub(crate) mod rollback;
pub(crate) mod snapshot;
mod start;
mod start_up;
mod stop;
pub(crate) mod supervisor;
