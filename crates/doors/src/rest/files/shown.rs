//! The JSON representation of files.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use toolbox::{Entry, EntryKind, RawPath};
use utoipa::ToSchema;

use sandkeep_broker::error::Error;
use sandkeep_core::limits;

/// Metadata of a path.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = File)]
pub struct Shown {
    /// The requested path, or a path below it. Bytes that are not UTF-8 are replaced by U+FFFD.
    path: String,
    /// The exact bytes, if the path is not UTF-8; base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_b64: Option<String>,
    kind: Kind,
    /// A sparse file occupies less of the disk.
    size_bytes: u64,
    /// The same as `size_bytes`, under its former name.
    #[schema(deprecated)]
    size: u64,
    /// Octal, such as `0644`.
    mode: String,
    uid: u32,
    gid: u32,
    /// RFC 3339.
    #[schema(value_type = String, format = DateTime)]
    modified_at: Timestamp,
    /// Target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_b64: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = FileKind)]
enum Kind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    BlockDevice,
    CharDevice,
    Other,
}

impl From<EntryKind> for Kind {
    fn from(kind: EntryKind) -> Self {
        match kind {
            EntryKind::File => Self::File,
            EntryKind::Directory => Self::Directory,
            EntryKind::Symlink => Self::Symlink,
            EntryKind::Fifo => Self::Fifo,
            EntryKind::Socket => Self::Socket,
            EntryKind::BlockDevice => Self::BlockDevice,
            EntryKind::CharDevice => Self::CharDevice,
            EntryKind::Other => Self::Other,
        }
    }
}

impl From<Entry> for Shown {
    fn from(entry: Entry) -> Self {
        let (path, path_b64) = written(&entry.path);
        let (target, target_b64) = match entry.target.as_ref().map(written) {
            Some((target, target_b64)) => (Some(target), target_b64),
            None => (None, None),
        };
        // The value comes from the sandbox and may be anything.
        let modified_at =
            Timestamp::from_millisecond(entry.modified_ms).unwrap_or(Timestamp::UNIX_EPOCH);
        Self {
            path,
            path_b64,
            kind: entry.kind.into(),
            size_bytes: entry.size,
            size: entry.size,
            mode: format!("{:04o}", entry.mode & 0o7777),
            uid: entry.uid,
            gid: entry.gid,
            modified_at,
            target,
            target_b64,
        }
    }
}

/// A path as text, and as base64 if the text is lossy.
pub fn written(path: &RawPath) -> (String, Option<String>) {
    match path.as_text() {
        Some(text) => (text.to_owned(), None),
        None => (path.to_text_lossy(), Some(STANDARD.encode(path.as_bytes()))),
    }
}

/// A path in a body: as text, or as base64 if it is not UTF-8.
pub struct PathText {
    pub path: Option<String>,
    pub path_b64: Option<String>,
}

impl PathText {
    pub fn path(self, field: &'static str) -> Result<RawPath, Error> {
        let bytes = match (self.path, self.path_b64) {
            (Some(path), None) => path.into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).map_err(|_| Error::InvalidField {
                field,
                problem: "its bytes are no base64".to_owned(),
            })?,
            (Some(_), Some(_)) | (None, None) => {
                let problem = format!("give either {field} or {field}_b64");
                return Err(Error::InvalidField { field, problem });
            }
        };
        checked(field, bytes)
    }
}

/// Checks that the bytes can be a path.
pub fn checked(field: &'static str, bytes: Vec<u8>) -> Result<RawPath, Error> {
    let max = limits::FILE_PATH_MAX_BYTES;
    let problem = if bytes.is_empty() {
        "it is empty; . is the working directory".to_owned()
    } else if bytes.contains(&0) {
        "it holds NUL".to_owned()
    } else if bytes.len() >= max {
        format!("it has {} bytes, and a path has less than {max}", bytes.len())
    } else {
        return Ok(RawPath::from_bytes(bytes));
    };
    Err(Error::InvalidField { field, problem })
}

/// A mode in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModeText(pub u32);

impl<'de> Deserialize<'de> for ModeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is no mode such as \"0644\""));
        mode_of(&text).map(Self).ok_or_else(wrong)
    }
}

pub fn mode_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = !digits.is_empty() && digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    u32::from_str_radix(digits, 8).ok().filter(|mode| octal && *mode <= 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_octal_whatever_it_begins_with() {
        for (text, mode) in [("644", 0o644), ("0755", 0o755), ("0o1777", 0o1777), ("0", 0)] {
            assert_eq!(mode_of(text), Some(mode), "{text}");
        }
        for text in ["", "8", "-1", "+7", "rwx", "17777", "0x1"] {
            assert_eq!(mode_of(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_is_no_text_can_be_said_back() {
        let path = RawPath::from_bytes(b"a\xff".to_vec());
        let (text, encoded) = written(&path);
        assert_eq!(text, "a\u{fffd}");
        let back = PathText { path: None, path_b64: encoded }.path("path").expect("a path");
        assert_eq!(back, path);
    }
}
