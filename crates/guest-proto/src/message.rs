//! The messages. Postcard encodes an enum by the index of its variant: append, never reorder.

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::shell::{ListedShell, ShellEnd, ShellExec, ShellOpen, ShellRefusal};

/// The purpose of a connection: its first and only request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Checks that the guest answers. Answered by `Pong`.
    Ping,
    /// Run a command. Answered by `Started`, output, and one `Ended`.
    Exec(Exec),
    /// Attach to an exec that this or an earlier daemon started, at byte offsets. Answered like `Exec`, or by `Refused`
    /// if the guest does not know it. Acknowledged output is gone: then output starts later than requested, with the
    /// offsets saying so. The newest connection wins; an older one of the same exec is closed.
    Attach { exec_id: String, from: Offsets },
    /// Send a signal to the first process of an exec. Answered by `Done` or `Refused`.
    Signal { exec_id: String, signal: i32 },
    /// Kill the whole tree of an exec; it ends as `Canceled`. Answered by `Done` or `Refused`.
    Cancel { exec_id: String },
    /// List the known execs: running, or ended and not yet forgotten. Answered by `Execs`.
    List,
    /// SIGTERM to all processes, up to `grace_ms` for them to end, then SIGKILL and exit. Answered by `Done` just
    /// before the guest exits.
    Terminate { grace_ms: u64 },
    /// Connect to a TCP port of the sandbox's own loopback. Answered by `Dialed`, `PortClosed` or
    /// `Refused`. Since version 2.
    Dial { port: u16 },
    /// Run a command in a terminal of its own. Answered like `Exec`, with all output as `Stdout`.
    /// Since version 2.
    Terminal { exec: Exec, size: TerminalSize },
    /// Open a shell, with the descriptors of its leaf. Answered by `ShellOpened` or `Refused`. Since version 2, like
    /// the next three.
    ShellOpen(ShellOpen),
    /// Run a command in a shell. Answered like `Exec`, with `ShellEnded` in place of `Ended`.
    ShellExec(ShellExec),
    /// List the shells. Answered by `Shells`.
    Shells,
    /// Kill a shell with all its processes, and forget it. Answered by `Done` when nothing of it is left.
    ShellClose { shell_id: String },
    /// SIGTERM to all processes of an exec, up to `grace_ms` for them to end, then SIGKILL to the rest. It ends when
    /// none is left: with the outcome of its first process, or as `Canceled` if that had to be killed. Answered by
    /// `Done` once the signals are sent, or `Refused`. Since version 3.
    End { exec_id: String, grace_ms: u64 },
    /// Like `Dial`, for a host that cannot receive descriptors: after `Dialed` this connection itself carries the
    /// bytes, unframed and in both directions. A side that has sent everything shuts down its half. Since version 3.
    DialThrough { port: u16 },
    /// List the shells' users. Answered by `ShellUsers`. Since version 3.
    ShellUsers,
    /// Keep a program, to be named by `ExecKept`. Its file is sent as a descriptor, or its bytes follow as
    /// `ToGuest::Program` until they are complete. Answered by `Done`. Since version 4.
    Keep { program: String, source: ProgramSource },
    /// Run a kept program; `argv[0]` is only its name. Answered like `Exec`, or by `NotKept`. Since version 4.
    ExecKept { program: String, exec: Exec },
}

impl Op {
    /// The first version that has this request. It is not sent to older guests.
    pub fn since(&self) -> u16 {
        match self {
            Self::Ping
            | Self::Exec(_)
            | Self::Attach { .. }
            | Self::Signal { .. }
            | Self::Cancel { .. }
            | Self::List
            | Self::Terminate { .. } => 1,
            Self::Dial { .. }
            | Self::Terminal { .. }
            | Self::ShellOpen(_)
            | Self::ShellExec(_)
            | Self::Shells
            | Self::ShellClose { .. } => 2,
            Self::End { .. } | Self::DialThrough { .. } | Self::ShellUsers => 3,
            Self::Keep { .. } | Self::ExecKept { .. } => 4,
        }
    }
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    /// Chosen by the host, unique in this sandbox.
    pub exec_id: String,
    /// Never empty. `argv[0]` without a slash is looked up in `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment; the guest adds only missing `HOME`, `USER` and `LOGNAME`.
    pub env: Vec<(String, String)>,
    /// The working directory; the user's home if missing.
    pub cwd: Option<String>,
    /// `user` or `user:group`, each a name or a number; names are resolved by the sandbox's own files. A uid without an
    /// entry is in a group of its own, but with an empty group (`1000:`) it is in group 0, as images expect. A guest of
    /// an earlier build supports only `name`, `uid` and `uid:gid`, and refuses everything else.
    pub user: String,
    pub stdin: StdinMode,
    /// Counts from the start of the command; then its whole tree is killed and it ends as `TimedOut`.
    pub timeout_ms: Option<u64>,
    pub privilege: Privilege,
    /// Which descriptors are sent with this message.
    pub leaf: LeafKind,
    /// The host's name for the leaf, returned by `List`, so that a restarted daemon knows which leaves are in use.
    pub leaf_name: String,
}

/// How a guest receives a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramSource {
    /// As a descriptor of an immutable file.
    Descriptor,
    /// As this many bytes, because descriptors cannot be passed into the guest's kernel.
    Bytes { len: u64 },
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinMode {
    /// /dev/null.
    Null,
    /// A pipe fed by `ToGuest::Stdin`, closed by `ToGuest::StdinEof`. In a terminal the bytes are typed, and the end is
    /// its end-of-file character.
    Piped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Privilege {
    /// No capabilities, no_new_privs.
    None,
    /// The capabilities of the sandbox's bounding set when the user is root; setuid files work.
    Root,
}

/// The cgroup leaf of an exec, as descriptors opened by the host, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeafKind {
    /// No descriptors: a keeper process of the guest tracks the tree.
    None,
    /// cgroup v1: freezer `tasks` (read and write), `freezer.state` (read and write), then any number of further
    /// `tasks` files (write) that the child enters by writing `0`.
    V1,
    /// cgroup v2: `cgroup.kill` (write), then `cgroup.procs` (read and write), which the child enters
    /// by writing `0`.
    V2,
}

/// How many bytes of each stream the host has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offsets {
    pub stdout: u64,
    pub stderr: u64,
}

/// From the host, on the connection of an `Exec` or `Attach`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Bytes for stdin; never more than the guest has requested.
    Stdin(#[serde(with = "bytes")] Vec<u8>),
    StdinEof,
    /// The host has stored everything below these offsets; the guest releases it.
    Ack(Offsets),
    /// The host has the end of the exec; the guest releases everything of it.
    Forget,
    /// Resize the exec's terminal. Ignored if it has none. Since version 2.
    Resize(TerminalSize),
    /// The next bytes of a program, at most `CHUNK_MAX`. Since version 4.
    Program(#[serde(with = "bytes")] Vec<u8>),
}

/// From the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    Pong,
    /// The operation failed; the connection ends.
    Refused {
        reason: String,
    },
    Done,
    Execs(Vec<ListedExec>),
    /// The command is running, or has run. `pid` is its pid inside the sandbox; `stdin_offset` is how much of stdin has
    /// arrived, so that a client that attaches knows where to continue. Missing if the command could not be started:
    /// then `Ended` is the only message.
    Started {
        pid: u32,
        stdin_offset: u64,
    },
    Stdout {
        offset: u64,
        #[serde(with = "bytes")]
        data: Vec<u8>,
    },
    Stderr {
        offset: u64,
        #[serde(with = "bytes")]
        data: Vec<u8>,
    },
    /// The host may send stdin up to this offset, counted from the start of stdin.
    StdinWanted {
        up_to: u64,
    },
    /// The last message of an exec. All of its output has been sent before it.
    Ended(End),
    /// A process of the sandbox has accepted the connection. The last message of a `Dial`.
    Dialed {
        carrier: Carrier,
    },
    /// No process listens there.
    PortClosed,
    ShellOpened(ListedShell),
    Shells(Vec<ListedShell>),
    /// The last message of a shell's command. All of its output has been sent before it.
    ShellEnded(ShellEnd),
    /// Instead of `Refused` for a request that a shell cannot accept.
    ShellRefused(ShellRefusal),
    /// The ids of all shells, each with the user that it was opened with.
    ShellUsers(Vec<(String, String)>),
    /// The program is not kept: it never was, or it was dropped for another.
    NotKept,
}

/// How the bytes of a dialed connection reach the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// The connected socket itself is sent with the message: nothing is copied.
    Descriptor,
    /// They follow on this connection, because descriptors cannot leave the guest's kernel (gVisor's, or a virtual
    /// machine's). The guest copies. Since version 3.
    Connection,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedExec {
    pub exec_id: String,
    pub leaf_name: String,
    pub running: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub how: How,
    /// Why a command could not be started (then `how` is exited 126 or 127).
    pub error: Option<String>,
    pub duration_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum How {
    Exited(i32),
    Signaled(i32),
    TimedOut,
    Canceled,
}
