//! Streams, through JetStream's API itself: the client library cannot read the answers of older servers.

use async_nats::{Client, RequestError};
use serde::{Deserialize, Serialize};

use sandkeep_core::limits;

/// A stream that events are published to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    pub name: String,
    /// What it takes, if it is created.
    pub subjects: Vec<String>,
    pub max_bytes: u64,
    pub missing: WhenMissing,
}

/// What happens if there is no such stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    Create,
    Wait,
}

#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("JetStream does not answer; it may be off on the server, or forbidden to this user")]
    NoAnswer(#[source] RequestError),
    #[error("JetStream refused: {description} ({code})")]
    Refused { code: u64, description: String },
    #[error("the answer of JetStream cannot be read")]
    Unreadable(#[source] serde_json::Error),
}

/// No stream has this name.
const NOT_FOUND: u64 = 10_059;
/// There is one, with another configuration: somebody else was faster.
const NAME_IN_USE: u64 = 10_058;
/// The message is larger than the stream takes.
const MESSAGE_TOO_LARGE: u64 = 10_054;

/// What every answer of JetStream can have.
#[derive(Debug, Deserialize)]
pub struct Answer {
    pub error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
pub struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    pub description: String,
}

impl Refusal {
    /// Whether it would be the same at every attempt.
    pub fn is_for_good(&self) -> bool {
        self.err_code == MESSAGE_TOO_LARGE
    }
}

#[derive(Serialize)]
struct Config<'a> {
    name: &'a str,
    subjects: &'a [String],
    retention: &'static str,
    storage: &'static str,
    discard: &'static str,
    max_bytes: u64,
    duplicate_window: u128,
    num_replicas: u8,
}

impl Stream {
    /// Makes sure that it exists. One that exists is left as it is.
    pub async fn ensure(&self, client: &Client) -> Result<(), StreamError> {
        // To publish needs fewer permissions than to ask, and tells as well whether there is one.
        if self.missing == WhenMissing::Wait {
            return Ok(());
        }
        match ask(client, format!("$JS.API.STREAM.INFO.{}", self.name), Vec::new()).await {
            Err(StreamError::Refused { code: NOT_FOUND, .. }) => {}
            other => return other,
        }
        let config = Config {
            name: &self.name,
            subjects: &self.subjects,
            retention: "limits",
            storage: "file",
            discard: "old",
            max_bytes: self.max_bytes,
            duplicate_window: limits::NATS_DUPLICATES.as_nanos(),
            num_replicas: 1,
        };
        let config = serde_json::to_vec(&config).expect("it holds strings and numbers");
        match ask(client, format!("$JS.API.STREAM.CREATE.{}", self.name), config).await {
            Err(StreamError::Refused { code: NAME_IN_USE, .. }) => Ok(()),
            Ok(()) => {
                tracing::info!(stream = %self.name, "created the stream for events");
                Ok(())
            }
            other => other,
        }
    }
}

async fn ask(client: &Client, subject: String, body: Vec<u8>) -> Result<(), StreamError> {
    let answer = client.request(subject, body.into()).await.map_err(StreamError::NoAnswer)?;
    let answer: Answer =
        serde_json::from_slice(&answer.payload).map_err(StreamError::Unreadable)?;
    match answer.error {
        Some(Refusal { err_code: code, description }) => {
            Err(StreamError::Refused { code, description })
        }
        None => Ok(()),
    }
}
