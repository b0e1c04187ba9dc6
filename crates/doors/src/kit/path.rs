//! The names in a path. A text that is not a valid name is answered as not found, like any other unknown name.
//!
//! A sandbox is named by its id or by its name. This is the one place where a name of a request becomes an id.

use std::str::FromStr;

use axum::extract::{FromRef, FromRequestParts, Path, RawPathParams};
use axum::http::request::Parts;

use super::refusal::Refusal;
use sandkeep_broker::{Broker, ToolName, error::Error};
use sandkeep_core::{
    CodebaseRef, ExecId, KeyId, Port, Principal, ProcessId, SandboxId, ShellId, SnapshotName,
    TemplateName, UploadId, WebhookId,
};

/// A type that a path segment can name.
pub trait Name: FromStr {
    /// The refusal for a text that is not such a name.
    fn none(text: String) -> Refusal;

    /// What a text names for this principal; `None` is a caller that nobody knows.
    fn find(
        text: &str,
        _broker: &Broker,
        _who: Option<&Principal>,
    ) -> impl Future<Output = Result<Self, Refusal>> + Send
    where
        Self: Send,
    {
        std::future::ready(parse(text))
    }
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

impl Name for SandboxId {
    fn none(text: String) -> Refusal {
        Refusal::NotAnId { text }
    }

    async fn find(text: &str, broker: &Broker, who: Option<&Principal>) -> Result<Self, Refusal> {
        match who {
            Some(who) => Ok(broker.resolve(who, text).await?),
            None => parse(text),
        }
    }
}

impl Name for CodebaseRef {
    fn none(text: String) -> Refusal {
        Refusal::from(Error::CodebaseNotFound { text })
    }
}

names! {
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
    RequestNumber => NotARequestNumber;
}

/// The number of a request of a sandbox to reach a destination.
pub struct RequestNumber(pub u64);

impl FromStr for RequestNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

pub fn parse<T: Name>(text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|_| T::none(text.to_owned()))
}

/// The only name in a path; by default that of a sandbox.
pub struct Id<T = SandboxId>(pub T);

impl<T, S> FromRequestParts<S> for Id<T>
where
    T: Name + Send,
    S: Send + Sync,
    Broker: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => found(&text, parts, state).await.map(Self),
            // It is not even text once decoded; then the path itself has to do.
            Err(_) => parse(parts.uri.path()).map(Self),
        }
    }
}

/// A sandbox and an item in it; the path may continue after them.
pub struct In<T>(pub SandboxId, pub T);

impl<T, S> FromRequestParts<S> for In<T>
where
    T: Name + Send,
    S: Send + Sync,
    Broker: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let params = RawPathParams::from_request_parts(parts, state).await;
        let params = params.map_err(|_| SandboxId::none(parts.uri.path().to_owned()))?;
        let mut values = params.iter().map(|(_, value)| value);
        let mut next = || values.next().unwrap_or_default();
        let (sandbox, inside) = (next(), next());
        Ok(Self(found(sandbox, parts, state).await?, parse(inside)?))
    }
}

async fn found<T: Name + Send, S>(text: &str, parts: &Parts, state: &S) -> Result<T, Refusal>
where
    Broker: FromRef<S>,
{
    T::find(text, &Broker::from_ref(state), parts.extensions.get::<Principal>()).await
}
