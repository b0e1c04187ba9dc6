//! Which kinds of events somebody wants: by name (`exec.ended`), by prefix (`sandbox.*`), or all (`*`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EventKind;

/// The kinds that one pattern matches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, examples("sandbox.*", "exec.ended"))]
pub struct KindPattern(String);

/// A pattern that matches no kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} matches no kind of event; use a prefix such as \"sandbox.*\", or one of {}",
    EventKind::NAMES.join(", ")
)]
pub struct UnknownKind {
    text: String,
}

impl KindPattern {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it matches the kind of this name.
    pub fn matches(&self, kind: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(prefix) => kind.starts_with(prefix),
            None => self.0 == kind,
        }
    }
}

impl FromStr for KindPattern {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        let pattern = Self(text.to_owned());
        // A prefix ends where a part of the name does, so that `sand*` is not taken for `sandbox.*`.
        let is_whole = match text.strip_suffix('*') {
            Some(prefix) => prefix.is_empty() || prefix.ends_with('.'),
            None => true,
        };
        if is_whole && EventKind::NAMES.into_iter().any(|kind| pattern.matches(kind)) {
            Ok(pattern)
        } else {
            Err(UnknownKind { text: text.to_owned() })
        }
    }
}

impl TryFrom<String> for KindPattern {
    type Error = UnknownKind;

    fn try_from(text: String) -> Result<Self, UnknownKind> {
        text.parse()
    }
}

impl From<KindPattern> for String {
    fn from(pattern: KindPattern) -> Self {
        pattern.0
    }
}

impl fmt::Display for KindPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kinds that several patterns match together. No pattern at all matches every kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(transparent)]
pub struct Kinds(pub Vec<KindPattern>);

impl Kinds {
    pub fn matches(&self, kind: &EventKind) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| pattern.matches(kind.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_a_kind_or_all_with_its_prefix() {
        let pattern = |text: &str| text.parse::<KindPattern>().expect(text);
        assert!(pattern("exec.ended").matches("exec.ended"));
        assert!(!pattern("exec.ended").matches("exec.started"));
        assert!(pattern("sandbox.*").matches("sandbox.created"));
        assert!(!pattern("sandbox.*").matches("snapshot.created"));
        assert!(EventKind::NAMES.into_iter().all(|kind| pattern("*").matches(kind)));
    }

    #[test]
    fn a_pattern_that_matches_nothing_is_refused_with_the_names_of_all_kinds() {
        for text in ["", "sandbox", "sandbox.", "sand*", "sandbox.exploded", "*.created", "**"] {
            let refused = text.parse::<KindPattern>().expect_err(text).to_string();
            assert!(EventKind::NAMES.into_iter().all(|kind| refused.contains(kind)), "{refused}");
        }
    }

    #[test]
    fn no_pattern_matches_every_kind() {
        let started = EventKind::SandboxStarted {};
        assert!(Kinds::default().matches(&started));
        let only = Kinds(vec!["exec.*".parse().expect("a pattern")]);
        assert!(!only.matches(&started));
    }
}
