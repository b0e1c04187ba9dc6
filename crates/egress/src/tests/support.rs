//! What all tests of the gateway share.

pub(crate) mod wait;
