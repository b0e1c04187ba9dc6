//! File operations inside a sandbox: by the toolbox, for the files API and the agents' tools.

pub(crate) mod changed;
pub(crate) mod files;
pub(crate) mod toolbox;
pub(crate) mod tools;
