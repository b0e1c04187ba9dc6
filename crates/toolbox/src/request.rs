//! Requests to the toolbox.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::answer::Failure;
use crate::tools::Call;

/// One run of the toolbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The base of relative paths; the user's home if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<RawPath>,
    pub operation: Operation,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The entry at a path; a symbolic link itself, not its target. Answered by an [`Entry`](crate::Entry).
    Stat {
        path: RawPath,
    },
    /// The ports that processes listen on. Answered by a [`Listening`](crate::Listening).
    Ports,
    /// The bytes of a file. Answered by a [`Reading`](crate::Reading), and the bytes.
    Read {
        path: RawPath,
        range: Option<ByteRange>,
    },
    /// New content for a file: the data. Answered by a [`Written`](crate::Written) once it is complete.
    Write(WriteFile),
    /// Removes an entry; a symbolic link itself. Answered by an empty list.
    Remove {
        path: RawPath,
        reach: Reach,
    },
    /// A page of a directory. Answered by a [`Listing`](crate::Listing).
    List(ListDirectory),
    /// Answered by an [`Entry`](crate::Entry), like the next two.
    MakeDirectory(MakeDirectory),
    Move(MoveEntry),
    ChangeMode(ChangeMode),
    /// Changes. Answered by a [`Watching`](crate::Watching), and lines of [`Change`](crate::Change).
    Watch {
        path: RawPath,
        reach: Reach,
    },
    /// A tree as a tar archive. Answered by a [`Packing`](crate::Packing), and the archive.
    Pack {
        path: RawPath,
    },
    /// Unpacks a tar archive, which is the data, into a directory. Answered by an [`Unpacked`](crate::Unpacked).
    Unpack(UnpackArchive),
    /// Restores files from an archive of the differences, which is the data. See [`restore`](crate::restore). Answered
    /// by an [`Unpacked`](crate::Unpacked).
    Restore {},
    /// An agent's tool call. Answered by an empty head and lines of [`Line`](crate::tools::Line), the last of which is
    /// the answer or a refusal.
    Tool(Call),
}

/// A byte range, as in HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ByteRange {
    /// Inclusive.
    From {
        first: u64,
        last: Option<u64>,
    },
    Last {
        bytes: u64,
    },
}

/// Whether an operation applies to one entry or also to everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    One,
    Tree,
}

/// Whether missing parent directories are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Parents {
    Require,
    Make,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    Refused,
    Allowed,
}

/// The owner of an archive's entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ownership {
    /// The user who unpacks it, without set-user-ID bits.
    Own,
    /// As in the archive, which only root can do.
    Keep,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteFile {
    pub path: RawPath,
    /// If missing: that of the old file, or the umask's default.
    pub mode: Option<u32>,
    pub parents: Parents,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListDirectory {
    pub path: RawPath,
    /// 1 for the directory alone.
    pub depth: u32,
    /// At least 1.
    pub limit: u64,
    /// Where the previous page ended.
    pub after: Option<RawPath>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDirectory {
    pub path: RawPath,
    pub mode: Option<u32>,
    /// With `Make`, an existing one is fine.
    pub parents: Parents,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveEntry {
    pub from: RawPath,
    /// The new path itself, even if a directory of that name exists.
    pub to: RawPath,
    pub overwrite: Overwrite,
    pub parents: Parents,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeMode {
    pub path: RawPath,
    pub mode: u32,
    pub reach: Reach,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnpackArchive {
    /// A directory.
    pub path: RawPath,
    pub parents: Parents,
    pub ownership: Ownership,
}

impl Request {
    pub fn new(operation: Operation) -> Self {
        Self { base: None, operation }
    }

    /// Makes the base the working directory. A missing base is not an error by itself: absolute paths do not need it,
    /// and relative ones are then below the root.
    pub(crate) fn enter_base(&self) -> Result<(), Failure> {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let base = self.base.as_ref().map(|base| base.as_path().to_owned()).or(home);
        let entered = base.is_some_and(|base| std::env::set_current_dir(base).is_ok());
        if entered {
            return Ok(());
        }
        std::env::set_current_dir("/").map_err(|error| Failure::from_io(&error, None))
    }
}

/// A path or a name: any bytes but NUL. In JSON it is a string if it is UTF-8, and otherwise an array of its bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub struct RawPath(PathBuf);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Written> for RawPath {
    fn from(written: Written) -> Self {
        match written {
            Written::Text(text) => Self(PathBuf::from(text)),
            Written::Bytes(bytes) => Self::from_bytes(bytes),
        }
    }
}

impl From<RawPath> for Written {
    fn from(path: RawPath) -> Self {
        match String::from_utf8(path.0.into_os_string().into_vec()) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Bytes(error.into_bytes()),
        }
    }
}

impl RawPath {
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(PathBuf::from(std::ffi::OsString::from_vec(bytes)))
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_os_str().as_bytes()
    }

    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// `None` if it is not UTF-8.
    pub fn as_text(&self) -> Option<&str> {
        self.0.to_str()
    }

    /// For display; invalid UTF-8 is replaced.
    pub fn to_text_lossy(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl From<&str> for RawPath {
    fn from(text: &str) -> Self {
        Self(PathBuf::from(text))
    }
}

impl From<&OsStr> for RawPath {
    fn from(name: &OsStr) -> Self {
        Self(PathBuf::from(name))
    }
}

impl From<&Path> for RawPath {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

impl AsRef<Path> for RawPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Debug for RawPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_survives_json() {
        for bytes in [&b"plain"[..], b"", b"m\xc3\xbcll", b"\xff\xfe/x", b"a\nb", b"%ff"] {
            let path = RawPath::from_bytes(bytes.to_vec());
            let written = serde_json::to_string(&path).unwrap();
            let read: RawPath = serde_json::from_str(&written).unwrap();
            assert_eq!(read.as_bytes(), bytes, "{written}");
        }
        assert_eq!(serde_json::to_string(&RawPath::from("a/ü")).unwrap(), "\"a/ü\"");
    }

    #[test]
    fn a_request_is_what_its_name_says() {
        let request = Request::new(Operation::Stat { path: "x".into() });
        let written = serde_json::to_string(&request).unwrap();
        assert_eq!(written, r#"{"operation":{"stat":{"path":"x"}}}"#);
        assert_eq!(serde_json::from_str::<Request>(&written).unwrap(), request);
    }
}
