//! Every error of a request to a daemon.

use std::path::PathBuf;

use sandkeep_core::SandboxId;
use sandkeep_core::api::Problem;

use crate::prefix::PREFIX_MIN_LEN;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon answered with a problem.
    #[error("{}", .0.detail)]
    Refused(Box<Problem>),
    #[error("no daemon answers at {url}")]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// The connection broke after the request was sent.
    #[error(
        "lost the connection to the daemon at {url}; the command continues in the sandbox if it had started"
    )]
    WentAway { url: String },
    /// An answer ended prematurely.
    #[error("the answer from {url} was cut off")]
    BrokeOff {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    /// The daemon ended the stream of an exec that continues.
    #[error("the daemon ended the stream ({reason}); the command continues in the sandbox")]
    Detached { reason: String },
    #[error("the server at {url} is not sandkeep: {what}")]
    NotSandkeep { url: String, what: String },
    #[error("{url:?} is not an http or https URL")]
    InvalidUrl { url: String },
    #[error("{variable} is not a valid API key")]
    InvalidKey { variable: &'static str },
    #[error("{}: {problem}", file.display())]
    Certificates { file: PathBuf, problem: String },
    #[error(
        "{text:?} is not a name, an id, or a prefix of an id with at least {PREFIX_MIN_LEN} characters"
    )]
    NotAnId { text: String },
    #[error("no sandbox has the name {prefix:?} or an id that begins with it")]
    NoMatch { prefix: String },
    #[error("{} sandbox ids begin with {prefix:?}: {}", matches.len(), matches.join(", "))]
    Ambiguous { prefix: String, matches: Vec<String> },
    #[error("no {kind} id of {sandbox} begins with {prefix:?}")]
    NoMatchInside { kind: &'static str, sandbox: SandboxId, prefix: String },
    #[error("{} {kind} ids begin with {prefix:?}: {}", matches.len(), matches.join(", "))]
    AmbiguousInside { kind: &'static str, prefix: String, matches: Vec<String> },
}

impl Error {
    /// The stable code of a refusal; `docs/reference/errors.md` lists them.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(problem) => Some(&problem.code),
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(problem) => problem.retryable,
            Self::Unreachable { .. } | Self::BrokeOff { .. } => true,
            _ => false,
        }
    }
}
