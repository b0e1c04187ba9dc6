//! A live exec as NDJSON: one JSON object per line, as things happen.
//!
//! ```text
//! started   (stdout | stderr)*   exited | signaled | timed_out | canceled | oom_killed | lost
//! ```
//!
//! The body is pulled: nothing is read from the command before the client has taken what came before,
//! so a slow client slows the command instead of filling the daemon's memory. A client who leaves
//! drops the body; the command goes on.

use std::collections::VecDeque;
use std::convert::Infallible;

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use super::execs::{self, Ending, NDJSON};
use super::output::{Carry, Encoded, Piece};
use crate::broker::Running;
use crate::guest::{ExecEnd, ExecEvent, OutputStream};
use crate::sandbox::ExecId;

pub fn answer(running: Running) -> Response {
    let lines = stream::unfold(Live::new(running), Live::line);
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(lines)).into_response()
}

#[derive(Serialize)]
struct Started<'a> {
    r#type: &'static str,
    exec_id: &'a ExecId,
}

#[derive(Serialize)]
struct Output {
    r#type: OutputStream,
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_b64: Option<String>,
}

#[derive(Serialize)]
struct Ended<'a> {
    r#type: &'static str,
    exec_id: &'a ExecId,
    #[serde(flatten)]
    ending: Ending,
}

/// A live exec on its way to a client.
struct Live {
    running: Running,
    stdout: Carry,
    stderr: Carry,
    /// Lines that are ready; more than one only around the end.
    ready: VecDeque<Bytes>,
    phase: Phase,
}

enum Phase {
    Unannounced,
    Announced,
    Over,
}

impl Live {
    fn new(running: Running) -> Self {
        Self {
            running,
            stdout: Carry::default(),
            stderr: Carry::default(),
            ready: VecDeque::new(),
            phase: Phase::Unannounced,
        }
    }

    /// The next line, and what is left to say.
    async fn line(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some((Ok(line), self));
            }
            match self.phase {
                Phase::Unannounced => self.announce(),
                Phase::Announced => match self.running.next().await {
                    Some(event) => self.take(event),
                    None => self.end(execs::lost()),
                },
                Phase::Over => return None,
            }
        }
    }

    /// The exec exists as soon as the broker has it, so its id is told at once: a client needs it
    /// most when the command hangs before it says anything.
    fn announce(&mut self) {
        self.phase = Phase::Announced;
        let started = Started { r#type: "started", exec_id: &self.running.id };
        self.ready.push_back(encode(&started));
    }

    fn take(&mut self, event: ExecEvent) {
        match event {
            ExecEvent::Started => {}
            ExecEvent::Output { stream, offset, data } => {
                let piece = self.carry(stream).push(offset, &data);
                self.output(stream, piece);
            }
            ExecEvent::Ended(end) => self.end(end),
        }
    }

    fn carry(&mut self, stream: OutputStream) -> &mut Carry {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    fn output(&mut self, stream: OutputStream, piece: Option<Piece>) {
        let Some(Piece { offset, data }) = piece else { return };
        let (data, data_b64) = match data {
            Encoded::Text(text) => (Some(text), None),
            Encoded::Base64(text) => (None, Some(text)),
        };
        self.ready.push_back(encode(&Output { r#type: stream, offset, data, data_b64 }));
    }

    fn end(&mut self, end: ExecEnd) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let rest = self.carry(stream).finish();
            self.output(stream, rest);
        }
        let r#type = execs::outcome_name(&end.outcome);
        // A live stream leaves nothing out: it waits for its client.
        let ending = Ending::new(end, false);
        let ended = Ended { r#type, exec_id: &self.running.id, ending };
        self.ready.push_back(encode(&ended));
        self.phase = Phase::Over;
    }
}

fn encode<T: Serialize>(event: &T) -> Bytes {
    let mut line = serde_json::to_vec(event).expect("events hold only strings and numbers");
    line.push(b'\n');
    line.into()
}
