//! The arguments of each tool, with the names that agents know. The host has validated them; here only the types are
//! checked.

use serde::{Deserialize, Serialize};

use super::GREP_RESULTS_DEFAULT;

/// One call of a file tool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "name", content = "arguments", rename_all = "snake_case")]
pub enum Call {
    ReadFile(ReadFile),
    WriteFile(WriteFile),
    EditFile(EditFile),
    Ls(Ls),
    Grep(Grep),
    Glob(Glob),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadFile {
    pub path: String,
    /// The first line to read, from 1; 0 means the first, too.
    #[serde(default)]
    pub offset: u64,
    /// How many lines to read.
    pub limit: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteFile {
    pub path: String,
    pub content: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EditFile {
    pub path: String,
    pub old_string: String,
    pub new_string: String,
    #[serde(default)]
    pub replace_all: ReplaceAll,
}

/// Whether `old_string` may occur more than once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum ReplaceAll {
    #[default]
    No,
    Yes,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ls {
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grep {
    pub pattern: String,
    pub path: Option<String>,
    pub glob: Option<String>,
    #[serde(default = "results_default")]
    pub max_results: usize,
    #[serde(default)]
    pub gitignore: Gitignore,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Glob {
    pub pattern: String,
    pub path: Option<String>,
    #[serde(default)]
    pub gitignore: Gitignore,
}

/// Whether a search honours `.gitignore`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Gitignore {
    #[default]
    Disregarded,
    Respected,
}

fn results_default() -> usize {
    GREP_RESULTS_DEFAULT
}

impl From<bool> for ReplaceAll {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl From<ReplaceAll> for bool {
    fn from(replace: ReplaceAll) -> Self {
        replace == ReplaceAll::Yes
    }
}

impl From<bool> for Gitignore {
    fn from(yes: bool) -> Self {
        if yes { Self::Respected } else { Self::Disregarded }
    }
}

impl From<Gitignore> for bool {
    fn from(gitignore: Gitignore) -> Self {
        gitignore == Gitignore::Respected
    }
}
