//! Answers that no other crate reads, or of which a client needs only a part.

use sandkeep_core::ExecId;
use serde::Deserialize;
use serde_json::{Map, Value};

/// A list, or a page of one.
#[derive(Clone, Debug, Deserialize)]
pub struct Items<T> {
    pub items: Vec<T>,
    /// The cursor of the next page, if there is one.
    pub next_cursor: Option<String>,
}

/// An exec that is not waited for.
#[derive(Clone, Debug, Deserialize)]
pub struct ExecStarted {
    pub exec_id: ExecId,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Runtimes {
    pub runtimes: Vec<Runtime>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Runtime {
    pub name: String,
    pub usable: bool,
    pub default: bool,
    /// By name: a newer daemon may have more than this client knows.
    pub capabilities: Map<String, Value>,
    /// Why it is not usable.
    pub reason: Option<String>,
    pub battery: Option<Battery>,
}

/// The last result of `sandkeep doctor` for a runtime's isolation.
#[derive(Clone, Debug, Deserialize)]
pub struct Battery {
    pub verdict: String,
}

impl Runtime {
    /// The names of all its capabilities.
    pub fn can(&self) -> impl Iterator<Item = &str> {
        let can = self.capabilities.iter().filter(|(_, can)| **can == true);
        can.map(|(name, _)| name.as_str())
    }
}
