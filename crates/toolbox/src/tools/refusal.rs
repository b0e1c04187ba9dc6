//! Refusals of tools. A refusal is written for a language model that has to decide what to do next: what was refused,
//! by which rule, and what to do instead.

mod command;
mod file;
mod text;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use command::CommandRefusal;
pub use file::FileRefusal;
pub use text::{Nearest, TextRefusal};

/// Every refusal of a tool, detected inside the sandbox or by the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "about", content = "why", rename_all = "snake_case")]
pub enum Refusal {
    File(FileRefusal),
    Text(TextRefusal),
    Command(CommandRefusal),
}

/// A refusal in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// A stable name, for programs.
    pub code: &'static str,
    pub what: String,
    pub rule: &'static str,
    pub instead: String,
}

impl Said {
    fn new(code: &'static str, what: String, rule: &'static str, instead: &str) -> Self {
        Self { code, what, rule, instead: instead.to_owned() }
    }
}

impl Refusal {
    pub fn said(&self) -> Said {
        match self {
            Self::File(refusal) => refusal.said(),
            Self::Text(refusal) => refusal.said(),
            Self::Command(refusal) => refusal.said(),
        }
    }

    /// One of each kind, for the reference document.
    pub fn samples() -> Vec<Self> {
        let files = FileRefusal::samples().into_iter().map(Self::File);
        let texts = TextRefusal::samples().into_iter().map(Self::Text);
        let commands = CommandRefusal::samples().into_iter().map(Self::Command);
        files.chain(texts).chain(commands).collect()
    }
}

/// As the model reads it.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Said { code, what, rule, instead } = self.said();
        write!(f, "refused ({code}): {what}\nrule: {rule}\ninstead: {instead}")
    }
}

impl From<FileRefusal> for Refusal {
    fn from(refusal: FileRefusal) -> Self {
        Self::File(refusal)
    }
}

impl From<TextRefusal> for Refusal {
    fn from(refusal: TextRefusal) -> Self {
        Self::Text(refusal)
    }
}

impl From<CommandRefusal> for Refusal {
    fn from(refusal: CommandRefusal) -> Self {
        Self::Command(refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_refusal_has_a_code_of_its_own_and_says_what_to_do() {
        let mut codes = BTreeSet::new();
        for refusal in Refusal::samples() {
            let Said { code, what, rule, instead } = refusal.said();
            assert!(codes.insert(code), "{code} is used twice");
            assert!(!what.is_empty() && !rule.is_empty() && !instead.is_empty(), "{refusal}");
            let json = serde_json::to_string(&refusal).unwrap();
            assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal, "{json}");
        }
    }
}
