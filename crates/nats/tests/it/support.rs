//! What the tests stand on.

mod wait;

pub use wait::{Patience, eventually, eventually_some, until_some};
