//! What an exec says while it runs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, stream};
use reqwest::Response;
use sandkeep_core::ExecId;
use sandkeep_core::api::{Ending, ExecStatus, OutputStream};
use serde::Deserialize;

use crate::{Client, Error, Lines};

/// One of the things that an exec says. The last one is `Running`, `Detached` or `Ended`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecEvent {
    Started {
        exec_id: ExecId,
    },
    /// Bytes of a stream, the first of them at this offset.
    Output {
        stream: OutputStream,
        offset: u64,
        data: Bytes,
    },
    /// These bytes of a stream are not kept.
    Gap {
        stream: OutputStream,
        from: u64,
        to: u64,
    },
    /// The exec goes on, and nobody asked to wait for it.
    Running,
    /// The daemon stops telling; the exec goes on.
    Detached {
        reason: String,
    },
    Ended {
        status: ExecStatus,
        ending: Ending,
    },
}

impl ExecEvent {
    fn is_last(&self) -> bool {
        matches!(self, Self::Running | Self::Detached { .. } | Self::Ended { .. })
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Wire {
    Started {
        exec_id: ExecId,
    },
    Stdout(Data),
    Stderr(Data),
    Gap {
        stream: OutputStream,
        from: u64,
        to: u64,
    },
    Running {},
    Detached {
        #[serde(default)]
        reason: String,
    },
    Exited(Ending),
    Signaled(Ending),
    TimedOut(Ending),
    Canceled(Ending),
    OomKilled(Ending),
    Lost(Ending),
}

/// Text as it is, anything else in base64.
#[derive(Deserialize)]
struct Data {
    offset: u64,
    data: Option<String>,
    data_b64: Option<String>,
}

impl Data {
    fn of(self, stream: OutputStream) -> Result<ExecEvent, base64::DecodeError> {
        let data = match (self.data, self.data_b64) {
            (Some(text), _) => text.into(),
            (None, text) => STANDARD.decode(text.unwrap_or_default())?.into(),
        };
        Ok(ExecEvent::Output { stream, offset: self.offset, data })
    }
}

impl TryFrom<Wire> for ExecEvent {
    type Error = base64::DecodeError;

    fn try_from(wire: Wire) -> Result<Self, Self::Error> {
        let ended = |status, ending| Self::Ended { status, ending };
        Ok(match wire {
            Wire::Started { exec_id } => Self::Started { exec_id },
            Wire::Stdout(data) => data.of(OutputStream::Stdout)?,
            Wire::Stderr(data) => data.of(OutputStream::Stderr)?,
            Wire::Gap { stream, from, to } => Self::Gap { stream, from, to },
            Wire::Running {} => Self::Running,
            Wire::Detached { reason } => Self::Detached { reason },
            Wire::Exited(ending) => ended(ExecStatus::Exited, ending),
            Wire::Signaled(ending) => ended(ExecStatus::Signaled, ending),
            Wire::TimedOut(ending) => ended(ExecStatus::TimedOut, ending),
            Wire::Canceled(ending) => ended(ExecStatus::Canceled, ending),
            Wire::OomKilled(ending) => ended(ExecStatus::OomKilled, ending),
            Wire::Lost(ending) => ended(ExecStatus::Lost, ending),
        })
    }
}

/// The events of one exec, as they come.
pub struct ExecEvents(Lines);

impl ExecEvents {
    pub fn of(client: &Client, response: Response) -> Self {
        Self(Lines::of(client, response))
    }

    /// The next event. After the last one there is none to wait for.
    pub async fn next(&mut self) -> Result<ExecEvent, Error> {
        let wire: Wire = self.0.next().await?;
        wire.try_into().map_err(|e: base64::DecodeError| self.0.client().not_sandkeep(e))
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
    /// Reads an event that came in a message of its own, as through a WebSocket.
    pub fn event(&self, text: &str) -> Result<ExecEvent, Error> {
        let wire: Wire = serde_json::from_str(text).map_err(|e| self.not_sandkeep(e))?;
        wire.try_into().map_err(|e: base64::DecodeError| self.not_sandkeep(e))
    }
}
