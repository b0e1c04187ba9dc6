//! Why an image could not be pulled.

use std::io;
use std::time::Duration;

use super::credentials::AuthFileError;
use sandkeep_core::limits::{REGISTRY_LAYER_MAX_BYTES, REGISTRY_REDIRECTS_MAX};
use sandkeep_outgoing::OutgoingError;
use sandkeep_tree::digest::{Digest, Mismatch};

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{0}")]
    Refused(#[source] OutgoingError),
    #[error("{host} sends us on to a place that is not called: {source}")]
    Redirect {
        host: String,
        #[source]
        source: OutgoingError,
    },
    #[error("{host} sends us on more than {REGISTRY_REDIRECTS_MAX} times")]
    Redirects { host: String },
    #[error("{host} asks us to log in at a place that is not called: {source}")]
    Realm {
        host: String,
        #[source]
        source: OutgoingError,
    },
    #[error(
        "{host} asks us to log in at {realm}: plain http is for the registry's own loopback host only"
    )]
    PlainRealm { host: String, realm: String },
    #[error("{host} does not answer: {problem}")]
    Unreachable { host: String, problem: String },
    #[error(
        "the certificate of {host} is not trusted; an administrator can name who vouches for it in \
         `registry_ca`: {problem}"
    )]
    Untrusted { host: String, problem: String },
    #[error("{host} answers with more than {max_bytes} bytes where that is the most")]
    TooLarge { host: String, max_bytes: usize },
    #[error("{host} gives out a token that cannot be read")]
    Token { host: String },
    #[error(
        "{host} does not let us have {image}: it is not there, or it is not for everybody; give a user \
         and password, or a token"
    )]
    NeedsCredentials { host: String, image: String },
    #[error("{host} does not let us have {image} with these credentials: {said}")]
    WrongCredentials { host: String, image: String, said: String },
    #[error("the credentials hold characters that cannot be sent")]
    UnusableCredentials,
    #[error(transparent)]
    AuthFile(#[from] AuthFileError),
    #[error("{host} has no {what}: {said}")]
    NotFound { host: String, what: String, said: String },
    #[error("{host} was asked too often; {}", try_again(retry_after))]
    TooManyRequests { host: String, retry_after: Option<Duration> },
    #[error("{host} answers {status}: {said}")]
    Status { host: String, status: u16, said: String },
    #[error("{host} sent something else than asked for: {mismatch}")]
    Mismatch {
        host: String,
        #[source]
        mismatch: Mismatch,
    },
    #[error(
        "layer {layer} of {size_bytes} bytes is over {REGISTRY_LAYER_MAX_BYTES}, which is the most"
    )]
    LayerTooLarge { layer: Digest, size_bytes: u64 },
    #[error(
        "the connection to {host} broke too often, the last time after {got_bytes} of {size_bytes} bytes of {blob}; pull again to go on from there: {problem}"
    )]
    Broken { host: String, blob: Digest, got_bytes: u64, size_bytes: u64, problem: String },
    #[error("cannot keep what is downloaded: {0}")]
    Spool(#[source] io::Error),
}

fn try_again(after: &Option<Duration>) -> String {
    match after {
        Some(after) => format!("try again in {} s", after.as_secs()),
        None => "try again later".to_owned(),
    }
}
