//! What is said. Postcard encodes an enum by the index of its variant: append, never reorder.

use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::shell::{ListedShell, ShellEnd, ShellExec, ShellOpen, ShellRefusal};

/// What a connection is for: its first and only request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Is anybody there? Answered by `Pong`.
    Ping,
    /// Run a command. Answered by `Started`, output, and one `Ended`.
    Exec(Exec),
    /// Join an exec that this or an earlier daemon started, at byte offsets. Answered like `Exec`,
    /// or by `Refused` if the guest does not know it. What was acknowledged before is gone: output
    /// then starts later than asked, and its offsets say so. The newest connection wins; an older
    /// one of the same exec is closed.
    Attach { exec_id: String, from: Offsets },
    /// Send a signal to the first process of an exec. Answered by `Done` or `Refused`.
    Signal { exec_id: String, signal: i32 },
    /// Kill the whole tree of an exec; it ends as `Canceled`. Answered by `Done` or `Refused`.
    Cancel { exec_id: String },
    /// Which execs the guest knows: running, or ended and not yet forgotten. Answered by `Execs`.
    List,
    /// SIGTERM to everything, up to `grace_ms` for it to end, then SIGKILL and exit. Answered by
    /// `Done` just before the guest exits.
    Terminate { grace_ms: u64 },
    /// Connect to a TCP port of the sandbox's own loopback. Answered by `Dialed`, `PortClosed` or
    /// `Refused`. Since version 2.
    Dial { port: u16 },
    /// Run a command in a terminal of its own. Answered like `Exec`, with all output as `Stdout`.
    /// Since version 2.
    Terminal { exec: Exec, size: TerminalSize },
    /// Open a shell. Descriptors of its leaf ride along. Answered by `ShellOpened` or `Refused`. Since
    /// version 2, as the next three.
    ShellOpen(ShellOpen),
    /// Run a command in a shell. Answered like `Exec`, with `ShellEnded` in place of `Ended`.
    ShellExec(ShellExec),
    /// Which shells there are. Answered by `Shells`.
    Shells,
    /// Kill a shell with all that runs in it, and forget it. Answered by `Done` when nothing of it is
    /// left.
    ShellClose { shell_id: String },
    /// SIGTERM to all processes of an exec, up to `grace_ms` for them to end, then SIGKILL to those that
    /// are left. It ends when none is: as its first process did, or as `Canceled` if that had to be killed.
    /// Answered by `Done` once they are told, or `Refused`. Since version 3.
    End { exec_id: String, grace_ms: u64 },
    /// As `Dial`, for a host that no descriptor can be passed to: after `Dialed` this connection itself
    /// carries the bytes, unframed and both ways. Whoever has nothing more to say shuts down its half.
    /// Since version 3.
    DialThrough { port: u16 },
    /// Who the shells run as. Answered by `ShellUsers`. Since version 3.
    ShellUsers,
    /// Keep a program, to be named by `ExecKept`. Its file rides along as a descriptor, or its bytes follow
    /// as `ToGuest::Program` until there are so many. Answered by `Done`. Since version 4.
    Keep { program: String, source: ProgramSource },
    /// Run a program that is kept, with `argv[0]` for its name alone. Answered like `Exec`, or by `NotKept`.
    /// Since version 4.
    ExecKept { program: String, exec: Exec },
}

impl Op {
    /// The first version that has this request. A guest of an earlier one is not asked.
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
    /// The whole environment; the guest adds only `HOME`, `USER` and `LOGNAME` where missing.
    pub env: Vec<(String, String)>,
    /// The working directory; the user's home where missing.
    pub cwd: Option<String>,
    /// `user` or `user:group`, each a name or a number; names are looked up in the sandbox's own files. A uid
    /// that they do not name is a group of its own, but with nothing after the colon (`1000:`) it is in
    /// group 0, as images expect. A guest of an earlier build knows `name`, `uid` and `uid:gid` alone, and
    /// says so of all else.
    pub user: String,
    pub stdin: StdinMode,
    /// From the start of the command; then its whole tree is killed and it ends as `TimedOut`.
    pub timeout_ms: Option<u64>,
    pub privilege: Privilege,
    /// Which descriptors ride along with this message.
    pub leaf: LeafKind,
    /// The host's name for the leaf, given back by `List`, so that a restarted daemon knows which
    /// leaves are in use.
    pub leaf_name: String,
}

/// How a guest gets a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramSource {
    /// As a descriptor of a file that nobody can change.
    Descriptor,
    /// As so many bytes, because no descriptor gets into the guest's kernel.
    Bytes { len: u64 },
}

/// How many characters a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StdinMode {
    /// /dev/null.
    Null,
    /// A pipe fed by `ToGuest::Stdin`, closed by `ToGuest::StdinEof`. In a terminal the bytes are
    /// typed, and the end is its end-of-file character.
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
    /// No descriptors: a process of the guest's own keeps the tree together.
    None,
    /// cgroup v1: freezer `tasks` (read and write), `freezer.state` (read and write), then any
    /// number of further `tasks` files (write) that the child enters by writing `0`.
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
    /// Bytes for stdin; never more than the guest has asked for.
    Stdin(#[serde(with = "bytes")] Vec<u8>),
    StdinEof,
    /// Everything below these offsets is safe with the host; the guest lets go of it.
    Ack(Offsets),
    /// The host has the end of the exec; the guest lets go of all of it.
    Forget,
    /// The window of whoever looks at the exec's terminal has another size. Nothing happens if it
    /// has none. Since version 2.
    Resize(TerminalSize),
    /// The next bytes of a program, at most `CHUNK_MAX`. Since version 4.
    Program(#[serde(with = "bytes")] Vec<u8>),
}

/// From the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    Pong,
    /// The operation could not be carried out; the connection ends.
    Refused {
        reason: String,
    },
    Done,
    Execs(Vec<ListedExec>),
    /// The command runs, or has run. `pid` is its id inside the sandbox; `stdin_offset` is how much
    /// of stdin has arrived, so that whoever attaches knows where to go on. Left out if the command
    /// could not be started: then `Ended` is the only message.
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
    /// Nobody listens there.
    PortClosed,
    ShellOpened(ListedShell),
    Shells(Vec<ListedShell>),
    /// The last message of a command of a shell. All of its output has been sent before it.
    ShellEnded(ShellEnd),
    /// In place of `Refused` for a request about a shell that cannot take it.
    ShellRefused(ShellRefusal),
    /// The ids of all shells, each with the user that it was opened with.
    ShellUsers(Vec<(String, String)>),
    /// The program is not kept: it never was, or it made room.
    NotKept,
}

/// How the bytes of a dialed connection get to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Carrier {
    /// The connected socket itself rides with the message: nothing is copied on the way.
    Descriptor,
    /// They follow on this connection, because no descriptor leaves the guest's kernel (gVisor's, or
    /// that of a virtual machine). The guest copies. Since version 3.
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
