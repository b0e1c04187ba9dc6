//! The messages between Sandkeep (the host) and the guest (PID 1 of a sandbox).
//!
//! One connection carries one operation, so the kernel does flow control and nothing is multiplexed:
//!
//! ```text
//! host  → guest   preface, Op                  in one write; descriptors of a leaf ride along
//! guest → host    preface                      the version both speak, or 0 for "none"
//! guest → host    FromGuest …                  until the operation is over
//! host  → guest   ToGuest …                    stdin and acknowledgements of an exec
//! ```
//!
//! Where the guest cannot be connected to, it dials: it keeps a few connections open on which it says
//! nothing, but for a token of [`DIAL_TOKEN_LEN`] bytes where it has to prove itself, and the host takes one
//! for its next operation. From then on all is the same.
//!
//! Everything is bounded: a frame is at most [`FRAME_MAX`] bytes and a reader refuses a longer one
//! before it allocates. Neither side trusts the other: decoding never panics.
//!
//! Variants and fields are only ever appended, with a new [`VERSION`]; the host speaks this version
//! and the one before, because guests outlive upgrades of the daemon.

mod bytes;
mod frame;
mod message;
mod shell;

pub use frame::{
    DecodeError, FrameReader, PREFACE_LEN, Stream, encode, encode_stdin, encode_stream, preface,
    read_preface,
};
pub use message::{
    Carrier, End, Exec, FromGuest, How, LeafKind, ListedExec, Offsets, Op, Privilege,
    ProgramSource, StdinMode, TerminalSize, ToGuest,
};
pub use shell::{
    Fate, ListedShell, ShellEnd, ShellExec, ShellOpen, ShellProgram, ShellRefusal, ShellState,
};

/// The version this build speaks.
pub const VERSION: u16 = 4;

/// The oldest version the host still speaks with a guest of an earlier build.
pub const OLDEST_VERSION: u16 = 3;

/// The largest payload of one frame: the longest command of a shell, and what goes with it.
pub const FRAME_MAX: usize = SHELL_COMMAND_MAX + 64 * 1024;

/// The longest command of a shell, in bytes.
pub const SHELL_COMMAND_MAX: usize = 1024 * 1024;

/// The most shells of one sandbox, those that have ended included.
pub const SHELLS_MAX: usize = 32;

/// The most commands that wait in one shell.
pub const SHELL_QUEUE_MAX: usize = 64;

/// The most output bytes one `Stdout` or `Stderr` frame carries.
pub const CHUNK_MAX: usize = 64 * 1024;

/// How much output of one stream the guest holds until the host acknowledges it. Beyond it the guest
/// stops reading the pipe, so the command blocks: back-pressure, no loss.
pub const OUTPUT_WINDOW: usize = 256 * 1024;

/// How much stdin the host may send before the guest first asks with `StdinWanted`: most commands need no more, and
/// nobody has to be asked for it.
pub const STDIN_FIRST: usize = 64 * 1024;

/// How much stdin the guest holds until the command reads it. It asks for more when half of it is used, so that who
/// sends much does not wait for every answer.
pub const STDIN_WINDOW: usize = 256 * 1024;

/// The most descriptors that ride with an `Exec`.
pub const LEAF_FDS_MAX: usize = 8;

/// The largest program that a guest keeps, in bytes.
pub const PROGRAM_MAX: u64 = 16 * 1024 * 1024;

/// How many programs a guest keeps; the oldest makes room.
pub const PROGRAMS_MAX: usize = 2;

/// The length of the token that a guest which dials begins its connections with, if it was given one.
pub const DIAL_TOKEN_LEN: usize = 32;

/// How many connections a guest that dials keeps for the host to take.
pub const DIALS_IDLE: usize = 4;

/// The longest exec id and the longest name of a leaf, in bytes.
pub const NAME_MAX: usize = 128;
