//! The toolbox: Sandkeep's file operations, executed inside a sandbox with the rights of the requesting user.
//!
//! The program `sandkeep-toolbox` is started once per operation, as an ordinary command of the sandbox: with its
//! limits, in a leaf of its own, killed as a tree. It reads one request on stdin and writes one answer on stdout:
//!
//! ```text
//! host → toolbox   Head(Request)  Data …  End
//! toolbox → host   Head(answer)   Data …  End      or Failed(Failure) at any time, as the last
//! ```
//!
//! The data after the head depends on the operation: the bytes of a file, an archive, or lines of JSON. A request
//! without its `End` was aborted, and changes nothing.
//!
//! ```text
//! wire       the framing of messages, for both sides
//! request    the operations, and paths that are not UTF-8
//! answer     the results: entries, and reasons for refusals
//! files      the file operations
//! tools      the file tools of agents
//! ```
//!
//! Neither side trusts the other. To the host the answers are data of the sandbox: bounded, typed, and shown only to
//! callers who may see the sandbox. The toolbox has no rights beyond the user's, so deceiving it gains nothing.

mod answer;
mod files;
mod ports;
mod request;
pub mod tools;
mod wire;

use std::fs::File;
use std::process::ExitCode;

pub use answer::{
    Change, ChangeKind, Entry, EntryKind, Failure, FailureKind, Listening, Listing, Packing,
    Reading, Unpacked, Watching, Written,
};
pub use files::{
    ArchiveEntry, GONE, METADATA, Replacement, archive_entries, pack_to, restore, survey,
    unpack_into,
};
pub use request::{
    ByteRange, ChangeMode, ListDirectory, MakeDirectory, MoveEntry, Operation, Overwrite,
    Ownership, Parents, RawPath, Reach, Request, UnpackArchive, WriteFile,
};
pub use wire::{DATA_MAX, Decoder, Frame, HEAD_MAX, Input, Malformed, Output, encode, encode_data};

/// Exit code if an answer was written; the answer has the details.
const ANSWERED: u8 = 0;
const FAILED: u8 = 1;
/// Not even the failure could be reported: nobody reads it, or the request was unreadable.
const NOT_ANSWERED: u8 = 2;

/// Reads the request, executes it, and answers.
pub fn run() -> ExitCode {
    // Not the standard library's own handles, which scan everything for line breaks.
    let streams =
        (rustix::stdio::stdin().try_clone_to_owned(), rustix::stdio::stdout().try_clone_to_owned());
    let (Ok(stdin), Ok(stdout)) = streams else { return ExitCode::from(NOT_ANSWERED) };
    let mut input = Input::over(File::from(stdin));
    let mut output = Output::over(File::from(stdout));
    let done = carry_out(&mut input, &mut output);
    let said = match &done {
        Ok(()) => output.end(),
        Err(failure) => output.fail(failure),
    };
    match (said, done) {
        (Err(_), _) => ExitCode::from(NOT_ANSWERED),
        (Ok(()), Ok(())) => ExitCode::from(ANSWERED),
        (Ok(()), Err(_)) => ExitCode::from(FAILED),
    }
}

fn carry_out(input: &mut Input, output: &mut Output) -> Result<(), Failure> {
    let request = input.request()?;
    request.enter_base()?;
    match request.operation {
        Operation::Stat { path } => output.head(&files::stat(&path)?),
        Operation::Ports => output.head(&ports::listening()?),
        Operation::Read { path, range } => files::read(&path, range, output),
        Operation::Write(request) => output.head(&files::write(&request, input)?),
        Operation::Remove { path, reach } => {
            files::remove(&path, reach)?;
            output.head(&())
        }
        Operation::List(request) => output.head(&files::list(&request)?),
        Operation::MakeDirectory(request) => output.head(&files::make_directory(&request)?),
        Operation::Move(request) => output.head(&files::move_entry(&request)?),
        Operation::ChangeMode(request) => output.head(&files::change_mode(&request)?),
        Operation::Watch { path, reach } => files::watch(&path, reach, output),
        Operation::Pack { path } => files::pack(&path, output),
        Operation::Unpack(request) => output.head(&files::unpack(&request, input)?),
        Operation::Restore {} => output.head(&files::restore_all(input)?),
        Operation::Tool(call) => tools::answer(&call, output),
    }
}
