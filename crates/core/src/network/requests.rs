//! Rules for the requests to a host. A host with such rules is terminated: the daemon reads its requests.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::limits;

/// Which requests may be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    pub methods: Methods,
    /// Globs on the decoded, normalized path: `*` is a part of one segment, `**` is any number of segments. Empty: every
    /// path.
    pub paths: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Methods {
    /// GET, HEAD and OPTIONS.
    ReadOnly,
    /// Also POST, PUT and PATCH.
    ReadWrite,
    /// Every method.
    Full,
    /// These, in upper case.
    Only(Vec<String>),
}

/// The methods of `read-only`, and what `read-write` adds.
const READ: [&str; 3] = ["GET", "HEAD", "OPTIONS"];
const WRITE: [&str; 3] = ["POST", "PUT", "PATCH"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
#[schema(as = NetworkAccess)]
pub(super) enum Access {
    /// GET, HEAD and OPTIONS.
    ReadOnly,
    /// Also POST, PUT and PATCH.
    ReadWrite,
    /// Every method.
    Full,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRequests {
    #[error("give access or methods, not both")]
    Both,
    #[error("{0} is empty; leave it out to allow all")]
    Empty(&'static str),
    #[error("more than {max} {what}", max = .1, what = .0)]
    TooMany(&'static str, usize),
    #[error("{0:?} is not an HTTP method")]
    Method(String),
    #[error("path {path:?}: {problem}")]
    Path { path: String, problem: &'static str },
}

/// As it is written.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub(super) struct RequestsDraft {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) access: Option<Access>,
    /// In place of `access`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) methods: Option<Vec<String>>,
    /// Globs on the decoded path: `/repos/**`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) paths: Option<Vec<String>>,
}

impl RequestsDraft {
    /// `None` if it restricts nothing, because it says nothing.
    pub(super) fn check(self) -> Result<Option<Requests>, InvalidRequests> {
        let methods = match (self.access, self.methods) {
            (None, None) if self.paths.is_none() => return Ok(None),
            (Some(_), Some(_)) => return Err(InvalidRequests::Both),
            (Some(Access::ReadOnly), None) => Methods::ReadOnly,
            (Some(Access::ReadWrite), None) => Methods::ReadWrite,
            (Some(Access::Full), None) | (None, None) => Methods::Full,
            (None, Some(methods)) => Methods::Only(check_methods(methods)?),
        };
        let paths = self.paths.map(check_paths).transpose()?.unwrap_or_default();
        Ok(Some(Requests { methods, paths }))
    }
}

impl From<&Requests> for RequestsDraft {
    fn from(requests: &Requests) -> Self {
        let (access, methods) = match &requests.methods {
            Methods::ReadOnly => (Some(Access::ReadOnly), None),
            Methods::ReadWrite => (Some(Access::ReadWrite), None),
            Methods::Full => (Some(Access::Full), None),
            Methods::Only(methods) => (None, Some(methods.clone())),
        };
        let paths = Some(requests.paths.clone()).filter(|paths| !paths.is_empty());
        Self { access, methods, paths }
    }
}

fn check_methods(methods: Vec<String>) -> Result<Vec<String>, InvalidRequests> {
    if methods.is_empty() {
        return Err(InvalidRequests::Empty("methods"));
    }
    if methods.len() > limits::NETWORK_METHODS_MAX {
        return Err(InvalidRequests::TooMany("methods", limits::NETWORK_METHODS_MAX));
    }
    let checked = methods.into_iter().map(|method| {
        let is_token = (1..=limits::NETWORK_METHOD_MAX_BYTES).contains(&method.len())
            && method.chars().all(|c| c.is_ascii_alphabetic() || c == '-');
        if is_token {
            Ok(method.to_ascii_uppercase())
        } else {
            Err(InvalidRequests::Method(method.chars().take(64).collect()))
        }
    });
    checked.collect()
}

fn check_paths(paths: Vec<String>) -> Result<Vec<String>, InvalidRequests> {
    if paths.is_empty() {
        return Err(InvalidRequests::Empty("paths"));
    }
    if paths.len() > limits::NETWORK_PATHS_MAX {
        return Err(InvalidRequests::TooMany("paths", limits::NETWORK_PATHS_MAX));
    }
    for path in &paths {
        if let Some(problem) = path_problem(path) {
            let path = path.chars().take(limits::NETWORK_ENTRY_MAX_BYTES).collect();
            return Err(InvalidRequests::Path { path, problem });
        }
    }
    Ok(paths)
}

fn path_problem(path: &str) -> Option<&'static str> {
    if path.len() > limits::NETWORK_PATH_MAX_BYTES {
        return Some("it is too long");
    }
    let Some(rest) = path.strip_prefix('/') else { return Some("it does not begin with /") };
    if path.contains(['?', '#']) {
        return Some("a query is not a part of the path");
    }
    if path.contains(['%', '\\', ';']) || path.chars().any(char::is_control) {
        return Some("write the decoded path, without %, \\ and ;");
    }
    let mut segments = rest.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "" if !is_last => return Some("it has an empty segment"),
            "." | ".." => return Some("it has a segment . or .."),
            "**" | "" => {}
            _ if segment.contains("**") => return Some("** is a whole segment"),
            _ => {}
        }
    }
    None
}

impl Methods {
    pub fn allows(&self, method: &str) -> bool {
        match self {
            Self::ReadOnly => READ.contains(&method),
            Self::ReadWrite => READ.contains(&method) || WRITE.contains(&method),
            Self::Full => true,
            Self::Only(methods) => methods.iter().any(|allowed| allowed == method),
        }
    }

    /// Whether it allows every method that the other allows.
    pub(super) fn covers(&self, other: &Self) -> bool {
        match other {
            Self::Full => matches!(self, Self::Full),
            Self::ReadOnly => READ.iter().all(|method| self.allows(method)),
            Self::ReadWrite => READ.iter().chain(&WRITE).all(|method| self.allows(method)),
            Self::Only(methods) => methods.iter().all(|method| self.allows(method)),
        }
    }
}

impl Requests {
    /// Whether it allows every request that the other allows. Two globs are compared as text, except that one which
    /// ends in `/**` covers everything below its prefix; so it may say no where a closer look would say yes.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let covered = |path: &String| self.paths.iter().any(|wider| glob_covers(wider, path));
        let paths =
            self.paths.is_empty() || (!other.paths.is_empty() && other.paths.iter().all(covered));
        paths && self.methods.covers(&other.methods)
    }
}

fn glob_covers(wider: &str, path: &str) -> bool {
    let below = wider.strip_suffix("/**").filter(|prefix| !prefix.contains('*'));
    wider == path
        || below.is_some_and(|prefix| {
            path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
        })
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.methods {
            Methods::ReadOnly => f.write_str("read-only")?,
            Methods::ReadWrite => f.write_str("read-write")?,
            Methods::Full => f.write_str("full")?,
            Methods::Only(methods) => f.write_str(&methods.join(" "))?,
        }
        if self.paths.is_empty() { Ok(()) } else { write!(f, ": {}", self.paths.join(" ")) }
    }
}
