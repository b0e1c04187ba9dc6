//! Live output of an exec: NDJSON, Server-Sent Events, or plain bytes.
//!
//! ```text
//! started?   (stdout | stderr | gap)*   exited | signaled | timed_out | canceled | oom_killed | lost
//!                                       detached   the daemon shuts down, or the journal is gone
//!                                       running    following was not requested, and the exec is still running
//! ```
//!
//! The body is pulled: a slow client gets everything that the journal keeps, at its own pace, and affects neither the
//! command nor other clients. Exactly one event of the last column ends a stream; a stream that ends without one was
//! cut off.

use std::collections::VecDeque;
use std::io;

use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};

use super::execs::ending;
use super::output::{Carry, Piece};
use crate::kit::frames::Form;
use sandkeep_broker::{Detached, ExecWatch};
use sandkeep_core::{ExecId, api};
use sandkeep_guestlink::{ExecEnd, ExecEvent, Offsets, OutputStream, journal::Follow};

/// The first event of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// The id of an exec that has just started.
    Announce,
    /// Output from these offsets on.
    At(Offsets),
}

pub fn answer(watch: ExecWatch, form: Form, follow: Follow, opening: Opening) -> Response {
    match form {
        Form::Raw => form.response(stream::unfold((watch, follow), raw)),
        Form::Ndjson | Form::Sse => form.response(events(watch, form, follow, opening)),
    }
}

/// The events of an exec.
pub fn events(
    watch: ExecWatch,
    form: Form,
    follow: Follow,
    opening: Opening,
) -> impl Stream<Item = io::Result<Bytes>> {
    stream::unfold(LiveExec::new(watch, form, follow, opening), LiveExec::event)
}

/// The next bytes. Plain bytes cannot express a gap, or an end other than the exec's, so either breaks the body off and
/// the client cannot mistake it for complete.
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

/// The last event of an exec that has ended.
pub fn ended(exec_id: ExecId, end: &ExecEnd) -> api::ExecEvent {
    api::ExecEvent::Ended {
        status: end.outcome.status(),
        exec_id,
        ending: ending(end, end.dropped != Offsets::default()),
        stdout_bytes: end.written.stdout,
        stderr_bytes: end.written.stderr,
    }
}

/// The last event for a watcher that is detached before the exec ends.
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

/// An exec that is streamed to a client.
struct LiveExec {
    watch: ExecWatch,
    form: Form,
    follow: Follow,
    carry: Carry,
    /// How much the client has received; an SSE client that reconnects sends it.
    told: Offsets,
    /// Encoded events; more than one only around gaps and the end.
    ready: VecDeque<Bytes>,
    phase: Phase,
}

enum Phase {
    Unannounced,
    Announced,
    Over,
}

impl LiveExec {
    fn new(watch: ExecWatch, form: Form, follow: Follow, opening: Opening) -> Self {
        let (phase, told) = match opening {
            Opening::Announce => (Phase::Unannounced, Offsets::default()),
            Opening::At(offsets) => (Phase::Announced, offsets),
        };
        let (carry, ready) = (Carry::default(), VecDeque::new());
        Self { watch, form, follow, carry, told, ready, phase }
    }

    /// The next event, and the remaining state.
    async fn event(mut self) -> Option<(io::Result<Bytes>, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((Ok(event), self));
            }
            match self.phase {
                // The exec exists as soon as the broker has it, so its id is sent at once: a client needs it most if
                // the command hangs before it writes anything.
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
                // The incomplete character that was held back is not continued after this.
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
