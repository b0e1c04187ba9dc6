//! Every error of the CLI, each with what to do about it, on one line.

use std::io;
use std::net::SocketAddr;

use crate::cli::exit::Exit;
use crate::cli::spec_args::in_options;
use crate::cli::tool_config::ToolConfig;
use crate::cli::words;
use crate::config::ConfigError;
use sandkeep_broker::error::Error;
use sandkeep_client::Error as Api;
use sandkeep_core::with_causes;
use sandkeep_store::{SqliteError, StoreError};
use serde_json::{Value, json};

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// From a broker in this process: `serve` and `run`.
    #[error(transparent)]
    Broker(#[from] Error),
    /// From a remote daemon.
    #[error(transparent)]
    Api(#[from] sandkeep_client::Error),
    /// `cp`: an error of a local file, or of an archive that would be unsafe.
    #[error(transparent)]
    File(#[from] toolbox::Failure),
    /// `cp`: files of a sandbox that would run commands here.
    #[error(transparent)]
    ToolConfig(#[from] ToolConfig),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("{address} is not a loopback address, and no credentials are required yet")]
    NotLoopback { address: SocketAddr },
    #[error("{problem}")]
    Usage { problem: String },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("stdin is larger than {max_bytes} bytes")]
    TooMuchStdin { max_bytes: usize },
    /// The user did not confirm.
    #[error("nothing was destroyed")]
    Declined,
    #[error("interrupted")]
    Interrupted,
    /// Some of several; each was reported when it happened.
    #[error("{failed} of {all} failed")]
    Some { failed: usize, all: usize },
    /// `bench` or `doctor` failed with an error of its own.
    #[error(transparent)]
    Tool(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system refused something.
    #[error("cannot {what}")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl Failure {
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// The reader of our output is gone, as in `sandkeep ls | head -1`: not an error.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::System { source, .. } if source.kind() == io::ErrorKind::BrokenPipe)
    }

    /// The failure and what to do about it, in one line.
    pub fn line(&self) -> String {
        let detail = self.detail();
        // The option's requirements are already named; the API's advice is about fields.
        let names_an_option = detail.starts_with("--");
        match self.remedy().filter(|remedy| !names_an_option && !remedy.is_empty()) {
            Some(remedy) => format!("{detail}; {remedy}"),
            None => detail,
        }
    }

    fn detail(&self) -> String {
        match self {
            // An HTTP client error's chain repeats `error sending request` three times.
            Self::Api(Api::Unreachable { source, .. } | Api::BrokeOff { source, .. }) => {
                format!("{self}: {}", first_cause(source))
            }
            Self::Api(Api::Refused(_)) | Self::Broker(_) => {
                in_options(&with_causes(self)).replace("give command or argv", "give one after --")
            }
            _ => with_causes(self),
        }
    }

    /// The same for a program.
    pub fn json(&self, exit: Exit) -> Value {
        let (code, retryable) = match self {
            Self::Api(Api::Refused(problem)) => (problem.code.as_str(), problem.retryable),
            Self::Broker(error) => (error.code().as_str(), error.code().retryable()),
            Self::Api(Api::Unreachable { .. }) => ("daemon_unreachable", true),
            Self::Api(_) => ("request_failed", false),
            Self::Usage { .. } | Self::Config(_) => ("usage", false),
            _ => ("failed", false),
        };
        json!({
            "code": code, "detail": self.detail(), "remediation": self.remedy(), "retryable": retryable,
            "exit_code": exit.code(),
        })
    }

    fn remedy(&self) -> Option<String> {
        match self {
            Self::Broker(error) if advises(error) => None,
            Self::Broker(error) => Some(words::remedy(error.code().as_str(), &error.remedy())),
            Self::Api(error) => remedy_of_api(error),
            Self::Listen { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("stop the process that uses the port, or choose another with --listen".to_owned())
            }
            Self::Listen { .. } => Some("choose another address with --listen".to_owned()),
            Self::NotLoopback { .. } => Some(
                "create a key first with `sandkeep keys create`, configure an OIDC issuer, or listen on 127.0.0.1"
                    .to_owned(),
            ),
            Self::TooMuchStdin { .. } => {
                Some("omit --json and -d to stream stdin".to_owned())
            }
            Self::Config(ConfigError::Unreadable { .. }) => {
                Some("name another file with --config or SANDKEEP_CONFIG".to_owned())
            }
            Self::Config(ConfigError::Invalid(_))
            | Self::Usage { .. }
            | Self::File(_)
            | Self::ToolConfig(_)
            | Self::Declined
            | Self::Interrupted
            | Self::Some { .. }
            | Self::Tool(_)
            | Self::System { .. } => None,
        }
    }
}

fn remedy_of_api(error: &Api) -> Option<String> {
    let remedy = match error {
        Api::Refused(problem) => return Some(words::remedy(&problem.code, &problem.remediation)),
        Api::Unreachable { source, .. } if !source.is_connect() => "check --url",
        Api::Unreachable { url, .. } if url.starts_with("https:") => {
            "check --url, and --ca-file if the certificate is self-signed"
        }
        Api::Unreachable { .. } => "start one with `sandkeep serve`, or set its address with --url",
        Api::BrokeOff { .. } => {
            "try again: the file may have changed, or the sandbox may have ended"
        }
        Api::Detached { .. } | Api::WentAway { .. } => {
            "when the daemon is back, find the exec with `sandkeep ps` and follow it with `sandkeep logs -f`"
        }
        Api::NotSandkeep { .. } => "check --url",
        Api::NoMatch { .. } => "`sandkeep ls` lists all sandboxes",
        Api::Ambiguous { .. } => "give more of the id",
        Api::InvalidUrl { .. }
        | Api::InvalidKey { .. }
        | Api::Certificates { .. }
        | Api::NotAnId { .. }
        | Api::NoMatchInside { .. }
        | Api::AmbiguousInside { .. } => return None,
    };
    Some(remedy.to_owned())
}

/// The root cause: the last one of the chain.
fn first_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// Whether an error's own text says what to do, as for a registry that cannot be used.
fn advises(error: &Error) -> bool {
    let Error::Store(StoreError::Unavailable(cause)) = error else { return false };
    cause.downcast_ref::<SqliteError>().is_some_and(SqliteError::advises)
}
