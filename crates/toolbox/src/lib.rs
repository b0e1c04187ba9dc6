//! The toolbox: what Sandkeep does with the files of a sandbox, done inside, with the rights of the user who asks.
//!
//! The program `sandkeep-toolbox` is started once per operation, as an ordinary command of the sandbox: with its
//! limits, in a leaf of its own, killed as a tree. It reads one request on stdin and gives one answer on stdout:
//!
//! ```text
//! host → toolbox   Head(Request)  Data …  End
//! toolbox → host   Head(answer)   Data …  End      or Failed(Failure) at any time, as the last
//! ```
//!
//! What follows the head depends on the operation: the bytes of a file, an archive, or lines of JSON. An input
//! without its `End` was broken off, and nothing is changed by it.
//!
//! ```text
//! wire       how a message is put on a byte stream; for both sides
//! request    what is asked, and how a path is written that is no UTF-8
//! answer     what is said back: entries, and why something is refused
//! files      the operations on files
//! tools      what an agent does with files
//! ```
//!
//! Neither side trusts the other. The host takes the answers for what they are, words of the sandbox: bounded,
//! typed, and shown to nobody but those who may see the sandbox. The toolbox has no rights that the user has not,
//! so there is nothing to gain by deceiving it.

mod answer;
mod files;
mod ports;
mod relay;
mod request;
pub mod tools;
mod wire;

use std::fs::File;
use std::process::ExitCode;

pub use answer::{
    Change, ChangeKind, Entry, EntryKind, Failure, FailureKind, Listening, Listing, Packing,
    Reading, Relaying, Unpacked, Watching, Written,
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

/// What the process says with its exit code: the answer has all the rest.
const ANSWERED: u8 = 0;
const FAILED: u8 = 1;
/// Not even the failure could be told: nobody listens, or what was asked could not be read.
const NOT_ANSWERED: u8 = 2;

/// Reads the request, does it, and answers.
pub fn run() -> ExitCode {
    // Not by the standard library's own handles, which look for lines in all that goes through them.
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
        Operation::Relay {} => relay::relay(input, output),
        Operation::Tool(call) => tools::answer(&call, output),
    }
}
