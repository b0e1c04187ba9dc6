//! The lifecycle verbs, one file each, as a supervisor carries them out.
//!
//! Each goes: intent in the registry → effects, every one of which may be repeated → outcome in the
//! registry. Between any two steps there is a failpoint, and a test that crashes there.

mod amend;
mod capture;
mod create;
mod destroy;
mod fork;
mod pause;
mod revert;
mod rollback;
mod snapshot;
mod start;
mod start_up;
mod still;
mod stop;

pub(crate) use fork::Origin;
pub use pause::InFlight;
pub(crate) use revert::{RevertWish, Reverted, finish_all as finish_reverts};
pub use rollback::OnExecs;
pub(crate) use rollback::RollbackWish;
pub(crate) use snapshot::{SnapshotWish, What};
