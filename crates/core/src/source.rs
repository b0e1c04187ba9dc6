//! Workspaces: files on top of a new sandbox's template, present before its first command. A workspace is transferred
//! once, when the sandbox is created; nothing is ever written back.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::id::UploadId;
use super::spec::InvalidSpec;
use crate::limits;

/// The home of `user`, which contains every workspace.
pub const HOME: &str = "/home/user";

/// The default name of a workspace.
const UNNAMED: &str = "workspace";

/// Which paths of the host a caller may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostPaths {
    /// Every path that the daemon's own user can read.
    Any,
    /// Paths that the operator has opened for all.
    #[default]
    BeneathRoots,
}

/// A requested workspace: exactly one of `dir`, `git` and `upload`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateSource)]
pub struct SourceDraft {
    /// A directory of the daemon's host, which is copied; absolute, and allowed only for the daemon's own user or below
    /// its `source_roots`. Special files and mounts in it are left out.
    pub dir: Option<String>,
    /// A git repository, `https://…` or `file:///…`, which is cloned inside the sandbox; after `#` a branch, a tag or a
    /// commit. For `file:` the rules of `dir` apply. The host of `https:` needs no entry in `network`: it can be reached
    /// for as long as the clone takes, unless `network.deny` has it.
    #[schema(value_type = Option<String>, example = "file:///srv/git/tools.git#main")]
    pub git: Option<GitUrl>,
    /// An archive that was uploaded to `/api/v1/uploads`.
    pub upload: Option<UploadId>,
    /// Its path: `/home/user/…`, or relative to that. Default: the name of the source, or `workspace` for an upload.
    #[schema(max_length = 1024)]
    pub path: Option<String>,
    /// Set by the door that authenticated the caller, never by the caller.
    #[serde(skip)]
    pub reach: HostPaths,
}

/// A validated workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = Source)]
pub struct Source {
    #[serde(flatten)]
    pub origin: Origin,
    /// Its path in the sandbox.
    pub path: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = SourceOrigin)]
pub enum Origin {
    Dir(String),
    #[schema(value_type = String)]
    Git(GitUrl),
    Upload(UploadId),
}

impl SourceDraft {
    /// The one source that is given.
    pub fn origin(&self) -> Result<Origin, InvalidSpec> {
        let mut given = [
            self.dir.clone().map(Origin::Dir),
            self.git.clone().map(Origin::Git),
            self.upload.clone().map(Origin::Upload),
        ]
        .into_iter()
        .flatten();
        let (Some(origin), None) = (given.next(), given.next()) else {
            return Err(wrong("source", "give one of dir, git and upload"));
        };
        Ok(origin)
    }

    /// Whether it is well-formed. The broker checks whether the source exists.
    pub(super) fn check(&self) -> Result<Source, InvalidSpec> {
        let origin = self.origin()?;
        let path = match &self.path {
            Some(path) => destination(path)?,
            None => match origin.name() {
                Some(name) => destination(name)?,
                None => return Err(wrong("source.path", "the source tells no name; say where")),
            },
        };
        if path == HOME && matches!(origin, Origin::Git(_)) {
            let problem = "a clone needs a directory of its own, such as /home/user/work";
            return Err(wrong("source.path", problem));
        }
        Ok(Source { origin, path })
    }
}

impl Origin {
    /// The source's own name.
    fn name(&self) -> Option<&str> {
        let name = match self {
            Self::Upload(_) => Some(UNNAMED),
            Self::Dir(path) => last_part(path),
            Self::Git(url) => {
                last_part(&url.url).map(|name| name.strip_suffix(".git").unwrap_or(name))
            }
        };
        name.filter(|name| !matches!(*name, "" | "." | ".."))
    }
}

fn last_part(path: &str) -> Option<&str> {
    path.trim_end_matches('/').rsplit('/').next()
}

/// A normalized path in the home of `user`.
fn destination(path: &str) -> Result<String, InvalidSpec> {
    let wrong = |problem: &str| wrong("source.path", problem);
    if path.len() > limits::SOURCE_PATH_MAX_BYTES {
        return Err(wrong(&format!("it is over {} bytes", limits::SOURCE_PATH_MAX_BYTES)));
    }
    let rest = match path.strip_prefix('/') {
        None => path,
        Some(_) => match path.strip_prefix(HOME) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
            Some(_) | None => return Err(wrong("it is not in /home/user")),
        },
    };
    let mut clean = HOME.to_owned();
    for part in rest.split('/').filter(|part| !part.is_empty()) {
        if matches!(part, "." | "..") || part.contains('\0') || part.len() > NAME_MAX_BYTES {
            return Err(wrong("a part of it is `.`, `..` or no name that a file can have"));
        }
        clean.push('/');
        clean.push_str(part);
    }
    Ok(clean)
}

/// Maximum length of a file name, as in the kernel.
const NAME_MAX_BYTES: usize = 255;

fn wrong(field: &'static str, problem: &str) -> InvalidSpec {
    InvalidSpec { field, problem: problem.to_owned() }
}

/// The address of a repository, and what to check out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GitUrl {
    url: String,
    reference: Option<String>,
}

/// How a repository is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Https,
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGitUrl {
    #[error("a repository is https://… or file:///…, with # before a branch, a tag or a commit")]
    Scheme,
    /// A key for it would have to enter the sandbox.
    #[error(
        "a clone over ssh needs a key inside; write https://…, or create the sandbox without it, allow host:22 and clone there"
    )]
    Ssh,
    #[error("it is over {} bytes", limits::SOURCE_URL_MAX_BYTES)]
    TooLong,
    #[error("it contains a space or a control character")]
    Character,
    /// Credentials in a URL would be visible to everybody who may see the sandbox.
    #[error("it contains a user or password, which would be visible; remove them")]
    Credentials,
    #[error("the part after # is not a valid branch, tag or commit")]
    Reference,
}

impl GitUrl {
    /// The URL without the reference to check out.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref()
    }

    pub fn transport(&self) -> Transport {
        if self.url.starts_with("https://") { Transport::Https } else { Transport::File }
    }
}

impl FromStr for GitUrl {
    type Err = InvalidGitUrl;

    fn from_str(text: &str) -> Result<Self, InvalidGitUrl> {
        if text.len() > limits::SOURCE_URL_MAX_BYTES {
            return Err(InvalidGitUrl::TooLong);
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(InvalidGitUrl::Character);
        }
        let (url, reference) = match text.split_once('#') {
            Some((url, reference)) => (url, Some(reference)),
            None => (text, None),
        };
        if url.starts_with("ssh://") {
            return Err(InvalidGitUrl::Ssh);
        }
        let https = url.strip_prefix("https://");
        let host = https.map(|rest| rest.split('/').next().unwrap_or_default());
        if host.is_some_and(|host| host.contains('@')) {
            return Err(InvalidGitUrl::Credentials);
        }
        if !(host.is_some_and(|host| !host.is_empty()) || url.starts_with("file:///")) {
            return Err(InvalidGitUrl::Scheme);
        }
        // Git would take it for an option.
        if reference.is_some_and(|text| text.is_empty() || text.starts_with('-')) {
            return Err(InvalidGitUrl::Reference);
        }
        Ok(Self { url: url.to_owned(), reference: reference.map(str::to_owned) })
    }
}

impl TryFrom<String> for GitUrl {
    type Error = InvalidGitUrl;

    fn try_from(text: String) -> Result<Self, InvalidGitUrl> {
        text.parse()
    }
}

impl From<GitUrl> for String {
    fn from(url: GitUrl) -> String {
        url.to_string()
    }
}

impl fmt::Display for GitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)?;
        match &self.reference {
            Some(reference) => write!(f, "#{reference}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(dir: &str, path: Option<&str>) -> Result<String, InvalidSpec> {
        let path = path.map(str::to_owned);
        let draft = SourceDraft { dir: Some(dir.to_owned()), path, ..SourceDraft::default() };
        draft.check().map(|source| source.path)
    }

    #[test]
    fn a_workspace_has_the_name_of_its_source_unless_somebody_says_otherwise() {
        for (source, path, expected) in [
            ("/srv/app", None, "/home/user/app"),
            ("/srv/app/", None, "/home/user/app"),
            ("/srv/app", Some("work"), "/home/user/work"),
            ("/srv/app", Some("/home/user/a/b/"), "/home/user/a/b"),
            ("/srv/app", Some("/home/user"), "/home/user"),
            ("/", Some("root"), "/home/user/root"),
        ] {
            assert_eq!(dir(source, path).as_deref(), Ok(expected), "{source} {path:?}");
        }
        for (url, name) in [
            ("file:///srv/tools.git", "tools"),
            ("file:///srv/tools/#v1", "tools"),
            ("https://host/a/b.git#main", "b"),
        ] {
            let git = Some(url.parse().expect(url));
            let source = SourceDraft { git, ..SourceDraft::default() }.check().expect(url);
            assert_eq!(source.path, format!("/home/user/{name}"));
        }
        let upload = SourceDraft { upload: Some(UploadId::random()), ..SourceDraft::default() };
        assert_eq!(upload.check().expect("valid").path, "/home/user/workspace");
    }

    #[test]
    fn nothing_is_brought_anywhere_but_home() {
        for path in ["/etc", "/home/user2", "/home/user/../x", "..", "a/../..", "a\0", "./a"] {
            assert_eq!(dir("/srv/app", Some(path)).expect_err(path).field, "source.path");
        }
        assert!(dir("/srv/app", Some(&"x".repeat(300))).is_err());
        assert!(dir("/", None).is_err(), "nothing to call it by");
        let git = Some("file:///srv/tools".parse().expect("a URL"));
        let home = SourceDraft { git, path: Some(HOME.to_owned()), ..SourceDraft::default() };
        assert!(home.check().is_err());
    }

    #[test]
    fn a_workspace_has_one_source() {
        let none = SourceDraft { path: Some("a".to_owned()), ..SourceDraft::default() };
        let both = SourceDraft {
            dir: Some("/srv".to_owned()),
            upload: Some(UploadId::random()),
            ..SourceDraft::default()
        };
        for draft in [none, both] {
            assert_eq!(draft.check().expect_err("not one").field, "source");
        }
    }

    #[test]
    fn a_repository_is_https_or_a_file_and_names_nobody() {
        for text in ["https://host/a.git", "file:///srv/a#v1.2", "https://host:8443/a#a/b"] {
            let url: GitUrl = text.parse().expect(text);
            assert_eq!(url.to_string(), text);
        }
        for text in [
            "",
            "http://host/a",
            "ssh://host/a",
            "git@host:a",
            "/srv/a",
            "file://host/a",
            "https://",
            "https:///a",
            "https://me:secret@host/a",
            "https://host/a b",
            "file:///srv/a#",
            "file:///srv/a#--upload-pack=x",
        ] {
            assert!(text.parse::<GitUrl>().is_err(), "{text:?} was accepted");
        }
    }

    #[test]
    fn a_source_is_stored_and_read_again() {
        let git = Some("file:///srv/a#v1".parse().expect("a URL"));
        let source = SourceDraft { git, ..SourceDraft::default() }.check().expect("valid");
        let json = serde_json::to_value(&source).expect("JSON");
        let expected = serde_json::json!({ "git": "file:///srv/a#v1", "path": "/home/user/a" });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<Source>(json).expect("reads"), source);
    }
}
