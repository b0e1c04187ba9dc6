"""Python client of Sandkeep, a sandbox broker for AI agents.

`Sandbox` is the beginning:

    from sandkeep import Sandbox

    with Sandbox.create() as sandbox:
        print(sandbox.run("uname -a").stdout)

Each class of the sync client has an async one with the same methods: `AsyncSandbox`, `AsyncClient`, and so on.
"""

from ._async.client import AsyncClient
from ._async.execs import AsyncExec
from ._async.files import AsyncFiles
from ._async.processes import AsyncProcess
from ._async.sandbox import AsyncSandbox
from ._async.shells import AsyncShell
from ._async.terminal import AsyncTerminal
from ._async.tools import AsyncTools
from ._data import (
    Applied,
    Conflict,
    CpuStats,
    DiffSide,
    DiskStats,
    Event,
    ExecInfo,
    ExecResult,
    FileChange,
    FileEvent,
    FileFacts,
    FileInfo,
    ForkPoint,
    LogEntry,
    MemoryStats,
    Output,
    Owner,
    OwnerUsage,
    PidsStats,
    PortInfo,
    PortUrl,
    ProcessInfo,
    Racer,
    RaceResult,
    Resources,
    Runtime,
    SandboxInfo,
    ShellInfo,
    Snapshot,
    Source,
    Stats,
    Template,
    Tool,
    ToolBlock,
    ToolResult,
)
from ._diff import Diff
from ._errors import (
    ApiError,
    ApplyConflict,
    ApplyFailed,
    CommandFailed,
    Conflicting,
    ConnectionFailed,
    ConnectionLost,
    DaemonNotStarted,
    Forbidden,
    InvalidRequest,
    LimitReached,
    NoSpace,
    NotFound,
    SandkeepError,
    ServerError,
    ToolConfigRefused,
    Unauthenticated,
    UnexpectedAnswer,
)
from ._local import stop_local_daemons
from ._sync.client import Client
from ._sync.execs import Exec
from ._sync.files import Files
from ._sync.processes import Process
from ._sync.sandbox import Sandbox
from ._sync.shells import Shell
from ._sync.terminal import Terminal
from ._sync.tools import Tools

__version__ = "0.1.0"

__all__ = [
    "ApiError",
    "Applied",
    "ApplyConflict",
    "ApplyFailed",
    "AsyncClient",
    "AsyncExec",
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncShell",
    "AsyncTerminal",
    "AsyncTools",
    "Client",
    "CommandFailed",
    "Conflict",
    "Conflicting",
    "ConnectionFailed",
    "ConnectionLost",
    "CpuStats",
    "DaemonNotStarted",
    "Diff",
    "DiffSide",
    "DiskStats",
    "Event",
    "Exec",
    "ExecInfo",
    "ExecResult",
    "FileChange",
    "FileEvent",
    "FileFacts",
    "FileInfo",
    "Files",
    "Forbidden",
    "ForkPoint",
    "InvalidRequest",
    "LimitReached",
    "LogEntry",
    "MemoryStats",
    "NoSpace",
    "NotFound",
    "Output",
    "Owner",
    "OwnerUsage",
    "PidsStats",
    "PortInfo",
    "PortUrl",
    "Process",
    "ProcessInfo",
    "RaceResult",
    "Racer",
    "Resources",
    "Runtime",
    "Sandbox",
    "SandboxInfo",
    "SandkeepError",
    "ServerError",
    "Shell",
    "ShellInfo",
    "Snapshot",
    "Source",
    "Stats",
    "Template",
    "Terminal",
    "Tool",
    "ToolBlock",
    "ToolConfigRefused",
    "ToolResult",
    "Tools",
    "Unauthenticated",
    "UnexpectedAnswer",
    "stop_local_daemons",
]
