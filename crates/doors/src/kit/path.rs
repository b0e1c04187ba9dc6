//! Names in a path. A malformed name refers to nothing, so it is answered like any name that does not exist.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, RawPathParams};
use axum::http::request::Parts;

use super::refusal::Refusal;
use sandkeep_broker::ToolName;
use sandkeep_core::{
    ExecId, KeyId, Port, ProcessId, SandboxId, ShellId, SnapshotName, TemplateName, UploadId,
};

/// A type that a path segment can name.
pub trait Name: FromStr {
    /// The refusal for a text that is not such a name.
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
}

pub fn parse<T: Name>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| T::none(text.to_owned()))
}

/// The only name in a path; by default that of a sandbox.
pub struct Id<T = SandboxId>(pub T);

impl<T: Name, S: Send + Sync> FromRequestParts<S> for Id<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => parse(&text).map(Self),
            // The segment is not UTF-8 once decoded, so the raw path is used.
            Err(_) => parse(parts.uri.path()).map(Self),
        }
    }
}

/// A sandbox and an item in it; the path may continue after them.
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
