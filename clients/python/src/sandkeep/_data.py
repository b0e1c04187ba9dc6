"""The answers of the daemon, as frozen dataclasses."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Resources:
    """The limits of a sandbox."""

    cpus: float
    memory_mb: int
    pids: int
    disk_mb: int | None = None
    disk_total_mb: int | None = None


@dataclass(frozen=True)
class Source:
    """Where the workspace of a sandbox came from, and where it is in the sandbox."""

    path: str
    dir: str | None = None
    git: str | None = None
    upload: str | None = None


@dataclass(frozen=True)
class ForkPoint:
    """The sandbox that a fork was made from, and the snapshot if one was named."""

    sandbox: str
    snapshot: str | None = None


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as it is at one moment."""

    id: str
    name: str
    """It was chosen, or it is derived from the id."""
    state: str
    """`creating`, `running`, `paused`, `stopped`, `destroying` or `failed`."""
    runtime: str
    template: str
    resources: Resources
    created_at: datetime
    last_activity_at: datetime
    workdir: str
    """Where commands and relative paths begin."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    on_timeout: str = "destroy"
    privilege: str = "none"
    snapshot_count: int = 0
    turn_count: int = 0
    timeout_secs: int | None = None
    idle_timeout_secs: int | None = None
    expires_at: datetime | None = None
    operation: str | None = None
    profile: str | None = None
    reason: str | None = None
    slot: str | None = None
    source: Source | None = None
    forked_from: ForkPoint | None = None
    space_used: int | None = None


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, and what it printed."""

    exec_id: str
    status: str
    """`exited`, `signaled`, `timed_out`, `canceled`, `oom_killed` or `lost`."""
    exit_code: int | None
    stdout: str
    """Bytes that are not UTF-8 are replaced; `stdout_raw` has them."""
    stderr: str
    duration: float
    """In seconds."""
    stdout_raw: bytes = field(repr=False, default=b"")
    stderr_raw: bytes = field(repr=False, default=b"")
    truncated: bool = False
    """Whether the middle of the output is missing here or at the daemon."""
    signal: int | None = None
    error: str | None = None
    shell: str | None = None
    """For a command of a shell: `kept`, `replaced` or `ended`."""

    @property
    def ok(self) -> bool:
        """Whether the command exited with 0."""
        return self.status == "exited" and self.exit_code == 0


@dataclass(frozen=True)
class ExecInfo:
    """A running or recent exec."""

    exec_id: str
    argv: list[str]
    status: str
    started_at: datetime
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    truncated: bool = False
    terminal: bool = False
    stdin: str = "none"
    ended_at: datetime | None = None
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: int | None = None
    cwd: str | None = None
    user: str | None = None
    pid: int | None = None
    shell_id: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Output:
    """A piece of output."""

    stream: str
    """`stdout` or `stderr`."""
    offset: int
    """The position of its first byte in the stream."""
    data: bytes

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")


@dataclass(frozen=True)
class ShellInfo:
    id: str
    shell: str
    state: str
    """`ready`, `busy` or `ended`."""
    created_at: datetime
    waiting: int = 0
    user: str | None = None


@dataclass(frozen=True)
class ProcessInfo:
    """A process as it is at one moment."""

    id: str
    status: str
    """`starting`, `running` or `exited`."""
    argv: list[str]
    user: str
    exec_id: str
    started_at: datetime
    exited_at: datetime | None = None
    port: int | None = None
    url: str | None = None
    address: str | None = None
    outcome: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    cwd: str | None = None
    last_output: str | None = None
    error: str | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0


@dataclass(frozen=True)
class PortInfo:
    port: int
    open: bool
    url: str
    address: str | None = None


@dataclass(frozen=True)
class PortUrl:
    url: str
    expires_at: datetime


@dataclass(frozen=True)
class FileInfo:
    """Metadata of a path in a sandbox."""

    path: str
    kind: str
    """`file`, `directory`, `symlink`, `fifo`, `socket` or `device`."""
    mode: str
    size: int
    uid: int
    gid: int
    modified_at: datetime
    path_b64: str | None = None
    target: str | None = None

    @property
    def raw_path(self) -> bytes:
        return os.fsencode(self.path) if self.path_b64 is None else base64.b64decode(self.path_b64)


@dataclass(frozen=True)
class FileEvent:
    """A change that a watch saw."""

    type: str
    """`watching`, `created`, `modified`, `attributes`, `deleted`, `gone`, `overflow` or `detached`."""
    path: str | None = None
    path_b64: str | None = None


@dataclass(frozen=True)
class Snapshot:
    id: str
    name: str
    created_at: datetime
    bytes: int
    turn: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Racer:
    """One of a race's forks."""

    racer: int
    """Its number, from 1."""
    sandbox: str
    """The id of the fork, which exists until the race has ended."""
    state: str
    """`waiting`, `patching`, `running`, `judging`, `judged`, or `out`: then `problem` says why it cannot win."""
    status: str | None = None
    """How its command ended."""
    exit_code: int | None = None
    duration_ms: int | None = None
    score: float | None = None
    problem: str | None = None
    output: str = ""
    """The end of what its command printed."""
    judge_output: str = ""


@dataclass(frozen=True)
class RaceResult:
    """How a race ended."""

    racers: list[Racer]
    winner: int | None = None
    """The number of the best racer; None if all are out, and then the sandbox is unchanged."""
    before: Snapshot | None = None
    """The turn that holds what the sandbox was before."""
    turn: Snapshot | None = None
    """The turn that holds the winner's files, which are the sandbox's now."""
    kept: str | None = None
    """The id of the winner's fork, if its files could not become the sandbox's."""
    problem: str | None = None
    """Why there is no `turn`."""

    @property
    def best(self) -> Racer | None:
        """The winner."""
        return None if self.winner is None else self.racers[self.winner - 1]


@dataclass(frozen=True)
class DiffSide:
    """A point in time of a sandbox: `base`, `now` or a snapshot."""

    kind: str
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class FileFacts:
    type: str
    mode: str
    uid: int
    gid: int
    bytes: int
    digest: str | None = None
    target: str | None = None
    target_b64: str | None = None


@dataclass(frozen=True)
class FileChange:
    """A file that differs between two points in time."""

    path: str
    kind: str
    """`added`, `modified`, `deleted`, `renamed` or `mode`."""
    before: FileFacts | None = None
    after: FileFacts | None = None
    differs: list[str] = field(default_factory=list[str])
    from_path: str | None = None
    path_b64: str | None = None
    from_path_b64: str | None = None
    text: str | None = None
    text_omitted: str | None = None


@dataclass(frozen=True)
class Changes:
    """The answer to a diff."""

    changes: list[FileChange]
    from_: DiffSide
    to: DiffSide
    frozen: bool = True
    truncated: bool = False
    unreadable: int = 0


@dataclass(frozen=True)
class PlanPath:
    path: str
    path_b64: str | None = None


@dataclass(frozen=True)
class PlanConflict(PlanPath):
    reason: str = ""


@dataclass(frozen=True)
class PlanAction(PlanPath):
    """A step that brings a change of a sandbox to a local directory."""

    action: str = ""
    mode: str | None = None
    digest: str | None = None
    source: str | None = None
    source_b64: str | None = None
    target: str | None = None
    target_b64: str | None = None


@dataclass(frozen=True)
class ApplyPlan:
    actions: list[PlanAction]
    conflicts: list[PlanConflict]
    kept: list[PlanPath]
    same: list[PlanPath]


@dataclass(frozen=True)
class Owner:
    organization: str
    user: str
    project: str


@dataclass(frozen=True)
class OwnerUsage:
    """What an owner used in a period, also in sandboxes that do not exist any more."""

    owner: Owner
    cpu_secs: float
    """Processor time, of all processors together."""
    memory_mb_hours: float
    """Memory in MiB, times the hours for which it was used."""
    disk_mb_hours: float
    network_bytes: int


@dataclass(frozen=True)
class LogEntry:
    """An event in the history of a sandbox."""

    at: datetime
    event: str
    """For example `created`, `exec`, `turn`, `rolled_back`, `forked`."""
    fields: dict[str, Any]
    """All fields of the event, as in the API."""


@dataclass(frozen=True)
class Event:
    """A change that the daemon recorded."""

    seq: int
    """Its number. Only this tells the order."""
    kind: str
    """For example `sandbox.created` or `exec.ended`; `gap` if events before the next one are not kept any more."""
    at: datetime | None = None
    sandbox: str | None = None
    owner: dict[str, str] = field(default_factory=dict[str, str])
    data: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class CpuStats:
    usage_secs: float
    limit_cpus: float | None = None


@dataclass(frozen=True)
class MemoryStats:
    used_bytes: int
    limit_bytes: int | None = None


@dataclass(frozen=True)
class PidsStats:
    current: int
    limit: int | None = None


@dataclass(frozen=True)
class DiskStats:
    used_bytes: int
    total_used_bytes: int
    limit_bytes: int | None = None
    total_limit_bytes: int | None = None
    limit_reached: str | None = None


@dataclass(frozen=True)
class Stats:
    """The resource usage of a sandbox. One that does not run has only a disk."""

    state: str
    cpu: CpuStats | None = None
    memory: MemoryStats | None = None
    pids: PidsStats | None = None
    disk: DiskStats | None = None


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    input_schema: dict[str, Any]
    tier: int
    annotations: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class ToolBlock:
    type: str
    text: str = ""


@dataclass(frozen=True)
class ToolResult:
    """The answer of a tool, for a model to read."""

    content: list[ToolBlock]
    is_error: bool
    duration_ms: int
    tier: int
    exit_code: int | None = None
    exec_id: str | None = None
    snapshot_id: str | None = None
    refusal: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(block.text for block in self.content)


@dataclass(frozen=True)
class Template:
    name: str
    bytes: int
    shared: bool
    source: str
    created_at: datetime | None = None
    digest: str | None = None
    layers: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Runtime:
    name: str
    usable: bool
    default: bool
    capabilities: dict[str, Any] = field(default_factory=dict[str, Any])
    reason: str | None = None


@dataclass(frozen=True)
class Conflict:
    """A file that changed both in the sandbox and in the local directory, and that stays as it is in the directory."""

    path: str
    reason: str


@dataclass(frozen=True)
class Applied:
    """The changes that `apply` made to a local directory, or would make."""

    written: list[str]
    removed: list[str]
    kept: list[str]
    """Directories that were kept because they have files that the sandbox did not have."""
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    ignored: int = 0
    """The number of changes that were left out because `.gitignore` files ignore them."""
    undone: bool = False
    """Whether an earlier `apply` to this directory had been interrupted; its changes were undone first."""
