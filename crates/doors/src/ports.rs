//! The ports of sandboxes, as HTTP: each under a host name of its own, and for programs also under a path
//! of the API.
//!
//! ```text
//! request → Host is <port>-<id>.<domain>?
//!     yes → who comes? (pass in URL or cookie, else as for the API) → forward → the server inside
//!     no  → the API; its …/ports/{port}/{path} comes here as well, with all power taken from the answer
//! ```
//!
//! What always holds:
//! - A request for a port's host never reaches the API, and no other request reaches a port by its host.
//! - No credential of ours reaches a sandbox: not a key, not a token, not a pass.
//! - A page of a sandbox is on an origin of its own. On the API's origin there is only data: an answer
//!   there is sandboxed, sets no cookie, and sends whoever would look at it as a page to its own host.

mod door;
mod forward;
mod headers;
mod host;
mod page;
mod token;

pub use door::{PortDoor, by_host, redirect};
