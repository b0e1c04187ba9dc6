//! Permission rules of a codebase: which paths a sandbox sees, reads and writes. Data and pure functions; the
//! filesystem that keeps them is crate `rulefs`.
//!
//! ```text
//! "agent-safe"                                            a preset
//! [ { pattern: "src/**", permission: "write" }, … ]       rules
//! { preset: "read-only", rules: [ … ] }                   both; of equal rules, the own one wins
//! ```
//!
//! # Which rule decides
//!
//! Of the rules whose pattern matches a path, the first in this order:
//!
//! 1. the higher `priority` (0 unless given),
//! 2. the `type`: file, then directory, then glob,
//! 3. the more specific pattern: one without wildcards; then the one with more segments before its first wildcard;
//!    with more segments without wildcards; with more segments other than `**`; with more characters other than `*`,
//! 4. the one that is written later.
//!
//! No match means `none`.
//!
//! # What follows for directories
//!
//! - A directory that a `none` rule matches hides everything below. Only rules of a higher priority open something
//!   below it. The root of the codebase is not hidden by any rule.
//! - A directory that is itself hidden, or that no rule matches, still shows the way (and nothing else) to what is
//!   visible below it.

mod draft;
mod engine;
mod pattern;
mod plain;
mod presets;
#[cfg(test)]
mod tests;

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use draft::{InvalidRules, RulesDraft};
pub use engine::{Decision, Reason, Rules, State};
pub use pattern::InvalidPattern;
pub use plain::{Plain, PlainAccess};
pub use presets::{RulePreset, UnknownPreset};

/// What a sandbox may do with a path. Each level includes those before it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// It does not exist: ENOENT, and not listed.
    None,
    /// It is listed and has attributes; opening it fails with EACCES.
    View,
    /// It can be read and executed, but not changed in any way.
    Read,
    Write,
}

impl Permission {
    pub const ALL: [Self; 4] = [Self::None, Self::View, Self::Read, Self::Write];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::View => "view",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a pattern is meant. If it is not given: `glob` if the pattern has a `*`, otherwise `directory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RuleType {
    /// Exactly this path. The pattern has no wildcards.
    File,
    /// This path and everything below it. The pattern has no wildcards.
    Directory,
    /// The paths that match: `*` is any text within one segment, `**` is any number of segments, including none.
    Glob,
}

impl fmt::Display for RuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "file",
            Self::Directory => "directory",
            Self::Glob => "glob",
        })
    }
}

/// One rule, as callers write it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CodebaseRule)]
pub struct Rule {
    /// A path relative to the root of the codebase; a leading `/` changes nothing.
    #[schema(example = "**/secrets/**")]
    pub pattern: String,
    pub permission: Permission,
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<RuleType>,
    /// Rules of a higher priority win over all others.
    #[serde(default)]
    pub priority: i32,
}

impl Rule {
    /// A rule whose type follows from its pattern.
    pub fn new(pattern: impl Into<String>, permission: Permission) -> Self {
        Self { pattern: pattern.into(), permission, kind: None, priority: 0 }
    }

    pub fn with_priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    pub fn with_type(self, kind: RuleType) -> Self {
        Self { kind: Some(kind), ..self }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.pattern, self.permission)?;
        if let Some(kind) = self.kind {
            write!(f, " ({kind})")?;
        }
        if self.priority != 0 {
            write!(f, " @{}", self.priority)?;
        }
        Ok(())
    }
}

/// The start of a text that a caller sent, for an error.
fn shown(text: &str) -> String {
    const SHOWN_MAX: usize = 100;
    text.chars().take(SHOWN_MAX).collect()
}
