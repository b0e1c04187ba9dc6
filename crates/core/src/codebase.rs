//! Codebases: named trees of an owner, which live on the storage and can be mounted in sandboxes.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::id::{CodebaseId, SandboxId};
use super::slot::is_plain;
use super::source::HOME;
use super::spec::InvalidSpec;
use super::text::shown_as_text;
use crate::limits;

/// Where a codebase is mounted unless the caller says otherwise.
pub const DEFAULT_MOUNT: &str = "/workspace";

/// `[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}` without `..`, and not of the form of a codebase's id: wherever an id is accepted,
/// a name is, and each text is one or the other. Unique among the codebases of an owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String, pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", max_length = 128, examples("website")
)]
pub struct CodebaseName(String);

/// A string that no codebase can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {max} letters, digits, '.', '_' and '-', the first a letter or digit, no '..', \
     and not the form of an id",
    max = limits::SLOT_MAX_BYTES
)]
pub struct InvalidCodebaseName;

shown_as_text!(CodebaseName, InvalidCodebaseName);

impl FromStr for CodebaseName {
    type Err = InvalidCodebaseName;

    fn from_str(text: &str) -> Result<Self, InvalidCodebaseName> {
        if is_plain(text) && text.parse::<CodebaseId>().is_err() {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidCodebaseName)
        }
    }
}

/// A codebase as a caller names it: by its id, or by the name that its owner gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(value_type = String, pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,127}$", examples("website"))]
pub struct CodebaseRef(String);

shown_as_text!(CodebaseRef, InvalidCodebaseName);

impl FromStr for CodebaseRef {
    type Err = InvalidCodebaseName;

    fn from_str(text: &str) -> Result<Self, InvalidCodebaseName> {
        if is_plain(text) { Ok(Self(text.to_owned())) } else { Err(InvalidCodebaseName) }
    }
}

impl From<&CodebaseId> for CodebaseRef {
    fn from(id: &CodebaseId) -> Self {
        Self(id.to_string())
    }
}

impl CodebaseId {
    /// The name of its volume: storages name volumes as sandboxes are named.
    pub fn volume(&self) -> SandboxId {
        let random = &self.as_str()[Self::PREFIX.len()..];
        let text = format!("{}{random}", SandboxId::PREFIX);
        text.parse().expect("both kinds of id differ only in their prefix")
    }
}

/// Whose files a sandbox works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodebaseMode {
    /// The codebase itself: what is written is there at once, for every sandbox that has it and for the API.
    #[default]
    Shared,
    /// A copy of the sandbox's own.
    Copy,
}

/// How servers serve codebases whose rules mounts cannot keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CodebaseServing {
    /// The page cache for the first sandbox on a codebase, passthrough for those that come to it.
    #[default]
    Auto,
    Fuse,
    Passthrough,
}

/// The codebase of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodebaseMount {
    pub codebase: CodebaseId,
    /// Its name when the sandbox was created; it never changes.
    pub name: CodebaseName,
    /// Where it is in the sandbox.
    pub path: String,
    #[serde(default)]
    pub mode: CodebaseMode,
}

/// Directories of a root that are the system's, or that hold other mounts.
const RESERVED: [&str; 14] = [
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys",
    "usr", "var",
];

/// A normalized path that a codebase can be mounted at.
pub(super) fn mount_path(path: &str) -> Result<String, InvalidSpec> {
    let wrong = |problem: &str| Err(InvalidSpec { field: "mount", problem: problem.to_owned() });
    if path.len() > limits::MOUNT_PATH_MAX_BYTES {
        return wrong(&format!("it is over {} bytes", limits::MOUNT_PATH_MAX_BYTES));
    }
    let Some(rest) = path.strip_prefix('/') else { return wrong("it is not an absolute path") };
    let parts: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let strange = |part: &&str| {
        matches!(*part, "." | "..") || part.len() > 255 || part.chars().any(char::is_control)
    };
    if parts.iter().any(strange) {
        return wrong("a part of it is `.`, `..`, too long, or has a control character");
    }
    let Some(first) = parts.first() else { return wrong("the root itself cannot be replaced") };
    let clean = format!("/{}", parts.join("/"));
    let hides = |path: &str| path == clean || path.starts_with(&format!("{clean}/"));
    if RESERVED.contains(first) || hides(HOME) || hides("/tmp") || hides("/root") {
        return wrong("the sandbox needs that directory itself; use another, such as /workspace");
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_an_id() {
        let id = CodebaseId::random();
        assert_eq!(id.as_str().parse(), Ok(CodebaseRef::from(&id)));
        assert_eq!(id.as_str().parse::<CodebaseName>(), Err(InvalidCodebaseName));
        for bad in ["", "a/b", "..", "-a", "a b", "ä", "a\0"] {
            assert_eq!(bad.parse::<CodebaseRef>(), Err(InvalidCodebaseName), "{bad}");
        }
    }

    #[test]
    fn two_codebases_never_share_a_volume() {
        let (one, two) = (CodebaseId::random(), CodebaseId::random());
        assert_eq!(one.volume(), one.volume());
        assert_ne!(one.volume(), two.volume());
    }

    #[test]
    fn a_mount_hides_nothing_that_a_sandbox_needs() {
        for (path, clean) in [
            ("/workspace", "/workspace"),
            ("//srv//app/", "/srv/app"),
            ("/home/user/code", "/home/user/code"),
            ("/tmp/x", "/tmp/x"),
        ] {
            assert_eq!(mount_path(path).as_deref(), Ok(clean));
        }
        let long = format!("/{}", "x".repeat(2000));
        for bad in [
            "",
            "workspace",
            "/",
            "//",
            "/home",
            "/home/user",
            "/home/user/",
            "/proc/x",
            "/etc",
            "/usr/src",
            "/tmp",
            "/root",
            "/a/../etc",
            "/./a",
            "/a\0",
            "/a\nb",
            &long,
        ] {
            assert_eq!(mount_path(bad).expect_err(bad).field, "mount");
        }
    }
}
