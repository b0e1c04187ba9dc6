//! What the broker writes down in the store and in a sandbox's home: rows, slots, idempotency keys, the timeline.

pub(crate) mod idempotency;
pub(crate) mod registry;
pub(crate) mod rows;
pub(crate) mod slots;
pub(crate) mod timeline;
