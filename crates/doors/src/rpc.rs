//! What the protocols of remote procedure calls have in common: codes of errors, and deadlines of calls.

mod code;

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use crate::kit::Refusal;

pub use code::Code;

/// When a call is to be over, if its client said so.
#[derive(Clone, Copy, Debug, Default)]
pub struct Deadline(Option<(Duration, Instant)>);

impl Deadline {
    pub fn none() -> Self {
        Self(None)
    }

    /// From now on.
    pub fn after(time: Duration) -> Self {
        // A time that is over no clock's end comes from nobody who waits for it.
        Self(Instant::now().checked_add(time).map(|at| (time, at)))
    }

    /// How long the call may take in all.
    #[cfg(test)]
    pub fn time(self) -> Option<Duration> {
        self.0.map(|(time, _)| time)
    }

    /// Gives the work up when its time is over.
    pub async fn within<T>(self, work: impl Future<Output = T>) -> Result<T, Refusal> {
        let Some((after, at)) = self.0 else { return Ok(work.await) };
        let done = tokio::time::timeout_at(at, work).await;
        done.map_err(|_elapsed| Refusal::DeadlineExceeded { after })
    }

    /// Leaves the deadline with the request, and holds the call to it until its answer begins. A stream goes on after
    /// that: its handler takes the deadline from the request.
    pub async fn keep(self, mut request: Request, next: Next) -> Response {
        request.extensions_mut().insert(self);
        match self.within(next.run(request)).await {
            Ok(answer) => answer,
            Err(refusal) => refusal.into_response(),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Deadline {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Self::Rejection> {
        Ok(parts.extensions.get().copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_given_up_at_its_deadline() {
        let given_up = Deadline::after(Duration::ZERO).within(std::future::pending::<()>()).await;
        assert!(matches!(given_up, Err(Refusal::DeadlineExceeded { .. })));
        assert!(matches!(Deadline::none().within(async { 1 }).await, Ok(1)));
        assert!(Deadline::after(Duration::MAX).time().is_none(), "no clock reaches that");
    }
}
