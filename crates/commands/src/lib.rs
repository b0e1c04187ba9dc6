//! Requests over NATS. A message becomes the request of the same name, goes through the same doors, and is answered at
//! its reply subject.
//!
//! ```text
//!   verbs     ‹prefix›.v1.‹verb›, a NATS micro service: the REST API
//!   purista   PURISTA's subjects and envelopes: its Sandbox service
//!   inbox     which reply subjects are answered
//!   intake    subscriptions, bounds, drain
//! ```
//!
//! Invariant: a message is worked on only if its answer has somewhere to go, and nothing is published anywhere else.

mod inbox;
mod intake;
#[cfg(feature = "purista")]
pub mod purista;
pub mod verbs;

pub use inbox::Inboxes;
pub use intake::Intake;
