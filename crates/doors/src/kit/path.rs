//! The names in a path. What is no name of its kind names nothing, so it is not found like any other.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, RawPathParams};
use axum::http::request::Parts;

use super::refusal::Refusal;
use sandkeep_broker::ToolName;
use sandkeep_core::{
    ExecId, KeyId, Port, ProcessId, SandboxId, ShellId, SnapshotName, TemplateName, UploadId,
    WebhookId,
};

/// Something that a path can name.
pub trait Name: FromStr {
    /// The answer to a text that names none of this kind.
    fn none(text: String) -> Refusal;
}

macro_rules! names {
    ($($name:ty => $refusal:ident;)*) => {$(
        impl Name for $name {
            fn none(text: String) -> Refusal {
                Refusal::$refusal { text }
            }
        }
    )*};
}

names! {
    SandboxId => NotAnId;
    ExecId => NotAnExecId;
    ProcessId => NotAProcessId;
    ShellId => NotAShellId;
    Port => NotAPort;
    KeyId => NotAKeyId;
    ToolName => NotATool;
    TemplateName => NotATemplateName;
    SnapshotName => NotASnapshotName;
    UploadId => NotAnUploadId;
    WebhookId => NotAWebhookId;
}

pub fn parse<T: Name>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| T::none(text.to_owned()))
}

/// The one name in a path; a sandbox's, unless it says otherwise.
pub struct Id<T = SandboxId>(pub T);

impl<T: Name, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => parse(&text).map(Self),
            // It is not even text once decoded; then the path itself has to do.
            Err(_) => parse(parts.uri.path()).map(Self),
        }
    }
}

/// A sandbox, and something in it, whatever follows in the path.
pub struct In<T>(pub SandboxId, pub T);

impl<T: Name, S: Send + Sync> FromRequestParts<S> for In<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| SandboxId::none(parts.uri.path().to_owned()))?;
        let mut values = params.iter().map(|(_, value)| value);
        let mut next = || values.next().unwrap_or_default();
        Ok(Self(parse(next())?, parse(next())?))
    }
}
