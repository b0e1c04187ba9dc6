//! NATS: a connection that lasts, and the events of this node published over it.
//!
//! ```text
//!   options ──▶ Link           connects, reconnects for ever, knows its state
//!                │
//!                └─▶ Publisher   the log of events, from a durable position, as one feed of messages:
//!                                every event as a CloudEvent, and Urule's events of sessions
//! ```
//!
//! NATS is never needed: without it sandboxes are served as before, and the daemon stays ready.

mod link;
mod options;
mod publisher;
mod stream;
pub mod subject;
pub mod urule;

pub use async_nats;
pub use link::{Link, LinkError, LinkReport, LinkState};
pub use options::{Login, Options, Tls};
pub use publisher::{Assurance, CloudEvents, Feed, Lane, Message, Publisher};
pub use stream::{Stream, WhenMissing};
