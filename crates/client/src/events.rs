//! The events of a running exec.

use futures_util::{Stream, stream};
use reqwest::Response;
use sandkeep_core::api::ExecEvent;

use crate::{Client, Error, Lines};

/// The events of one exec, as they arrive.
pub struct ExecEvents(Lines);

impl ExecEvents {
    pub fn of(client: &Client, response: Response) -> Self {
        Self(Lines::of(client, response))
    }

    /// The next event. Must not be called after the last one.
    pub async fn next(&mut self) -> Result<ExecEvent, Error> {
        self.0.next().await
    }

    /// The same as a stream, which ends after the last event or the first error.
    pub fn into_stream(self) -> impl Stream<Item = Result<ExecEvent, Error>> {
        stream::try_unfold(Some(self), |events| async move {
            let Some(mut events) = events else { return Ok(None) };
            let event = events.next().await?;
            let rest = (!event.is_last()).then_some(events);
            Ok(Some((event, rest)))
        })
    }
}

impl Client {
    /// Parses an event from a separate message, as in a WebSocket.
    pub fn event(&self, text: &str) -> Result<ExecEvent, Error> {
        serde_json::from_str(text).map_err(|e| self.not_sandkeep(e))
    }
}
