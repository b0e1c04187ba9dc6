//! The name of a sandbox: chosen by its owner, or derived from its id.
//!
//! A chosen name is claimed in the directory, where only one sandbox of an owner can have it. A derived name is
//! computed from the id whenever it is needed. It is stored nowhere, and costs a create nothing.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::slot::is_plain;
use crate::text::shown_as_text;
use crate::{ExecId, ImportId, ProcessId, SandboxId, ShellId, SnapshotId, UploadId, limits};

/// `[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}` without `..`, and not of the form of an id: wherever an id is accepted, a name
/// is, and each text is one or the other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String, pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", max_length = 128,
    examples("web", "brave-otter-k3fd")
)]
pub struct SandboxName(String);

/// A string that no sandbox can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit, no '..', \
     and not the form of an id",
    max = limits::SLOT_MAX_BYTES
)]
pub struct InvalidSandboxName;

impl SandboxName {
    /// The readable name of a sandbox that was given none: two words and the first four random characters of its id.
    pub fn derived(id: &SandboxId) -> Self {
        let random = &id.as_str()[SandboxId::PREFIX.len()..];
        let digit = |at: usize| match random.as_bytes()[at] {
            letter @ b'a'..=b'z' => usize::from(letter - b'a'),
            digit => 26 + usize::from(digit.saturating_sub(b'2')),
        };
        let word = |list: [&'static str; 64], at: usize| {
            list[(digit(at) * 32 + digit(at + 1)) % list.len()]
        };
        let (adjective, noun) = (word(ADJECTIVES, SUFFIX_LEN), word(NOUNS, SUFFIX_LEN + 2));
        Self(format!("{adjective}-{noun}-{}", &random[..SUFFIX_LEN]))
    }
}

shown_as_text!(SandboxName, InvalidSandboxName);

fn is_an_id(text: &str) -> bool {
    text.parse::<SandboxId>().is_ok()
        || text.parse::<ExecId>().is_ok()
        || text.parse::<ShellId>().is_ok()
        || text.parse::<ProcessId>().is_ok()
        || text.parse::<SnapshotId>().is_ok()
        || text.parse::<ImportId>().is_ok()
        || text.parse::<UploadId>().is_ok()
}

impl FromStr for SandboxName {
    type Err = InvalidSandboxName;

    fn from_str(text: &str) -> Result<Self, InvalidSandboxName> {
        if is_plain(text) && !is_an_id(text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidSandboxName)
        }
    }
}

/// How many characters of the id a derived name ends with.
const SUFFIX_LEN: usize = 4;

const ADJECTIVES: [&str; 64] = [
    "able", "amber", "ample", "apt", "ardent", "azure", "bold", "brave", "breezy", "bright",
    "brisk", "calm", "candid", "clear", "clever", "coral", "cosy", "crisp", "daring", "deft",
    "eager", "early", "easy", "fair", "fleet", "fond", "frank", "fresh", "gentle", "glad",
    "golden", "grand", "green", "happy", "hardy", "humble", "jolly", "keen", "kind", "light",
    "lively", "loyal", "lucid", "mellow", "merry", "mild", "modest", "neat", "nimble", "noble",
    "patient", "plain", "polite", "proud", "quick", "quiet", "ready", "rosy", "sound", "steady",
    "sunny", "swift", "tidy", "warm",
];

const NOUNS: [&str; 64] = [
    "alder", "anchor", "aspen", "badger", "basin", "beacon", "birch", "brook", "canyon", "cedar",
    "cliff", "clover", "comet", "condor", "cove", "crane", "dune", "eagle", "elm", "ember",
    "falcon", "fern", "finch", "fjord", "forest", "fox", "glade", "grove", "harbor", "hawk",
    "hazel", "heron", "island", "ivy", "juniper", "kestrel", "lagoon", "lake", "larch", "lark",
    "lemur", "maple", "marten", "meadow", "mesa", "moss", "oak", "orchid", "osprey", "otter",
    "owl", "panda", "pine", "plover", "poplar", "prairie", "quail", "raven", "reef", "ridge",
    "river", "robin", "sparrow", "willow",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_name_is_plain_and_not_of_the_form_of_an_id() {
        let longest = format!("a{}", "-".repeat(127));
        for good in ["a", "0", "web", "run.4711", "sbx", "sb-web", &longest] {
            assert!(good.parse::<SandboxName>().is_ok(), "{good} was refused");
        }
        let (too_long, rest) = (format!("{longest}-"), "a".repeat(26));
        let ids = ["sb", "ex", "sh", "pr", "sn", "im", "up"].map(|kind| format!("{kind}{rest}"));
        let wrong = ["", ".a", "-a", "_a", "a..b", "a/b", "a b", "\u{e4}", "a\n", "a\0", &too_long];
        for bad in wrong.into_iter().chain(ids.iter().map(String::as_str)) {
            assert!(bad.parse::<SandboxName>().is_err(), "{bad:?} was accepted");
        }
    }

    #[test]
    fn a_derived_name_is_a_name_and_always_the_same() {
        for _ in 0..100 {
            let id = SandboxId::random();
            let name = SandboxName::derived(&id);
            assert_eq!(name.as_str().parse(), Ok(name.clone()));
            assert_eq!(name, SandboxName::derived(&id));
            assert!(name.as_str().ends_with(&id.as_str()[2..6]), "{name} of {id}");
        }
    }

    #[test]
    fn every_word_can_come_up() {
        let words = |nth: usize| -> BTreeSet<String> {
            let names = (0..10_000).map(|_| SandboxName::derived(&SandboxId::random()));
            names
                .map(|name| name.as_str().split('-').nth(nth).expect("a word").to_owned())
                .collect()
        };
        assert_eq!((words(0).len(), words(1).len()), (64, 64));
    }
}
