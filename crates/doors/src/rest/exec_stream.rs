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

use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;

use super::execs::ending;
use super::output::{Carry, Piece};
use crate::kit::frames::Form;
use sandkeep_broker::{Detached, ExecWatch};
use sandkeep_core::{ExecId, api};
use sandkeep_guestlink::{ExecEnd, ExecEvent, Offsets, OutputStream, journal::Follow};

/// How a stream begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// With the id of an exec that has just begun.
    Announce,
    /// With what comes after these offsets.
    At(Offsets),
}

pub fn answer(watch: ExecWatch, form: Form, follow: Follow, opening: Opening) -> Response {
    match form {
        Form::Raw => form.response(stream::unfold((watch, follow), raw)),
        Form::Ndjson | Form::Sse => {
            let live = Live::new(watch, form, follow, opening);
            form.response(stream::unfold(live, Live::event))
        }
    }
}

/// The next bytes. What cannot be said in bytes, a gap or an end that is not the exec's, breaks the body
/// off, so that nobody takes it for whole.
async fn raw(
    (mut watch, follow): (ExecWatch, Follow),
) -> Option<(io::Result<Bytes>, (ExecWatch, Follow))> {
    let next = match watch.next(follow).await {
        Ok(Some(ExecEvent::Started)) => Ok(Bytes::new()),
        Ok(Some(ExecEvent::Output { data, .. })) => Ok(data),
        Ok(Some(ExecEvent::Gap { from, to, .. })) => {
            Err(io::Error::other(format!("bytes {from} to {to} are not kept")))
        }
        Ok(Some(ExecEvent::Ended(_)) | None) => return None,
        Err(detached) => Err(io::Error::other(detached)),
    };
    Some((next, (watch, follow)))
}

/// The last event of an exec that is over.
pub fn ended(exec_id: ExecId, end: &ExecEnd) -> api::ExecEvent {
    api::ExecEvent::Ended {
        status: end.outcome.status(),
        exec_id,
        ending: ending(end, end.dropped != Offsets::default()),
        stdout_bytes: end.written.stdout,
        stderr_bytes: end.written.stderr,
    }
}

/// The last event for a watcher that is cut off before the end.
pub fn detached(exec_id: ExecId, why: &Detached) -> api::ExecEvent {
    let reason = match why {
        Detached::ShuttingDown => "shutting_down",
        Detached::Removed => "removed",
        Detached::Unreadable(error) => {
            tracing::error!(exec = %exec_id, %error, "cannot read a journal");
            "journal_unreadable"
        }
    };
    api::ExecEvent::Detached { exec_id, reason: reason.into() }
}

/// An exec on its way to a client.
struct Live {
    watch: ExecWatch,
    form: Form,
    follow: Follow,
    carry: Carry,
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
        let (carry, ready) = (Carry::default(), VecDeque::new());
        Self { watch, form, follow, carry, told, ready, phase }
    }

    /// The next event, and what is left to say.
    async fn event(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            match self.phase {
                // The exec exists as soon as the broker has it, so its id is told at once: a client needs it
                // most when the command hangs before it says anything.
                Phase::Unannounced => {
                    self.phase = Phase::Announced;
                    let exec_id = self.watch.id().clone();
                    self.say(&api::ExecEvent::Started { exec_id });
                }
                Phase::Announced => {
                    let next = self.watch.next(self.follow).await;
                    self.take(next);
                }
                Phase::Over => return None,
            }
        }
    }

    fn take(&mut self, next: Result<Option<ExecEvent>, Detached>) {
        let exec_id = || self.watch.id().clone();
        let last = match next {
            Ok(Some(ExecEvent::Started)) => return,
            Ok(Some(ExecEvent::Output { stream, offset, data })) => {
                let piece = self.carry.push(stream, offset, data);
                return self.output(piece);
            }
            Ok(Some(ExecEvent::Gap { stream, from, to })) => {
                // What is held back of the stream belongs to nothing that follows.
                let rest = self.carry.finish(stream);
                self.output(rest);
                *offset_of(&mut self.told, stream) = to;
                return self.say(&api::ExecEvent::Gap { stream, from, to });
            }
            Ok(Some(ExecEvent::Ended(end))) => ended(exec_id(), &end),
            Ok(None) => api::ExecEvent::Running { exec_id: exec_id() },
            Err(why) => detached(exec_id(), &why),
        };
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let rest = self.carry.finish(stream);
            self.output(rest);
        }
        self.say(&last);
        self.phase = Phase::Over;
    }

    fn output(&mut self, piece: Option<Piece>) {
        let Some(piece) = piece else { return };
        *offset_of(&mut self.told, piece.stream) = piece.end();
        self.say(&piece.into());
    }

    fn say(&mut self, event: &api::ExecEvent) {
        let Offsets { stdout, stderr } = self.told;
        let place = Some(format_args!("{stdout}-{stderr}"));
        self.ready.push_back(self.form.frame(event.name(), place, event));
    }
}

fn offset_of(offsets: &mut Offsets, stream: OutputStream) -> &mut u64 {
    match stream {
        OutputStream::Stdout => &mut offsets.stdout,
        OutputStream::Stderr => &mut offsets.stderr,
    }
}
