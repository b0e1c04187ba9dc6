//! The two ends of a copy, as written on the command line.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::cli::failure::Failure;
use sandkeep_core::{CodebaseRef, SandboxId, SandboxName};

pub enum End {
    Local(PathBuf),
    Remote(Remote),
    /// Stdin or stdout.
    Standard,
}

/// A path in a sandbox, or in a codebase.
pub struct Remote {
    pub of: Whose,
    /// Its name, its id, or, for a sandbox, the beginning of its id.
    pub sandbox: String,
    pub path: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Sandbox,
    Codebase,
}

impl Whose {
    fn has_name(self, text: &str) -> bool {
        match self {
            Self::Sandbox => {
                text.parse::<SandboxId>().is_ok() || text.parse::<SandboxName>().is_ok()
            }
            Self::Codebase => text.parse::<CodebaseRef>().is_ok(),
        }
    }
}

impl End {
    pub fn read(text: OsString, of: Whose) -> Result<Self, Failure> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        let bytes = text.as_bytes();
        // A local path that looks like one is written with a leading ./.
        let split = bytes.iter().position(|byte| matches!(byte, b':' | b'/'));
        let split = split.filter(|at| bytes[*at] == b':');
        let named = split.and_then(|at| std::str::from_utf8(&bytes[..at]).ok());
        let (Some(sandbox), Some(at)) = (named, split) else { return Ok(Self::Local(text.into())) };
        if !of.has_name(sandbox) {
            return Ok(Self::Local(text.into()));
        }
        let path = bytes[at + 1..].to_vec();
        if path.is_empty() {
            let problem =
                format!("{sandbox}: names no path; write {sandbox}:. for its working directory");
            return Err(Failure::Usage { problem });
        }
        Ok(Self::Remote(Remote { of, sandbox: sandbox.to_owned(), path }))
    }
}

impl Remote {
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// The same with a name appended.
    pub fn join(&self, name: &OsStr) -> Self {
        let path = self.as_path().join(name).into_os_string().into_vec();
        Self { of: self.of, sandbox: self.sandbox.clone(), path }
    }

    /// For a query: every other byte is percent-encoded.
    pub fn encoded(&self) -> String {
        const MEANING: &AsciiSet =
            &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
        percent_encode(&self.path, MEANING).to_string()
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sandbox, self.as_path().display())
    }
}

/// Whether only the contents of a directory are meant.
pub fn means_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes == b"." || bytes.ends_with(b"/.")
}

/// Whether the path can only be a directory's.
pub fn means_directory(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b"/") || means_content(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(text: &str) -> Option<(String, String)> {
        match End::read(text.into(), Whose::Sandbox) {
            Ok(End::Remote(remote)) => Some((remote.sandbox.clone(), remote.encoded())),
            Ok(End::Local(_) | End::Standard) | Err(_) => None,
        }
    }

    #[test]
    fn what_is_in_a_sandbox_has_its_name_or_id_before_a_colon() {
        let found = |sandbox: &str, path: &str| Some((sandbox.to_owned(), path.to_owned()));
        assert_eq!(remote("sbabc:/a b"), found("sbabc", "/a%20b"));
        assert_eq!(remote("sbabc:x:y"), found("sbabc", "x%3Ay"));
        assert_eq!(remote("web:x"), found("web", "x"));
        for local in ["-", "a", "./web:x", "dir/sbabc:x", ".web:x", "a b:x", ":x", "sbabc:"] {
            assert_eq!(remote(local), None, "{local}");
        }
    }
}
