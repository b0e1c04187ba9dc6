//! The lifecycle verbs, one file each, as a supervisor carries them out.
//!
//! Each goes: intent in the registry → effects, every one of which may be repeated → outcome in the
//! registry. Between any two steps there is a failpoint, and a test that crashes there.

mod amend;
mod capture;
mod create;
mod destroy;
mod pause;
mod start;
mod stop;

pub use pause::InFlight;
