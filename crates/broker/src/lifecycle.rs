//! The lifecycle of sandboxes. One supervisor per sandbox carries out its commands in order; reconcile finishes what a
//! crash interrupted, and the reaper ends expired sandboxes.
//!
//! Each verb is one file with both of its halves: the caller's ([`handle`] hands the command over) and the
//! supervisor's. The second half goes: intent in the registry → effects, each of them repeatable → outcome in the
//! registry. Between any two steps there is a failpoint, and a test that crashes there.

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
pub(crate) mod quiesce;
pub(crate) mod race;
pub(crate) mod reaper;
pub(crate) mod reconcile;
pub(crate) mod rename;
pub(crate) mod request;
pub(crate) mod revert;
pub(crate) mod rollback;
pub(crate) mod snapshot;
mod start;
mod start_up;
mod stop;
pub(crate) mod supervisor;
pub(crate) mod tcp_watch;
pub(crate) mod volume;
pub(crate) mod work;
