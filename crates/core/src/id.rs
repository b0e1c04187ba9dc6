//! Ids: a two-letter prefix and 128 random bits in lower-case base32, so only `[a-z0-9]`. They are
//! safe as file names, cgroup names, host names and labels alike.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// 128 bits, five per character.
const RANDOM_LEN: usize = 26;

/// A string that is not an id of the requested kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an id: expected {prefix:?} and {RANDOM_LEN} characters of a-z and 2-7")]
pub struct InvalidId {
    text: String,
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $pattern:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
        )]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String, pattern = $pattern)]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// A new id from the kernel's random source.
            pub fn random() -> Self {
                Self(random_id($prefix))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                if is_id(text, $prefix) { Ok(Self(text.to_owned())) } else { Err(InvalidId { text: text.to_owned(), prefix: $prefix }) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(
    /// Identifies one sandbox permanently: ids are never reused.
    SandboxId,
    "sb",
    "^sb[a-z2-7]{26}$"
);
id!(
    /// Identifies one exec.
    ExecId,
    "ex",
    "^ex[a-z2-7]{26}$"
);
id!(
    /// Identifies one persistent shell.
    ShellId,
    "sh",
    "^sh[a-z2-7]{26}$"
);
id!(
    /// Identifies one process. A process is an exec, and the two ids differ only in their prefix.
    ProcessId,
    "pr",
    "^pr[a-z2-7]{26}$"
);
id!(
    /// Identifies one snapshot of a sandbox's volume permanently.
    SnapshotId,
    "sn",
    "^sn[a-z2-7]{26}$"
);
id!(
    /// Identifies one import of a template.
    ImportId,
    "im",
    "^im[a-z2-7]{26}$"
);
id!(
    /// Names one webhook.
    WebhookId,
    "wh",
    "^wh[a-z2-7]{26}$"
);
id!(
    /// Names one archive that was sent for sandboxes to be made with.
    UploadId,
    "up",
    "^up[a-z2-7]{26}$"
);

id!(
    /// Identifies one codebase permanently.
    CodebaseId,
    "cb",
    "^cb[a-z2-7]{26}$"
);

impl ProcessId {
    /// The process id of an exec.
    pub fn of(exec: &ExecId) -> Self {
        Self(format!("{}{}", Self::PREFIX, &exec.0[ExecId::PREFIX.len()..]))
    }

    /// The exec id of a process.
    pub fn exec(&self) -> ExecId {
        ExecId(format!("{}{}", ExecId::PREFIX, &self.0[Self::PREFIX.len()..]))
    }
}

pub(crate) fn random_id(prefix: &str) -> String {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
    let mut bits = u128::from_le_bytes(bytes);
    let mut id = String::with_capacity(prefix.len() + RANDOM_LEN);
    id.push_str(prefix);
    for _ in 0..RANDOM_LEN {
        id.push(char::from(ALPHABET[(bits & 31) as usize]));
        bits >>= 5;
    }
    id
}

fn is_id(text: &str, prefix: &str) -> bool {
    text.strip_prefix(prefix)
        .is_some_and(|rest| rest.len() == RANDOM_LEN && rest.bytes().all(|b| ALPHABET.contains(&b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_id_parses_and_uses_only_lower_case_and_digits() {
        for _ in 0..100 {
            let id = SandboxId::random();
            assert_eq!(id.as_str().parse(), Ok(id.clone()));
            assert!(id.as_str().bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
        }
    }

    #[test]
    fn a_process_and_its_exec_name_each_other() {
        let exec = ExecId::random();
        let process = ProcessId::of(&exec);
        assert_eq!(process.as_str().parse(), Ok(process.clone()));
        assert_eq!(process.exec(), exec);
    }

    #[test]
    fn what_is_not_an_id_is_refused() {
        let exec = ExecId::random().to_string();
        for text in ["", "sb", "sb../../etc/passwd", "SBAAAA", exec.as_str()] {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?} was accepted");
        }
    }
}
