//! NATS: a connection that lasts, and the events of this node published over it.
//!
//! ```text
//!   options ──▶ Link      connects, reconnects for ever, knows its state
//! ```
//!
//! NATS is never needed: without it sandboxes are served as before, and the daemon stays ready.

mod link;
mod options;

pub use async_nats;
pub use link::{Link, LinkError, LinkReport, LinkState};
pub use options::{Login, Options, Tls};
