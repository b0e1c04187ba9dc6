//! Tests of other crates that need real volumes and layers.

mod unread;
mod views;
