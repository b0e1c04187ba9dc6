//! A process: an exec without a timeout, whose end is kept, and that may serve a port.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Port;
use crate::limits;

/// The terms of a process, as given at its start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessTerms {
    /// The port that it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<Port>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// When a process counts as ready, and how long its starter waits for that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub probe: Probe,
    pub timeout_secs: u64,
}

/// The readiness condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// The port accepts a connection.
    Tcp,
    /// The port answers a GET of this path with a status below 400.
    Http { path: String },
    /// This command succeeds; no port is checked.
    Command { argv: Vec<String> },
}

/// A probe with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Tcp { port: Port },
    Http { port: Port, path: String },
    Command { argv: Vec<String> },
}

/// The start command of a template, run in every sandbox from its creation on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartUp {
    pub argv: Vec<String>,
    /// The sandbox is created when the process is ready.
    #[serde(default)]
    pub terms: ProcessTerms,
}

/// Invalid terms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTerms {
    #[error("ready needs a port to look at")]
    NoPort,
    #[error("{0:?} is not a path: it begins with / and has no spaces or control characters")]
    Path(String),
    #[error("{0} is not from 1 to {max}", max = limits::PROCESS_READY_MAX.as_secs())]
    Timeout(u64),
}

impl InvalidTerms {
    /// The invalid field.
    pub fn field(&self) -> &'static str {
        match self {
            Self::NoPort => "port",
            Self::Path(_) => "ready.http_path",
            Self::Timeout(_) => "ready.timeout_secs",
        }
    }
}

impl ProcessTerms {
    pub fn check(&self) -> Result<(), InvalidTerms> {
        let Some(Ready { probe, timeout_secs }) = &self.ready else { return Ok(()) };
        if self.port.is_none() && !matches!(probe, Probe::Command { .. }) {
            return Err(InvalidTerms::NoPort);
        }
        if let Probe::Http { path } = probe
            && !(path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(InvalidTerms::Path(path.clone()));
        }
        if (1..=limits::PROCESS_READY_MAX.as_secs()).contains(timeout_secs) {
            Ok(())
        } else {
            Err(InvalidTerms::Timeout(*timeout_secs))
        }
    }

    /// Its readiness probe; `None` if it is ready at once.
    pub fn probe(&self) -> Option<Asked> {
        let probe = self.ready.as_ref().map_or(Probe::Tcp, |ready| ready.probe.clone());
        match (probe, self.port) {
            (Probe::Command { argv }, _) => Some(Asked::Command { argv }),
            (Probe::Tcp, Some(port)) => Some(Asked::Tcp { port }),
            (Probe::Http { path }, Some(port)) => Some(Asked::Http { port, path }),
            (Probe::Tcp | Probe::Http { .. }, None) => None,
        }
    }

    /// How long the starter waits.
    pub fn patience(&self) -> Duration {
        self.ready.as_ref().map_or(Duration::ZERO, |ready| Duration::from_secs(ready.timeout_secs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_cannot_hold_are_refused_by_their_field() {
        let http = |path: &str| Probe::Http { path: path.to_owned() };
        let terms = |port: Option<u16>, probe: Probe, timeout_secs: u64| ProcessTerms {
            port: port.and_then(Port::new),
            ready: Some(Ready { probe, timeout_secs }),
        };
        assert_eq!(terms(Some(80), http("/health?x=1"), 30).check(), Ok(()));
        for (wrong, field) in [
            (terms(None, Probe::Tcp, 30), "port"),
            (terms(Some(80), http("health"), 30), "ready.http_path"),
            (terms(Some(80), http("/a HTTP/1.1\r\nx: y"), 30), "ready.http_path"),
            (terms(Some(80), Probe::Tcp, 0), "ready.timeout_secs"),
            (terms(Some(80), Probe::Tcp, 100_000), "ready.timeout_secs"),
        ] {
            assert_eq!(wrong.check().expect_err("it is wrong").field(), field);
        }
    }
}
