//! The messages between Sandkeep (the host) and the guest (PID 1 of a sandbox).
//!
//! One connection carries one operation, so the kernel does flow control and nothing is multiplexed:
//!
//! ```text
//! host  → guest   preface, Op                  in one write; together with a leaf's descriptors
//! guest → host    preface                      the common version, or 0 for "none"
//! guest → host    FromGuest …                  until the operation ends
//! host  → guest   ToGuest …                    stdin and acknowledgements of an exec
//! ```
//!
//! If the host cannot connect to the guest, the guest dials: it keeps a few connections open on which it sends nothing,
//! except for a token of [`DIAL_TOKEN_LEN`] bytes if it has to authenticate, and the host uses one for its next
//! operation. From then on everything is the same.
//!
//! Everything is bounded: a frame has at most [`FRAME_MAX`] bytes and a reader refuses a longer one before it
//! allocates. Neither side trusts the other: decoding never panics.
//!
//! Variants and fields are only appended, with a new [`VERSION`]; the host speaks this version and the previous one,
//! because guests outlive upgrades of the daemon.

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

/// The version that this build speaks.
pub const VERSION: u16 = 4;

/// The oldest version that the host still speaks with a guest of an earlier build.
pub const OLDEST_VERSION: u16 = 3;

/// Maximum payload of one frame: the longest shell command, and its metadata.
pub const FRAME_MAX: usize = SHELL_COMMAND_MAX + 64 * 1024;

/// Maximum length of a shell command, in bytes.
pub const SHELL_COMMAND_MAX: usize = 1024 * 1024;

/// Maximum number of shells of one sandbox, including ended ones.
pub const SHELLS_MAX: usize = 32;

/// Maximum number of queued commands in one shell.
pub const SHELL_QUEUE_MAX: usize = 64;

/// Maximum number of output bytes in one `Stdout` or `Stderr` frame.
pub const CHUNK_MAX: usize = 64 * 1024;

/// How much output of one stream the guest buffers until the host acknowledges it. Beyond that the guest stops reading
/// the pipe, so the command blocks: back-pressure, no loss.
pub const OUTPUT_WINDOW: usize = 256 * 1024;

/// How much stdin the host may send before the guest's first `StdinWanted`: sufficient for most commands, without a
/// round trip.
pub const STDIN_FIRST: usize = 64 * 1024;

/// How much stdin the guest buffers until the command reads it. It requests more when half of it is used, so that a
/// fast sender does not wait for every answer.
pub const STDIN_WINDOW: usize = 256 * 1024;

/// Maximum number of descriptors with an `Exec`.
pub const LEAF_FDS_MAX: usize = 8;

/// Maximum size of a program that a guest keeps, in bytes.
pub const PROGRAM_MAX: u64 = 16 * 1024 * 1024;

/// How many programs a guest keeps; the oldest is dropped for a new one.
pub const PROGRAMS_MAX: usize = 2;

/// Length of the token that a dialing guest sends first on each connection, if it was given one.
pub const DIAL_TOKEN_LEN: usize = 32;

/// How many idle connections a dialing guest keeps.
pub const DIALS_IDLE: usize = 4;

/// Maximum length of an exec id and of a leaf's name, in bytes.
pub const NAME_MAX: usize = 128;
