//! What an exec says, as it is said: NDJSON, Server-Sent Events, or the bytes themselves.
//!
//! ```text
//! started?   (stdout | stderr | gap)*   exited | signaled | timed_out | canceled | oom_killed | lost
//!                                       detached   the daemon shuts down, or the journal went away
//!                                       running    it was not to be followed, and has not ended
//! ```
//!
//! The body is pulled: a slow client gets all that the journal keeps, at its own pace, and neither the
//! command nor anybody else notices. The three last are the only ones that come once; a stream that ends
//! without one of them was cut.

use std::collections::VecDeque;
use std::io;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, stream};
use serde::Serialize;

use super::execs::ending_of;
use super::output::{Carry, Piece};
use sandkeep_broker::{ExecWatch, Told};
use sandkeep_core::{ExecId, api::Ending};
use sandkeep_guestlink::{
    Offsets, OutputStream,
    journal::{End, Follow, Seen},
};

pub const NDJSON: &str = "application/x-ndjson";
pub const SSE: &str = "text/event-stream";
pub const RAW: &str = "application/octet-stream";

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Ndjson,
    Sse,
    Raw,
}

impl Form {
    /// The first that a client names; `None` if it names none of ours.
    pub fn accepted(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges = values.flat_map(|value| value.split(','));
        ranges.find_map(|range| {
            let range = range.split(';').next()?.trim();
            [Self::Ndjson, Self::Sse, Self::Raw]
                .into_iter()
                .find(|form| range.eq_ignore_ascii_case(form.media_type()))
        })
    }

    /// How an answer is told as it comes about; `None` if only its end is. Several streams together are no stream
    /// of bytes.
    pub fn live(stream: bool, headers: &HeaderMap) -> Option<Self> {
        match Self::accepted(headers) {
            form @ Some(Self::Ndjson | Self::Sse) => form,
            Some(Self::Raw) | None => stream.then_some(Self::Ndjson),
        }
    }

    pub fn media_type(self) -> &'static str {
        match self {
            Self::Ndjson => NDJSON,
            Self::Sse => SSE,
            Self::Raw => RAW,
        }
    }
}

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// With the id of an exec that has just begun.
    Announce,
    /// With what comes after these offsets.
    At(Offsets),
}

pub fn answer(watch: ExecWatch, form: Form, follow: Follow, opening: Opening) -> Response {
    let headers = [(header::CONTENT_TYPE, form.media_type()), (header::CACHE_CONTROL, "no-store")];
    let body = match form {
        Form::Raw => Body::from_stream(stream::unfold((watch, follow), raw)),
        Form::Ndjson | Form::Sse => Body::from_stream(events(watch, form, follow, opening)),
    };
    (headers, body).into_response()
}

/// What there is to say of an exec, event by event.
pub fn events(
    watch: ExecWatch,
    form: Form,
    follow: Follow,
    opening: Opening,
) -> impl Stream<Item = io::Result<Bytes>> {
    stream::unfold(Live::new(watch, form, follow, opening), Live::event)
}

/// The next bytes. What cannot be said in bytes, a gap or an end that is not the exec's, breaks the body
/// off, so that nobody takes it for whole.
async fn raw(
    (mut watch, follow): (ExecWatch, Follow),
) -> Option<(io::Result<Bytes>, (ExecWatch, Follow))> {
    let broken = |what: String| Some(Err(io::Error::other(what)));
    let next = match watch.next(follow).await {
        Ok(Some(Told::Seen(Seen::Output { data, .. }))) => Some(Ok(data)),
        Ok(Some(Told::Seen(Seen::Gap { from, to, .. }))) => {
            broken(format!("bytes {from} to {to} are not kept"))
        }
        Ok(Some(Told::Detached)) => broken("the daemon shuts down".to_owned()),
        Ok(Some(Told::Seen(Seen::Ended(_))) | None) => None,
        Err(error) => Some(Err(error)),
    };
    next.map(|bytes| (bytes, (watch, follow)))
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

impl Output {
    fn of(stream: OutputStream, piece: Piece) -> Self {
        let (data, data_b64) = piece.data.fields();
        Self { r#type: stream, offset: piece.offset, data, data_b64 }
    }

    fn name(&self) -> &'static str {
        match self.r#type {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        }
    }
}

#[derive(Serialize)]
struct Gap {
    r#type: &'static str,
    stream: OutputStream,
    from: u64,
    to: u64,
}

#[derive(Serialize)]
struct Ended<'a> {
    r#type: &'static str,
    exec_id: &'a ExecId,
    #[serde(flatten)]
    ending: Ending,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

#[derive(Serialize)]
struct Last<'a> {
    r#type: &'static str,
    exec_id: &'a ExecId,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

fn json<T: Serialize>(event: &T) -> String {
    serde_json::to_string(event).expect("events hold only strings and numbers")
}

/// The event that says which exec it is.
pub fn started(exec_id: &ExecId) -> String {
    json(&Started { r#type: "started", exec_id })
}

/// The event for bytes that are not kept.
pub fn gap(stream: OutputStream, from: u64, to: u64) -> String {
    json(&Gap { r#type: "gap", stream, from, to })
}

/// The last event of an exec that is over.
pub fn ended(exec_id: &ExecId, end: &End) -> String {
    json(&Ended::new(exec_id, end))
}

/// The last event for a watcher who has to go before the end.
pub fn detached(exec_id: &ExecId, reason: &'static str) -> String {
    json(&Last { r#type: "detached", exec_id, reason: Some(reason) })
}

impl<'a> Ended<'a> {
    fn new(exec_id: &'a ExecId, end: &End) -> Self {
        Self {
            r#type: end.outcome.name(),
            exec_id,
            ending: ending_of(end),
            stdout_bytes: end.written.stdout,
            stderr_bytes: end.written.stderr,
        }
    }
}

/// An exec on its way to a client.
struct Live {
    watch: ExecWatch,
    form: Form,
    follow: Follow,
    stdout: Carry,
    stderr: Carry,
    /// How far the client is; an event source that comes again says so.
    told: Offsets,
    /// Events that are ready; more than one only around gaps and the end.
    ready: VecDeque<Bytes>,
    phase: Phase,
}

enum Phase {
    Unannounced,
    Announced,
    Over,
}

impl Live {
    fn new(watch: ExecWatch, form: Form, follow: Follow, opening: Opening) -> Self {
        let (phase, told) = match opening {
            Opening::Announce => (Phase::Unannounced, Offsets::default()),
            Opening::At(offsets) => (Phase::Announced, offsets),
        };
        Self {
            watch,
            form,
            follow,
            stdout: Carry::default(),
            stderr: Carry::default(),
            told,
            ready: VecDeque::new(),
            phase,
        }
    }

    /// The next event, and what is left to say.
    async fn event(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            match self.phase {
                Phase::Unannounced => self.announce(),
                Phase::Announced => match self.watch.next(self.follow).await {
                    Ok(Some(Told::Seen(seen))) => self.take(seen),
                    Ok(Some(Told::Detached)) => self.last("detached", Some("shutting_down")),
                    Ok(None) => self.last("running", None),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.last("detached", Some("removed"));
                    }
                    Err(error) => {
                        tracing::error!(exec = %self.watch.id(), %error, "cannot read a journal");
                        self.last("detached", Some("journal_unreadable"));
                    }
                },
                Phase::Over => return None,
            }
        }
    }

    /// The exec exists as soon as the broker has it, so its id is told at once: a client needs it
    /// most when the command hangs before it says anything.
    fn announce(&mut self) {
        self.phase = Phase::Announced;
        let id = self.watch.id().clone();
        self.say("started", &Started { r#type: "started", exec_id: &id });
    }

    fn take(&mut self, seen: Seen) {
        match seen {
            Seen::Output { stream, offset, data } => {
                let piece = self.carry(stream).push(offset, &data);
                self.output(stream, piece);
            }
            Seen::Gap { stream, from, to } => {
                self.finish(stream);
                *offset_of(&mut self.told, stream) = to;
                self.say("gap", &Gap { r#type: "gap", stream, from, to });
            }
            Seen::Ended(end) => self.end(&end),
        }
    }

    fn carry(&mut self, stream: OutputStream) -> &mut Carry {
        match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        }
    }

    /// Says what was held back of a stream, because nothing follows that it belongs to.
    fn finish(&mut self, stream: OutputStream) {
        let rest = self.carry(stream).finish();
        self.output(stream, rest);
    }

    fn output(&mut self, stream: OutputStream, piece: Option<Piece>) {
        let Some(piece) = piece else { return };
        *offset_of(&mut self.told, stream) = piece.offset + piece.len;
        let event = Output::of(stream, piece);
        self.say(event.name(), &event);
    }

    fn end(&mut self, end: &End) {
        self.finish(OutputStream::Stdout);
        self.finish(OutputStream::Stderr);
        let (name, id) = (end.outcome.name(), self.watch.id().clone());
        self.say(name, &Ended::new(&id, end));
        self.phase = Phase::Over;
    }

    /// The last event of a stream that ends before its exec.
    fn last(&mut self, name: &'static str, reason: Option<&'static str>) {
        self.finish(OutputStream::Stdout);
        self.finish(OutputStream::Stderr);
        let id = self.watch.id().clone();
        self.say(name, &Last { r#type: name, exec_id: &id, reason });
        self.phase = Phase::Over;
    }

    fn say<T: Serialize>(&mut self, name: &str, event: &T) {
        let Offsets { stdout, stderr } = self.told;
        let place = format!("{stdout}-{stderr}");
        self.ready.push_back(framed(self.form, name, Some(&place), event));
    }
}

/// An event as it is sent. `place` is where a client that comes again goes on.
pub fn framed<T: Serialize>(form: Form, name: &str, place: Option<&str>, event: &T) -> Bytes {
    let json = serde_json::to_vec(event).expect("events hold only strings, numbers and maps");
    let text = match form {
        Form::Sse => {
            let place = place.map(|place| format!("id: {place}\n")).unwrap_or_default();
            [format!("event: {name}\n{place}data: ").as_bytes(), &json, b"\n\n"].concat()
        }
        Form::Ndjson | Form::Raw => [&json[..], b"\n"].concat(),
    };
    text.into()
}

fn offset_of(offsets: &mut Offsets, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stdout => &mut offsets.stdout,
        OutputStream::Stderr => &mut offsets.stderr,
    }
}
