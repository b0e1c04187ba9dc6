//! What Urule is told: its events of sessions on NATS ([`Sessions`]), and which runtimes there are ([`Registration`]).
//!
//! | event of the log | events of Urule |
//! |---|---|
//! | `sandbox.created` | `urule.runtime.session.allocated`, then `urule.runtime.session.ready` |
//! | `sandbox.failed` | `urule.runtime.session.error` |
//! | `sandbox.destroyed` | `urule.runtime.session.terminated` |
//!
//! A session is a sandbox with the label `urule.workspace_id`. The labels are in the events, so that also the end of one
//! that is long gone can be told.

mod registry;
mod sessions;
mod ulid;

pub use registry::{Registration, RegistryOptions};
pub use sessions::{SESSION_LABELS, SESSION_SUBJECTS, Sessions, Which};
