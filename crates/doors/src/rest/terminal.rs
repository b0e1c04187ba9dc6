//! Terminals over WebSocket: attach to an exec that has a terminal, or start one and attach in one call.
//!
//! ```text
//! client → bytes                                   keyboard input
//!        → {"type":"resize","rows":…,"cols":…}     {"type":"signal","signal":"TERM"}
//! server → {"type":"started","exec_id":…}
//!        → bytes                                   output of the command
//!        → {"type":"gap",…}                        bytes that the journal has not kept
//!        → one last event as in `exec_stream`, and the connection is closed
//! ```
//!
//! A broken connection does not affect the exec, unless requested otherwise: a client that attaches again, with an
//! offset, continues where it was.

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::Bytes;
use serde::Deserialize;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use utoipa::{IntoParams, ToSchema};

use super::exec_stream;
use super::openapi::{Guarded, Inside, Journaled, OfSandbox, Upgraded};
use crate::kit::Refusal;
use crate::kit::path::{Id, In};
use crate::kit::query::{QueryResult, query};
use crate::kit::who::{Who, require};
use sandkeep_broker::{Broker, Detached, ExecDraft, ExecLimits, ExecWatch, OnDisconnect};
use sandkeep_core::{
    ExecId, Principal, SandboxId, Scope, Signal,
    api::ExecEvent,
    limits::{
        EXEC_EVENTS_MAX, TERMINAL_GOODBYE, TERMINAL_MESSAGE_MAX_BYTES, TERMINAL_PING,
        TERMINAL_SILENCE_MAX,
    },
};
use sandkeep_guestlink::{
    self as guestlink, TerminalSize,
    journal::{Follow, Keep, StdinSource},
};

/// The default command: an interactive shell.
const SHELL: &str = "if [ -x /bin/bash ]; then exec /bin/bash; else exec /bin/sh; fi";

/// The traditional terminal size.
const ROWS: u16 = 24;
const COLS: u16 = 80;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TerminalSize)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

impl From<Size> for TerminalSize {
    fn from(Size { rows, cols }: Size) -> Self {
        Self { rows, cols }
    }
}

/// What happens to the exec if the client disconnects first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnDisconnect)]
pub enum WhenGone {
    #[default]
    Continue,
    Kill,
    /// The command continues; its stdin is closed, as at the end of a pipe.
    CloseStdin,
}

impl From<WhenGone> for OnDisconnect {
    fn from(when: WhenGone) -> Self {
        match when {
            WhenGone::Continue => Self::GoOn,
            WhenGone::Kill => Self::Kill,
            WhenGone::CloseStdin => Self::CloseStdin,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// The first byte to send; everything that is kept if left out.
    #[serde(default)]
    stdout_offset: u64,
    #[serde(default)]
    #[param(inline)]
    on_disconnect: WhenGone,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TerminalQuery {
    /// Run by `/bin/sh -c`; an interactive shell if left out.
    command: Option<String>,
    /// 24 by default.
    rows: Option<u16>,
    /// 80 by default.
    cols: Option<u16>,
    user: Option<String>,
    cwd: Option<String>,
    /// The terminal type, for `TERM`.
    term: Option<String>,
    #[serde(default)]
    #[param(inline)]
    on_disconnect: WhenGone,
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

/// Checks that a request can become a WebSocket and that the caller may write.
fn admitted(who: &Principal, upgrade: Upgrade) -> Result<WebSocketUpgrade, Refusal> {
    require(who, Scope::Write)?;
    let upgrade = upgrade.map_err(|e| Refusal::NotAWebSocket { problem: e.body_text() })?;
    Ok(upgrade
        .max_message_size(TERMINAL_MESSAGE_MAX_BYTES)
        .max_frame_size(TERMINAL_MESSAGE_MAX_BYTES))
}

/// Attach to the terminal of an exec, as a WebSocket
///
/// Binary messages are bytes, in both directions. The client may send `{"type":"resize","rows":…,"cols":…}` and
/// `{"type":"signal","signal":…}` as text; the last text message from the server says how the exec ended.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec_id}/attach", operation_id = "attach_exec", tag = "execs",
    params(("id" = SandboxId, Path), ("exec_id" = ExecId, Path), AttachQuery),
    responses((status = 101, description = "a WebSocket"), Guarded, OfSandbox, Inside, Upgraded)
)]
pub async fn attach(
    State(broker): State<Broker>,
    Who(who): Who,
    In(sandbox, exec): In<ExecId>,
    asked: QueryResult<AttachQuery>,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    let upgrade = admitted(&who, upgrade)?;
    let AttachQuery { stdout_offset, on_disconnect } = query(asked)?;
    let on_disconnect = on_disconnect.into();
    let watch = broker.attach_terminal(&who, &sandbox, &exec, stdout_offset, on_disconnect).await?;
    let session = Session { broker, who, sandbox, exec, watch };
    Ok(upgrade.on_upgrade(|socket| session.run(socket)))
}

/// Start a command in a terminal and attach to it, as a WebSocket
///
/// Like creating an exec with `terminal` and then attaching to it. The first text message from the server has the
/// exec's id.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/terminal", operation_id = "open_terminal", tag = "execs",
    params(("id" = SandboxId, Path), TerminalQuery),
    responses(
        (status = 101, description = "a WebSocket"), Guarded, OfSandbox, Inside, Journaled, Upgraded
    )
)]
pub async fn open(
    State(broker): State<Broker>,
    Who(who): Who,
    Id(sandbox): Id,
    asked: QueryResult<TerminalQuery>,
    upgrade: Upgrade,
) -> Result<Response, Refusal> {
    let upgrade = admitted(&who, upgrade)?;
    let draft = query(asked)?.into_draft();
    let running = broker.exec(&who, &sandbox, draft).await?;
    let exec = running.id.clone();
    let watch = running.follow();
    let session = Session { broker, who, sandbox, exec, watch };
    Ok(upgrade.on_upgrade(|socket| session.run(socket)))
}

impl TerminalQuery {
    fn into_draft(self) -> ExecDraft {
        let script = self.command.unwrap_or_else(|| SHELL.to_owned());
        let rows = self.rows.unwrap_or(ROWS);
        let cols = self.cols.unwrap_or(COLS);
        ExecDraft {
            argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), script],
            env: self.term.map(|term| ("TERM".to_owned(), term)).into_iter().collect(),
            cwd: self.cwd,
            user: self.user,
            stdin: StdinSource::Open,
            terminal: Some(TerminalSize { rows, cols }),
            timeout: None,
            limits: ExecLimits::default(),
            on_disconnect: self.on_disconnect.into(),
            keep: Keep::AmongTheLast,
        }
    }
}

/// Control messages of a client.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Control {
    Resize { rows: u16, cols: u16 },
    Signal { signal: Signal },
}

/// One client attached to the terminal of an exec.
struct Session {
    broker: Broker,
    who: Principal,
    sandbox: SandboxId,
    exec: ExecId,
    watch: ExecWatch,
}

/// Channels to the tasks that carry out the client's input.
struct Hands {
    typed: mpsc::Sender<Bytes>,
    size: watch::Sender<Option<TerminalSize>>,
    signals: mpsc::Sender<Signal>,
}

/// How to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Over,
    Misbehaved,
    Gone,
}

impl Session {
    async fn run(mut self, mut socket: WebSocket) {
        let hands = self.hands();
        let closing = self.carry(&mut socket, &hands).await;
        let (code, reason) = match closing {
            Closing::Gone => return,
            Closing::Over => (close_code::NORMAL, "the exec is over"),
            Closing::Misbehaved => (close_code::POLICY, "not a message of this protocol"),
        };
        let frame = CloseFrame { code, reason: reason.into() };
        // The client may be gone already. Pending input is still read, because closing a socket with unread data can
        // discard the last message.
        let _ = socket.send(Message::Close(Some(frame))).await;
        let goodbye = async { while let Some(Ok(_)) = socket.recv().await {} };
        let _ = timeout(TERMINAL_GOODBYE, goodbye).await;
    }

    /// Separate tasks do what takes time: a command that does not read must block neither its output nor a resize. They
    /// end with the connection.
    fn hands(&self) -> Hands {
        let (typed, mut keys) = mpsc::channel::<Bytes>(EXEC_EVENTS_MAX);
        let (size, mut sizes) = watch::channel(None);
        let (signals, mut wanted) = mpsc::channel::<Signal>(EXEC_EVENTS_MAX);
        let names =
            || (self.broker.clone(), self.who.clone(), self.sandbox.clone(), self.exec.clone());
        let (broker, who, sandbox, exec) = names();
        tokio::spawn(async move {
            while let Some(bytes) = keys.recv().await {
                // The exec reads no more input: it is discarded, as at any terminal.
                let Ok(turn) = broker.exec_stdin(&who, &sandbox, &exec).await else { continue };
                let _ = turn.write(&bytes).await;
            }
        });
        let (broker, who, sandbox, exec) = names();
        tokio::spawn(async move {
            while sizes.changed().await.is_ok() {
                let latest = *sizes.borrow_and_update();
                if let Some(size) = latest {
                    let _ = broker.resize_exec(&who, &sandbox, &exec, size).await;
                }
            }
        });
        let (broker, who, sandbox, exec) = names();
        tokio::spawn(async move {
            while let Some(signal) = wanted.recv().await {
                let _ = broker.signal_exec(&who, &sandbox, &exec, signal.number()).await;
            }
        });
        Hands { typed, size, signals }
    }

    /// Copies bytes in both directions until one side is done.
    async fn carry(&mut self, socket: &mut WebSocket, hands: &Hands) -> Closing {
        let started = ExecEvent::Started { exec_id: self.exec.clone() };
        if say(socket, &started).await.is_err() {
            return Closing::Gone;
        }
        let mut pings = interval(TERMINAL_PING);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hearing = Hearing { heard: Instant::now() };
        loop {
            tokio::select! {
                next = self.watch.next(Follow::ToTheEnd) => {
                    match tell(socket, &self.exec, next).await {
                        Ok(None) => {}
                        Ok(Some(closing)) => return closing,
                        Err(_) => return Closing::Gone,
                    }
                }
                message = receive(socket, hands) => {
                    hearing.heard = Instant::now();
                    if let Some(closing) = message {
                        return closing;
                    }
                }
                _ = pings.tick() => {
                    let silent = hearing.is_silent(Instant::now(), hands.typed.capacity());
                    if silent || socket.send(Message::Ping(Bytes::new())).await.is_err() {
                        return Closing::Gone;
                    }
                }
            }
        }
    }
}

/// When a client was last heard.
struct Hearing {
    heard: Instant,
}

impl Hearing {
    /// Whether a client has gone silent. One that waits with what it has typed, for want of room, cannot be heard.
    fn is_silent(&mut self, now: Instant, room: usize) -> bool {
        if room == 0 {
            self.heard = now;
        }
        now.duration_since(self.heard) > TERMINAL_SILENCE_MAX
    }
}

async fn say(socket: &mut WebSocket, event: &ExecEvent) -> Result<(), axum::Error> {
    let text = serde_json::to_string(event).expect("events hold only strings and numbers");
    socket.send(Message::Text(text.into())).await
}

/// Sends the output of the exec to the client; the close follows the last event.
async fn tell(
    socket: &mut WebSocket,
    exec: &ExecId,
    next: Result<Option<guestlink::ExecEvent>, Detached>,
) -> Result<Option<Closing>, axum::Error> {
    let last = match next {
        Ok(Some(guestlink::ExecEvent::Started)) => return Ok(None),
        Ok(Some(guestlink::ExecEvent::Output { data, .. })) => {
            socket.send(Message::Binary(data)).await?;
            return Ok(None);
        }
        Ok(Some(guestlink::ExecEvent::Gap { stream, from, to })) => {
            say(socket, &ExecEvent::Gap { stream, from, to }).await?;
            return Ok(None);
        }
        Ok(Some(guestlink::ExecEvent::Ended(end))) => exec_stream::ended(exec.clone(), &end),
        Ok(None) => exec_stream::detached(exec.clone(), &Detached::Removed),
        Err(why) => exec_stream::detached(exec.clone(), &why),
    };
    say(socket, &last).await?;
    Ok(Some(Closing::Over))
}

/// Handles one message. Input waits here, and so does the client, until there is room for it.
async fn receive(socket: &mut WebSocket, hands: &Hands) -> Option<Closing> {
    let Ok(room) = hands.typed.reserve().await else { return Some(Closing::Gone) };
    match socket.recv().await {
        Some(Ok(Message::Binary(bytes))) => {
            room.send(bytes);
            None
        }
        Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
            Ok(Control::Resize { rows, cols }) => {
                hands.size.send_replace(Some(TerminalSize { rows, cols }));
                None
            }
            // If signals arrive faster than they can be delivered, the excess is dropped.
            Ok(Control::Signal { signal }) => {
                let _ = hands.signals.try_send(signal);
                None
            }
            Err(_) => Some(Closing::Misbehaved),
        },
        Some(Ok(Message::Ping(_) | Message::Pong(_))) => None,
        Some(Ok(Message::Close(_)) | Err(_)) | None => Some(Closing::Gone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_whose_typing_waits_for_room_is_not_silent() {
        let begun = Instant::now();
        let mut hearing = Hearing { heard: begun };
        assert!(!hearing.is_silent(begun + TERMINAL_SILENCE_MAX, 1));
        assert!(hearing.is_silent(begun + TERMINAL_SILENCE_MAX * 2, 1));
        let blocked = begun + TERMINAL_SILENCE_MAX * 3;
        assert!(!hearing.is_silent(blocked, 0), "a large paste that the command does not read");
        assert!(!hearing.is_silent(blocked + TERMINAL_PING, 1), "what it said meanwhile is unread");
        assert!(hearing.is_silent(blocked + TERMINAL_SILENCE_MAX * 2, 1));
    }
}
