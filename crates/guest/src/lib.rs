//! The guest: PID 1 of every local sandbox. It starts commands for the host, carries their input and
//! output, kills their whole trees, and reaps whatever is orphaned.
//!
//! ```text
//! lib        arguments and the state every child inherits (signals, umask, descriptors)
//! reactor    the one loop: waits, dispatches, lets connections and execs meet
//!   poll         epoll, and what an event is about
//!   connection   one operation of the host: preface, request, buffered answer
//!   exec         the life of one command, with `stdin`, `output` and its `window`, or a `terminal`
//!   spawn        the way from a request to a running process, with `plan` and `user`
//!   tree         finding and killing all processes of an exec
//!   dial         a connection to a port of the sandbox, given to the host
//!   shutdown     ending every process of the sandbox
//! sys        thin wrappers around system calls
//! ```
//!
//! It is a trust boundary on both sides: a frame from the host is bounded and typed, and nothing the
//! sandbox can write (its passwd file, its processes' output) is believed or waited for. One thread,
//! no runtime, and no memory that an idle sandbox would have to pay for.
//!
//! The guest outlives the daemon. A connection that breaks ends nothing: output is held up to a
//! window, then the command blocks, until somebody attaches again.

mod connection;
mod dial;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod output;
mod plan;
mod poll;
mod reactor;
mod shell;
mod shutdown;
mod spawn;
mod stdin;
mod sys;
mod terminal;
mod tree;
mod user;
mod window;

use std::os::fd::{OwnedFd, RawFd};

use reactor::Reactor;

const USAGE: &str = "usage: sandkeep-guest --listen-fd N [--lifeline-fd N]";

/// What the command line says.
#[derive(Debug, PartialEq, Eq)]
struct Arguments {
    /// A listening Unix socket: each connection carries one operation of the host.
    listen: RawFd,
    /// When this pipe reaches its end the sandbox shall end, too.
    lifeline: Option<RawFd>,
}

fn parse(arguments: &[String]) -> Option<Arguments> {
    let mut listen = None;
    let mut lifeline = None;
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let slot = match name.as_str() {
            "--listen-fd" => &mut listen,
            "--lifeline-fd" => &mut lifeline,
            _ => return None,
        };
        *slot = Some(rest.next()?.parse::<RawFd>().ok().filter(|fd| *fd > 2)?);
    }
    Some(Arguments { listen: listen?, lifeline })
}

/// Runs until the sandbox ends; returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    let Some(arguments) = parse(arguments) else {
        eprintln!("{USAGE}");
        return 2;
    };
    match start(&arguments) {
        Ok(mut reactor) => reactor.run(),
        Err(error) => {
            eprintln!("sandkeep-guest: {error}");
            1
        }
    }
}

fn start(arguments: &Arguments) -> std::io::Result<Reactor> {
    sys::hide_from_ptrace()?;
    sys::set_name(c"sandkeep-guest");
    sys::adopt_orphans()?;
    let signals = sys::take_over_signals()?;
    sys::set_umask(0o022);
    let listen: OwnedFd = sys::inherited(arguments.listen)?;
    let lifeline = arguments.lifeline.map(sys::inherited).transpose()?;
    sys::keep_descriptors_from_children();
    sys::fill_standard_descriptors()?;
    Reactor::new(listen, lifeline, signals)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_listening_descriptor_is_required_and_the_lifeline_is_not() {
        assert_eq!(parse(&words("--listen-fd 3")), Some(Arguments { listen: 3, lifeline: None }));
        assert_eq!(
            parse(&words("--lifeline-fd 4 --listen-fd 3")),
            Some(Arguments { listen: 3, lifeline: Some(4) })
        );
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in ["", "--listen-fd", "--listen-fd x", "--listen-fd 1", "--listen-fd 3 --shell"] {
            assert_eq!(parse(&words(line)), None, "{line:?}");
        }
    }
}
