"""The bodies of requests, from arguments as Python has them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from typing import Any

Command = str | Sequence[str]


def without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds * 1000), 1)


def whole_seconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds), 1)


def command_fields(command: Command) -> dict[str, Any]:
    """A string is for the shell of the sandbox; a sequence is the program and its arguments."""
    return {"command": command} if isinstance(command, str) else {"argv": list(command)}


def shown(command: Command) -> str:
    return command if isinstance(command, str) else " ".join(command)


def stdin_fields(stdin: str | bytes | None) -> dict[str, Any]:
    if isinstance(stdin, bytes):
        return {"stdin_b64": base64.b64encode(stdin).decode()}
    return without_none(stdin=stdin)


def sandbox_fields(
    *,
    template: str | None = None,
    env: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    memory_mb: int | None = None,
    cpus: float | None = None,
    pids: int | None = None,
    disk_mb: int | None = None,
    disk_total_mb: int | None = None,
    timeout: float | None = None,
    idle_timeout: float | None = None,
    on_timeout: str | None = None,
    runtime: str | None = None,
    profile: str | None = None,
    project: str | None = None,
    privilege: str | None = None,
    slot: str | None = None,
    max_snapshots: int | None = None,
    snapshot_tool_calls: bool | None = None,
) -> dict[str, Any]:
    resources = without_none(
        memory_mb=memory_mb, cpus=cpus, pids=pids, disk_mb=disk_mb, disk_total_mb=disk_total_mb
    )
    return without_none(
        template=template,
        env=None if env is None else dict(env),
        labels=None if labels is None else dict(labels),
        resources=resources or None,
        timeout_secs=whole_seconds(timeout),
        idle_timeout_secs=whole_seconds(idle_timeout),
        on_timeout=on_timeout,
        runtime=runtime,
        profile=profile,
        project=project,
        privilege=privilege,
        slot=slot,
        max_snapshots=max_snapshots,
        snapshot_tool_calls=snapshot_tool_calls,
    )


def is_repository(source: str | os.PathLike[str]) -> bool:
    return isinstance(source, str) and "://" in source


def mode_text(mode: int | None) -> str | None:
    return None if mode is None else f"{mode:04o}"


def path_field(path: str | bytes, name: str = "path") -> dict[str, Any]:
    """A path in a JSON body; one that is not UTF-8 goes as base64."""
    raw = os.fsencode(path)
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(raw).decode()}
