//! Names of snapshots, and why they were taken.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::id::SnapshotId;
use super::slot::is_plain;

/// The name of the state a sandbox started in.
const BASE: &str = "base";
/// What the present state is called where a snapshot could be named.
const NOW: &str = "now";

/// The name of one snapshot of a sandbox, by the rules of slots, or its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String, pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", max_length = 128,
    examples("before-the-upgrade", "turn-0003")
)]
pub struct SnapshotName(String);

/// A string that is not a valid snapshot name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a snapshot's name has 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit, and no '..'",
    max = crate::limits::SLOT_MAX_BYTES
)]
pub struct InvalidSnapshotName;

/// Why a snapshot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// It was requested, so only a request removes it.
    Asked,
    /// It seals the turn with this number.
    Turn(u64),
    /// It was taken after a tool call.
    Tool,
    /// It holds the files that a sandbox with a workspace, or a fork, started with.
    Base,
}

impl SnapshotKind {
    /// Whether it may be pruned in favour of later ones.
    pub fn is_pruned(self) -> bool {
        match self {
            Self::Asked | Self::Base => false,
            Self::Turn(_) | Self::Tool => true,
        }
    }

    /// Whether it counts towards the number of snapshots that a sandbox may have. Sandkeep makes the base by itself.
    pub fn is_counted(self) -> bool {
        match self {
            Self::Asked | Self::Turn(_) | Self::Tool => true,
            Self::Base => false,
        }
    }

    pub fn turn(self) -> Option<u64> {
        match self {
            Self::Turn(number) => Some(number),
            Self::Asked | Self::Tool | Self::Base => None,
        }
    }
}

impl SnapshotName {
    /// The default prefix of turn names.
    pub fn turns() -> Self {
        Self("turn".to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of the snapshot that holds what a sandbox started with.
    pub fn base() -> Self {
        Self(BASE.to_owned())
    }

    /// The name of the snapshot that seals a turn.
    pub fn of_turn(prefix: &Self, number: u64) -> Self {
        Self(format!("{prefix}-{number:04}"))
    }

    /// The name of a snapshot that was given none.
    pub fn of_id(id: &SnapshotId) -> Self {
        Self(id.to_string())
    }

    /// Whether it is reserved for something else: a turn, an id, or the present.
    pub fn is_taken(&self, turn_prefix: &Self) -> bool {
        let number =
            self.0.strip_prefix(turn_prefix.as_str()).and_then(|rest| rest.strip_prefix('-'));
        let is_turn = number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        is_turn || self.0 == NOW || self.0.parse::<SnapshotId>().is_ok()
    }
}

impl FromStr for SnapshotName {
    type Err = InvalidSnapshotName;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotName> {
        if is_plain(text) { Ok(Self(text.to_owned())) } else { Err(InvalidSnapshotName) }
    }
}

impl TryFrom<String> for SnapshotName {
    type Error = InvalidSnapshotName;

    fn try_from(text: String) -> Result<Self, InvalidSnapshotName> {
        text.parse()
    }
}

impl From<SnapshotName> for String {
    fn from(name: SnapshotName) -> String {
        name.0
    }
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_turns_and_ids_are_nobodys_to_choose() {
        let name = |text: &str| text.parse::<SnapshotName>().expect(text);
        let prefix = name("turn");
        assert_eq!(SnapshotName::of_turn(&prefix, 7).as_str(), "turn-0007");
        assert_eq!(SnapshotName::of_turn(&prefix, 12345).as_str(), "turn-12345");
        let id = SnapshotId::random();
        for taken in ["turn-0001", "turn-99999", "turn-", "now", id.as_str()] {
            assert!(name(taken).is_taken(&prefix), "{taken}");
        }
        for free in ["turn", "turn-a", "turn-1a", "turn.1", "my-turn-1", "sn", "nowhere"] {
            assert!(!name(free).is_taken(&prefix), "{free}");
        }
        assert!("../x".parse::<SnapshotName>().is_err());
    }
}
