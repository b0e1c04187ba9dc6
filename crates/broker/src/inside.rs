//! What is done with files inside a sandbox: by the toolbox, for the files API and for the tools of agents.

pub(crate) mod files;
pub(crate) mod toolbox;
pub(crate) mod tools;
