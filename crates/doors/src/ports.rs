//! The ports of sandboxes over HTTP: each under its own host name, and for programs also under a path of the API.
//!
//! ```text
//! request → Host is <port>-<id>.<domain>?
//!     yes → authentication (token in URL or cookie, else as for the API) → forward → the server inside
//!     no  → the API; its …/ports/{port}/{path} is forwarded too, with an answer stripped of all privileges
//! ```
//!
//! Invariants:
//! - A request for a port's host name never reaches the API, and no other request reaches a port by host name.
//! - None of our credentials reaches a sandbox: no key, no token, no port token.
//! - A page of a sandbox has an origin of its own. The API's origin serves only data: a forwarded answer there is
//!   sandboxed and sets no cookie, and a browser that navigates to it is redirected to the port's own host.

mod door;
mod forward;
mod headers;
mod host;
mod page;
mod token;

pub use door::{PortDoor, by_host, redirect};
