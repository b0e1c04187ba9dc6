//! Connects this terminal to a command in a sandbox: keyboard input goes there byte by byte, and its output comes here,
//! until it ends.
//!
//! In every case the terminal is restored: [`RawMode`] does so when it is dropped, at the end, on an error, on a panic,
//! and on a signal.

use std::io::{self, IsTerminal, Read};

use futures_util::{SinkExt, StreamExt};
use rustix::termios::{self, OptionalActions, Termios};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;

use crate::cli::events;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::{Client, ExecEvent, WebSocket};
use sandkeep_core::{
    api::{Ending, ExecStatus},
    limits::{EXEC_EVENTS_MAX, TERMINAL_READ_BYTES},
};
use sandkeep_guestlink::TerminalSize;

/// The size of a terminal that does not report one.
const UNKNOWN: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Whether keyboard input goes to the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typing {
    Yes,
    No,
}

/// Refuses interactive input from something other than a terminal, like other programs.
pub fn must_be_terminal(instead: &str) -> Result<(), Failure> {
    if io::stdin().is_terminal() {
        Ok(())
    } else {
        Err(Failure::Usage { problem: format!("the input is not a terminal: {instead}") })
    }
}

/// The size of this terminal.
pub fn size() -> TerminalSize {
    let size = termios::tcgetwinsize(io::stdout()).or_else(|_| termios::tcgetwinsize(io::stdin()));
    match size {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            TerminalSize { rows: size.ws_row, cols: size.ws_col }
        }
        _ => UNKNOWN,
    }
}

/// The type of this terminal, for the command's `TERM`.
pub fn kind() -> Option<String> {
    std::env::var("TERM").ok().filter(|term| !term.is_empty())
}

/// Raw mode: the terminal passes every key on and interprets none.
struct RawMode {
    before: Termios,
}

impl RawMode {
    fn enter() -> io::Result<Self> {
        let before = termios::tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        let entered = Self { before };
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        Ok(entered)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // If the terminal is gone there is nothing to restore.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Keyboard input, read by a thread, because a read of a terminal cannot be canceled.
fn keyboard() -> mpsc::Receiver<Vec<u8>> {
    let (typed, keys) = mpsc::channel(EXEC_EVENTS_MAX);
    std::thread::spawn(move || {
        let mut buffer = vec![0; TERMINAL_READ_BYTES];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) if typed.blocking_send(buffer[..count].to_vec()).is_err() => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    keys
}

/// Termination signals; each determines our exit code.
struct Endings {
    hangup: Signal,
    interrupt: Signal,
    quit: Signal,
    terminate: Signal,
}

impl Endings {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) -> Exit {
        let kind = tokio::select! {
            _ = self.hangup.recv() => SignalKind::hangup(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.quit.recv() => SignalKind::quit(),
            _ = self.terminate.recv() => SignalKind::terminate(),
        };
        Exit::of_outcome(&sandkeep_guestlink::Outcome::Signaled(kind.as_raw_value()))
    }
}

/// How a session ended.
enum Over {
    Ended(ExecStatus, Ending),
    Exit(Exit),
}

/// Connects this terminal to the exec at the other end until it ends.
pub async fn lend(client: &Client, socket: WebSocket, typing: Typing) -> Result<Exit, Failure> {
    let raw = match typing {
        Typing::Yes => Some(RawMode::enter().map_err(Failure::system("use the terminal"))?),
        Typing::No => None,
    };
    let over = carry(client, socket, typing).await;
    // Messages about the end need a terminal in normal mode.
    drop(raw);
    match over? {
        Over::Exit(exit) => Ok(exit),
        Over::Ended(status, ending) => Ok(events::ended(status, &ending)),
    }
}

async fn carry(client: &Client, mut socket: WebSocket, typing: Typing) -> Result<Over, Failure> {
    let mut keys = match typing {
        Typing::Yes => keyboard(),
        Typing::No => mpsc::channel(1).1,
    };
    let mut endings = Endings::new().map_err(Failure::system("wait for signals"))?;
    let resized = signal(SignalKind::window_change());
    let mut resized = resized.map_err(Failure::system("wait for signals"))?;
    // The size may have changed since the exec was requested.
    let mut say = resize();
    loop {
        // If the receiver is gone, it may have sent a reason: the end is read with everything else.
        let _ = socket.send(say).await;
        say = loop {
            tokio::select! {
                message = socket.next() => match message {
                    Some(Ok(message)) => {
                        if let Some(over) = hear(client, message)? {
                            return Ok(over);
                        }
                    }
                    Some(Err(_)) | None => return Err(client.went_away().into()),
                },
                Some(bytes) = keys.recv() => break Message::Binary(bytes.into()),
                _ = resized.recv() => break resize(),
                exit = endings.next() => return Ok(Over::Exit(exit)),
            }
        };
    }
}

fn resize() -> Message {
    let TerminalSize { rows, cols } = size();
    Message::Text(json!({ "type": "resize", "rows": rows, "cols": cols }).to_string().into())
}

/// Prints output of the exec; `Some` after the last message.
fn hear(client: &Client, message: Message) -> Result<Option<Over>, Failure> {
    match message {
        Message::Binary(bytes) => print::stdout(&bytes).map(|()| None),
        Message::Text(text) => match client.event(&text)? {
            ExecEvent::Started { .. } | ExecEvent::Gap { .. } | ExecEvent::Output { .. } => {
                Ok(None)
            }
            ExecEvent::Running { .. } | ExecEvent::Detached { .. } => {
                Err(client.went_away().into())
            }
            ExecEvent::Ended { status, ending, .. } => Ok(Some(Over::Ended(status, ending))),
        },
        Message::Close(_) => Err(client.went_away().into()),
        Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => Ok(None),
    }
}
