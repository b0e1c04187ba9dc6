//! Sets of rules with a name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Permission::{self, None, Read, View, Write};
use super::Rule;

/// A named set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RulePreset {
    /// Everything is listed, nothing can be opened.
    ViewOnly,
    ReadOnly,
    FullAccess,
    /// Everything can be written, except for secrets, which are hidden.
    Development,
    /// Everything can be read and `/output` and `/tmp` written; secrets and git's data are hidden.
    AgentSafe,
}

type Row = (&'static str, Permission, i32);

const DEVELOPMENT: &[Row] = &[
    ("**/*", Write, 0),
    ("**/.env*", None, 100),
    ("**/secrets/**", None, 100),
    ("**/*.key", None, 100),
    ("**/*.pem", None, 100),
];

const AGENT_SAFE: &[Row] = &[
    ("**/*", Read, 0),
    ("/output/**", Write, 10),
    ("/tmp/**", Write, 10),
    ("**/.env*", None, 100),
    ("**/secrets/**", None, 100),
    ("**/*.key", None, 100),
    ("**/*.pem", None, 100),
    ("**/credentials*", None, 100),
    ("**/.git/**", None, 50),
];

impl RulePreset {
    pub const ALL: [Self; 5] =
        [Self::ViewOnly, Self::ReadOnly, Self::FullAccess, Self::Development, Self::AgentSafe];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ViewOnly => "view-only",
            Self::ReadOnly => "read-only",
            Self::FullAccess => "full-access",
            Self::Development => "development",
            Self::AgentSafe => "agent-safe",
        }
    }

    pub fn rules(self) -> Vec<Rule> {
        let rows: &[Row] = match self {
            Self::ViewOnly => &[("**/*", View, 0)],
            Self::ReadOnly => &[("**/*", Read, 0)],
            Self::FullAccess => &[("**/*", Write, 0)],
            Self::Development => DEVELOPMENT,
            Self::AgentSafe => AGENT_SAFE,
        };
        let rule = |(pattern, permission, priority): &Row| {
            Rule::new(*pattern, *permission).with_priority(*priority)
        };
        rows.iter().map(rule).collect()
    }
}

impl fmt::Display for RulePreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not a preset; there are {}", RulePreset::ALL.map(RulePreset::as_str).join(", "))]
pub struct UnknownPreset {
    name: String,
}

impl FromStr for RulePreset {
    type Err = UnknownPreset;

    fn from_str(text: &str) -> Result<Self, UnknownPreset> {
        let known = Self::ALL.into_iter().find(|preset| preset.as_str() == text);
        known.ok_or_else(|| UnknownPreset { name: super::shown(text) })
    }
}
