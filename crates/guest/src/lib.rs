//! The guest: PID 1 of every local sandbox. It starts commands for the host, transfers their input and output, kills
//! their whole trees, and reaps orphans.
//!
//! ```text
//! lib        arguments and the state every child inherits (signals, umask, descriptors)
//! reactor    the only loop: waits, dispatches, connects connections and execs
//!   poll         epoll, and the target of an event
//!   connection   one operation of the host: preface, request, buffered answer
//!   exec         the life of one command, with `stdin`, `output` and its `window`, or a `terminal`
//!   spawn        from a request to a running process, with `plan` and `user`
//!   tree         finds and kills all processes of an exec; `keeper` without a cgroup
//!   programs     programs that the host has supplied, in no directory
//!   dial         a connection to a sandbox port, passed to the host; `carry` if that is impossible
//!   dial_back    connections to a host that cannot connect to us
//!   shutdown     ends every process of the sandbox
//! large      memory that is returned to the kernel when it is freed
//! sys        thin wrappers around system calls
//! ```
//!
//! The guest is a trust boundary on both sides: frames from the host are bounded and typed, and nothing that the
//! sandbox controls (its passwd file, its processes' output) is trusted or waited for. One thread, no async runtime,
//! and no memory that an idle sandbox would pay for.
//!
//! The guest outlives the daemon. A broken connection ends nothing: output is buffered up to a window, then the command
//! blocks until a client attaches again.

mod arguments;
mod carry;
mod connection;
mod dial;
mod dial_back;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod keeper;
mod large;
mod output;
mod own_leaves;
mod plan;
mod poll;
mod programs;
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

use std::io;
use std::time::Duration;

use arguments::{Arguments, Host, Kernel, NewRoot};
use dial_back::DialBack;
use own_leaves::OwnLeaves;
use reactor::{Reactor, Source};
use spawn::Spawner;

pub use large::LargeBlocks;

/// How long to wait for a root. It is mounted at once, or the mounting process is gone.
const ROOT_PATIENCE: Duration = Duration::from_secs(30);

/// Runs until the sandbox ends; returns the exit code.
pub fn run(arguments: &[String]) -> i32 {
    let Some(arguments) = arguments::parse(arguments) else {
        eprintln!("{}", arguments::USAGE);
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

fn start(arguments: &Arguments) -> io::Result<Reactor> {
    sys::hide_from_ptrace()?;
    sys::outlive_parent();
    let from_host = match &arguments.host {
        Host::Listen(socket) => Some(*socket),
        Host::Dial { token, .. } => *token,
    };
    sys::close_unknown(&[from_host, arguments.lifeline]);
    sys::limit_capabilities()?;
    sys::set_name(c"sandkeep-guest");
    sys::adopt_orphans()?;
    let signals = sys::take_over_signals()?;
    sys::set_umask(0o022);
    sys::forbid_cores();
    let source = match &arguments.host {
        Host::Listen(socket) => Source::listening(sys::inherited(*socket)?),
        Host::Dial { path, token } => Source::Dialing(DialBack::new(path, *token)?),
    };
    let lifeline = arguments.lifeline.map(sys::inherited_above_standard).transpose()?;
    sys::keep_descriptors_from_children();
    // If the root is changed, the new one may have no devices yet.
    sys::take_standard_descriptors()?;
    if let Some(root) = &arguments.root {
        enter(root)?;
    }
    let own_leaves = match arguments.kernel {
        Kernel::Linux => None,
        Kernel::Gvisor => Some(settle_in_gvisor()?),
    };
    let spawner = Spawner::new(arguments.kernel)?;
    Reactor::new(source, spawner, own_leaves, lifeline, signals)
}

fn enter(root: &NewRoot) -> io::Result<()> {
    let (path, entered) = match root {
        NewRoot::There(path) => (path, sys::change_root(path)),
        NewRoot::Awaited(path) => {
            let mounted = sys::wait_for_overlay(path, ROOT_PATIENCE);
            (path, mounted.and_then(|()| sys::change_root(path)))
        }
    };
    entered.map_err(|error| io::Error::other(format!("cannot enter {}: {error}", path.display())))
}

/// Set-up that must be done before any command runs, and is impossible afterwards.
fn settle_in_gvisor() -> io::Result<OwnLeaves> {
    let mounted = OwnLeaves::mount();
    let leaves = mounted
        .map_err(|error| io::Error::other(format!("cannot mount control groups: {error}")))?;
    sys::hide_own_descriptors()
        .map_err(|error| io::Error::other(format!("cannot cover /proc/1/fd: {error}")))?;
    sys::give_up_mounting()?;
    Ok(leaves)
}
