//! Arbitrary bytes from the host, through the real connection and the real state of an exec, without processes. The
//! guest is PID 1, so a panic would end the sandbox.

#[cfg(test)]
#[path = "../../../fuzz/mutation.rs"]
mod mutation;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use guest_proto::{FromGuest, Op, TerminalSize};

use crate::connection::{Broken, Connection, Role};
use crate::exec::{AgainstTheRules, Exec, Heard, Pipes};
use crate::poll::Id;
use crate::sys;
use crate::terminal::Terminal;
use crate::tree::Leaf;

const OUTPUT: &[u8] = b"what the command has said so far";

/// Takes the bytes as everything that a connection ever sends.
pub fn hear_host(bytes: &[u8]) {
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a socket can be made non-blocking");
    theirs.set_nonblocking(true).expect("a socket can be made non-blocking");
    let mut rest = bytes;
    let mut connection = Connection::new(ours.into());
    let mut exec = None;
    loop {
        // In pieces, so that frames are split at arbitrary positions.
        let piece = rest.len().min(1 + rest.len() / 2);
        let written = theirs.write(&rest[..piece]).unwrap_or(0);
        rest = &rest[written..];
        let heard = connection.receive().and_then(|()| obey(&mut connection, &mut exec));
        if heard.is_err() || connection.flush().is_err() || written == 0 {
            return;
        }
    }
}

/// Like the loop, with one exec for all requests.
fn obey(connection: &mut Connection, exec: &mut Option<Exec>) -> Result<(), Broken> {
    loop {
        match connection.role {
            Role::Greeting => {
                if !connection.greet()? {
                    return Ok(());
                }
            }
            Role::Requesting => match connection.next_request()? {
                None => return Ok(()),
                Some(op) => carry_out(connection, exec, op),
            },
            Role::Watching(_) => {
                let Some(message) = connection.next_message()? else { return Ok(()) };
                let watched = exec.as_mut().ok_or(Broken)?;
                match watched.hear(message) {
                    Ok(Heard::GoesOn) => watched.pump(Some(connection)),
                    Ok(Heard::Forgotten) => return Err(Broken),
                    Err(AgainstTheRules) => return Err(Broken),
                }
            }
            Role::Terminating
            | Role::Dialing(_)
            | Role::Carrying
            | Role::Receiving
            | Role::Awaiting
            | Role::Closing => return Ok(()),
        }
    }
}

fn carry_out(connection: &mut Connection, exec: &mut Option<Exec>, op: Op) {
    let (request, terminal) = match op {
        Op::Exec(request) => (request, None),
        Op::Terminal { exec, size } => (exec, Some(size)),
        _ => return connection.conclude(&FromGuest::Done),
    };
    let started = running(&request, terminal);
    started.introduce(connection);
    connection.role = Role::Watching(Id(1));
    exec.insert(started).pump(Some(connection));
}

/// An exec that has written output and has no process: no message needs one.
fn running(request: &guest_proto::Exec, terminal: Option<TerminalSize>) -> Exec {
    let (read, write) = sys::pipe().expect("a pipe");
    std::fs::File::from(write).write_all(OUTPUT).expect("a pipe has room");
    let pipes = match terminal {
        None => Pipes { stdin: None, stdout: read, stderr: None, terminal: None },
        Some(size) => match Terminal::open(0, size, request.stdin) {
            Ok((pipes, _)) => pipes,
            // There is no /dev/ptmx here, or no terminal left.
            Err(_) => Pipes { stdin: None, stdout: read, stderr: None, terminal: None },
        },
    };
    Exec::running(request, Instant::now(), 0, Leaf::None, pipes)
}

#[cfg(test)]
mod tests {
    use guest_proto::{
        Exec, LeafKind, Offsets, Privilege, StdinMode, ToGuest, VERSION, encode, preface,
    };

    use super::mutation::{Mutations, corpus};
    use super::*;

    const ROUNDS: usize = 20_000;

    fn request(stdin: StdinMode) -> Exec {
        Exec {
            exec_id: "exec".to_owned(),
            argv: vec!["cat".to_owned(), "-".to_owned()],
            env: vec![("PATH".to_owned(), "/bin".to_owned())],
            cwd: Some("/".to_owned()),
            user: "user".to_owned(),
            stdin,
            timeout_ms: Some(1000),
            privilege: Privilege::None,
            leaf: LeafKind::None,
            leaf_name: "leaf".to_owned(),
        }
    }

    /// Valid conversations of a host.
    fn conversations() -> Vec<Vec<u8>> {
        let size = TerminalSize { rows: 24, cols: 80 };
        let piped = request(StdinMode::Piped);
        let said = OUTPUT.len() as u64;
        let ops = [
            Op::Ping,
            Op::Exec(piped.clone()),
            Op::Exec(request(StdinMode::Null)),
            Op::Terminal { exec: piped, size },
            Op::Attach { exec_id: "exec".to_owned(), from: Offsets::default() },
            Op::Dial { port: 80 },
            Op::DialThrough { port: 80 },
            Op::Signal { exec_id: "exec".to_owned(), signal: 15 },
        ];
        let messages = [
            ToGuest::Stdin(vec![b'x'; 100]),
            ToGuest::Resize(size),
            ToGuest::Ack(Offsets { stdout: said, stderr: 0 }),
            ToGuest::StdinEof,
            ToGuest::Forget,
        ];
        let conversation = |op| {
            let mut wire = preface(VERSION).to_vec();
            encode(&op, &mut wire);
            messages.iter().for_each(|message| encode(message, &mut wire));
            wire
        };
        ops.into_iter().map(conversation).collect()
    }

    #[test]
    fn no_bytes_from_the_host_can_end_the_guest() {
        let mut seeds = conversations();
        seeds.extend(corpus("host_to_guest", &seeds));
        seeds.iter().for_each(|seed| hear_host(seed));
        Mutations::of(seeds).take(ROUNDS).for_each(|bytes| hear_host(&bytes));
    }
}
