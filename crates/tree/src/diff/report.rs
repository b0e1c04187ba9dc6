//! Changes in the format of the API, for server and clients.
//!
//! Paths are those inside, with a leading slash. JSON strings are Unicode, so a path that is not UTF-8 is given twice:
//! as text, with U+FFFD for invalid bytes, and as its exact bytes in a second field with the suffix `_b64`. Without
//! that field the text is exact.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Aspect, Change, ChangeKind, Facts, FileKind, Text};
use crate::TreePath;
use crate::digest::Digest;
use crate::tree_path::PathProblem;
use sandkeep_core::SnapshotId;

/// All differences between two points in time of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Diff)]
pub struct DiffReport {
    pub from: Side,
    pub to: Side,
    /// Whether nothing was being written meanwhile. `false` only for a running sandbox whose runtime cannot freeze;
    /// then a file may have been read in the middle of a write.
    pub frozen: bool,
    /// In the order of a walk: names sorted by bytes, a directory before its content.
    pub changes: Vec<FileChange>,
    /// There are more changes than the limit.
    pub truncated: bool,
    /// Number of directories that the daemon may not read.
    pub unreadable: u64,
}

/// A point in time of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", tag = "kind")]
#[schema(as = DiffSide)]
pub enum Side {
    /// What the sandbox was created from.
    Base,
    Snapshot {
        id: SnapshotId,
        name: String,
    },
    Now,
}

/// One changed file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FileChange)]
pub struct FileChange {
    /// `mode` includes owner and attributes; `differs` says which.
    pub kind: ChangeKind,
    /// The present path, or the former one of a removed file.
    pub path: String,
    /// The path's bytes, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
    /// The former path, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_path_b64: Option<String>,
    /// Which aspects differ, if it exists on both sides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differs: Vec<Aspect>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<FileFacts>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<FileFacts>,
    /// The changed lines, in the format of `diff -u`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why the requested `text` is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_omitted: Option<Omitted>,
}

/// Metadata of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = FileFacts)]
pub struct FileFacts {
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Permissions, such as `0644`.
    pub mode: String,
    pub uid: u32,
    pub gid: u32,
    pub bytes: u64,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_b64: Option<String>,
    /// Digest of a regular file, with `format=tar`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TextOmitted)]
pub enum Omitted {
    Binary,
    /// The file is too large, or all texts together are.
    TooLarge,
}

impl FileChange {
    pub fn of(change: &Change) -> Self {
        let (path, path_b64) = spelled(&absolute(&change.path));
        let from = change.from_path.as_ref().map(|path| spelled(&absolute(path)));
        let (from_path, from_path_b64) = match from {
            Some((text, bytes)) => (Some(text), bytes),
            None => (None, None),
        };
        let (text, text_omitted) = match &change.text {
            None => (None, None),
            Some(Text::Unified(text)) => (Some(text.clone()), None),
            Some(Text::Binary) => (None, Some(Omitted::Binary)),
            Some(Text::TooLarge) => (None, Some(Omitted::TooLarge)),
        };
        Self {
            kind: change.kind,
            path,
            path_b64,
            from_path,
            from_path_b64,
            differs: change.differs.clone(),
            before: change.before.as_ref().map(FileFacts::of),
            after: change.after.as_ref().map(FileFacts::of),
            text,
            text_omitted,
        }
    }

    /// The path, from either field.
    pub fn tree_path(&self) -> Result<TreePath, PathProblem> {
        TreePath::clean(&bytes_of(&self.path, self.path_b64.as_deref())?)
    }

    pub fn from_tree_path(&self) -> Result<Option<TreePath>, PathProblem> {
        let Some(text) = &self.from_path else { return Ok(None) };
        TreePath::clean(&bytes_of(text, self.from_path_b64.as_deref())?).map(Some)
    }
}

impl FileFacts {
    fn of(facts: &Facts) -> Self {
        let target = facts.target.as_deref().map(spelled);
        let (target, target_b64) = match target {
            Some((text, bytes)) => (Some(text), bytes),
            None => (None, None),
        };
        Self {
            kind: facts.kind,
            mode: format!("{:04o}", facts.mode),
            uid: facts.uid,
            gid: facts.gid,
            bytes: facts.size_bytes,
            target,
            target_b64,
            digest: None,
        }
    }

    /// The twelve permission bits; 0 if the text is invalid.
    pub fn permissions(&self) -> u32 {
        u32::from_str_radix(&self.mode, 8).unwrap_or(0) & 0o7777
    }

    /// The target of a symbolic link, as bytes.
    pub fn target_bytes(&self) -> Result<Option<Vec<u8>>, PathProblem> {
        let Some(text) = &self.target else { return Ok(None) };
        bytes_of(text, self.target_b64.as_deref()).map(Some)
    }
}

fn absolute(path: &TreePath) -> Vec<u8> {
    [b"/", path.bytes()].concat()
}

/// As text, and as base64 if the text is lossy.
pub(crate) fn spelled(bytes: &[u8]) -> (String, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (text.to_owned(), None),
        Err(_) => (String::from_utf8_lossy(bytes).into_owned(), Some(STANDARD.encode(bytes))),
    }
}

pub(crate) fn bytes_of(text: &str, base64: Option<&str>) -> Result<Vec<u8>, PathProblem> {
    match base64 {
        None => Ok(text.as_bytes().to_vec()),
        Some(base64) => STANDARD.decode(base64).map_err(|_| PathProblem::Base64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_path_and_target_survive_json() {
        for name in [&b"plain"[..], b"m\xc3\xbcll/x", b"\xff\xfe/x", b"a\nb", b"%ff"] {
            let facts = Facts {
                kind: FileKind::Symlink,
                mode: 0o4755,
                uid: 1,
                gid: 2,
                size_bytes: 3,
                target: Some(name.to_vec()),
            };
            let change = Change {
                kind: ChangeKind::Renamed,
                path: TreePath::clean(name).expect("a path"),
                from_path: Some(TreePath::clean(b"from\xfe").expect("a path")),
                differs: vec![Aspect::Target],
                before: None,
                after: Some(facts),
                text: None,
            };
            let written = serde_json::to_string(&FileChange::of(&change)).expect("plain data");
            let read: FileChange = serde_json::from_str(&written).expect("what was written");
            assert_eq!(read.tree_path().as_ref(), Ok(&change.path), "{written}");
            assert_eq!(read.from_tree_path(), Ok(change.from_path));
            let after = read.after.expect("it is there");
            assert_eq!(after.target_bytes(), Ok(Some(name.to_vec())));
            assert_eq!(after.permissions(), 0o4755);
        }
    }
}
