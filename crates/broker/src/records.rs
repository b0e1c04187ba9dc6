//! The broker's records: shared facts in the directory, the rest in the store and in a sandbox's home.

pub(crate) mod directory;
pub(crate) mod events;
pub(crate) mod feed;
pub(crate) mod idempotency;
pub(crate) mod names;
pub(crate) mod registry;
pub(crate) mod rows;
pub(crate) mod timeline;
