//! The caller's side of a plan: its directory, as the caller describes it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::PlanProblem;
use crate::TreePath;
use crate::diff::{FileFacts, FileKind, bytes_of, spelled};
use crate::digest::Digest;

/// What the files of a plan request stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ApplyScope)]
pub enum Scope {
    /// The whole directory: a path that is not listed does not exist there.
    #[default]
    Directory,
    /// The listed paths alone; changes of others are left out. A path that does not exist is listed as `absent`.
    Listed,
}

/// Whose version of a file is taken that both sides have changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ApplyOnConflict)]
pub enum OnConflict {
    /// The file stays as it is in the directory, and is reported.
    #[default]
    Report,
    /// The file stays as it is in the directory.
    Ours,
    /// The file becomes as it is in the sandbox.
    Theirs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = LocalFileType)]
pub enum LocalKind {
    Absent,
    File,
    Directory,
    Symlink,
    /// A device, socket or FIFO.
    Other,
}

impl LocalKind {
    pub(super) fn is(self, kind: FileKind) -> bool {
        match kind {
            FileKind::File => self == Self::File,
            FileKind::Directory => self == Self::Directory,
            FileKind::Symlink => self == Self::Symlink,
            FileKind::Fifo | FileKind::Socket | FileKind::Device => self == Self::Other,
        }
    }
}

/// One path of the caller's directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = LocalFile)]
pub struct LocalFile {
    /// Relative to the directory.
    pub path: String,
    /// The path's bytes, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_b64: Option<String>,
    #[serde(rename = "type")]
    pub kind: LocalKind,
    /// Permissions, such as `0644`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "octal")]
    #[schema(value_type = Option<String>)]
    pub mode: Option<u32>,
    /// Size of a regular file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Digest of a regular file, `sha256:` and 64 hexadecimal digits. It is needed if the sandbox changed the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub digest: Option<Digest>,
    /// Target of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_b64: Option<String>,
    /// With `scope: listed`: its own changes are left out. It is listed because steps of others depend on it: a parent
    /// directory, or an entry of a directory that would have to be empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub context: bool,
    /// An earlier apply left it like this, so that it counts as unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub as_applied: bool,
    /// Overrides that of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
}

impl LocalFile {
    /// With its path and type alone.
    pub fn new(path: &TreePath, kind: LocalKind) -> Self {
        let (path, path_b64) = spelled(path.bytes());
        Self {
            path,
            path_b64,
            kind,
            mode: None,
            bytes: None,
            digest: None,
            target: None,
            target_b64: None,
            context: false,
            as_applied: false,
            on_conflict: None,
        }
    }

    pub fn pointing(self, target: &[u8]) -> Self {
        let (target, target_b64) = spelled(target);
        Self { target: Some(target), target_b64, ..self }
    }
}

/// The caller's directory, by path.
#[derive(Debug)]
pub struct Here {
    files: BTreeMap<TreePath, LocalFile>,
    /// The existing entries of each directory.
    held: BTreeMap<TreePath, Vec<TreePath>>,
    scope: Scope,
    on_conflict: OnConflict,
}

impl Here {
    pub fn new(
        files: Vec<LocalFile>,
        scope: Scope,
        on_conflict: OnConflict,
    ) -> Result<Self, PlanProblem> {
        let mut here = Self { files: BTreeMap::new(), held: BTreeMap::new(), scope, on_conflict };
        for file in files {
            let path = TreePath::clean(&bytes_of(&file.path, file.path_b64.as_deref())?)?;
            let Some((parent, _)) = path.split() else { continue };
            if file.kind != LocalKind::Absent {
                here.held.entry(parent).or_default().push(path.clone());
            }
            let shown = path.shown();
            if here.files.insert(path, file).is_some() {
                return Err(PlanProblem::Twice { path: shown });
            }
        }
        Ok(here)
    }

    /// Whether changes of this path are wanted.
    pub(super) fn covers(&self, path: &TreePath) -> bool {
        self.scope == Scope::Directory || self.files.get(path).is_some_and(|file| !file.context)
    }

    /// What exists at a path.
    pub(super) fn at(&self, path: &TreePath) -> Option<&LocalFile> {
        self.files.get(path).filter(|file| file.kind != LocalKind::Absent)
    }

    pub(super) fn on_conflict(&self, path: &TreePath) -> OnConflict {
        self.files.get(path).and_then(|file| file.on_conflict).unwrap_or(self.on_conflict)
    }

    pub(super) fn was_applied(&self, path: &TreePath) -> bool {
        self.files.get(path).is_some_and(|file| file.as_applied)
    }

    /// Whether a path is no directory, or one that holds nothing but these.
    pub(super) fn holds_only(&self, path: &TreePath, these: &BTreeSet<TreePath>) -> bool {
        self.held.get(path).is_none_or(|held| held.iter().all(|entry| these.contains(entry)))
    }

    /// Whether what exists at a path matches the facts, as far as the directory is concerned.
    pub(super) fn is_as(
        &self,
        path: &TreePath,
        facts: Option<&FileFacts>,
    ) -> Result<bool, PlanProblem> {
        let (Some(here), Some(facts)) = (self.at(path), facts) else {
            return Ok(self.at(path).is_none() && facts.is_none());
        };
        if !here.kind.is(facts.kind) {
            return Ok(false);
        }
        let needed = |what| PlanProblem::Needed { what, path: path.shown() };
        Ok(match facts.kind {
            FileKind::File if here.bytes.is_some_and(|bytes| bytes != facts.bytes) => false,
            FileKind::File => Some(here.digest.ok_or_else(|| needed("digest"))?) == facts.digest,
            FileKind::Symlink => {
                let target = here.target.as_deref().ok_or_else(|| needed("target"))?;
                Some(bytes_of(target, here.target_b64.as_deref())?) == facts.target_bytes()?
            }
            FileKind::Directory | FileKind::Fifo | FileKind::Socket | FileKind::Device => true,
        })
    }
}

/// Permissions as text, as in the rest of the API.
pub(super) mod octal {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub fn serialize<S: Serializer>(mode: &Option<u32>, to: S) -> Result<S::Ok, S::Error> {
        match mode {
            Some(mode) => to.serialize_str(&format!("{mode:04o}")),
            None => to.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
        let Some(text) = Option::<String>::deserialize(from)? else { return Ok(None) };
        let is_octal =
            (1..=5).contains(&text.len()) && text.bytes().all(|b| (b'0'..b'8').contains(&b));
        let mode = u32::from_str_radix(&text, 8).ok().filter(|_| is_octal);
        let wrong = || D::Error::custom("permissions are octal digits, such as \"0644\"");
        mode.map(|mode| Some(mode & 0o7777)).ok_or_else(wrong)
    }
}
