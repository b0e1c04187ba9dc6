"""The bodies of requests, from arguments as Python has them."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

Command = str | Sequence[str]


def without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds * 1000), 1)


def whole_seconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(int(seconds), 1)


def instant(time: datetime | None) -> str | None:
    """A time without a zone is local time."""
    return None if time is None else time.astimezone().isoformat()


def command_fields(command: Command) -> dict[str, Any]:
    """A string is for the shell of the sandbox; a sequence is the program and its arguments."""
    return {"command": command} if isinstance(command, str) else {"argv": list(command)}


def shown(command: Command) -> str:
    return command if isinstance(command, str) else " ".join(command)


def stdin_fields(stdin: str | bytes | None) -> dict[str, Any]:
    if isinstance(stdin, bytes):
        return {"stdin_b64": base64.b64encode(stdin).decode()}
    return without_none(stdin=stdin)


class SandboxOptions(TypedDict, total=False):
    """The options of a new sandbox besides its source and its slot. `Sandbox.create` explains them."""

    name: str | None
    template: str | None
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    memory_mb: int | None
    cpus: float | None
    pids: int | None
    disk_mb: int | None
    disk_total_mb: int | None
    timeout: float | None
    idle_timeout: float | None
    on_timeout: str | None
    runtime: str | None
    profile: str | None
    project: str | None
    privilege: str | None
    max_snapshots: int | None
    snapshot_tool_calls: bool | None
    network: str | Sequence[str] | Mapping[str, Any] | None
    secrets: Mapping[str, Mapping[str, Any]] | None


_RESOURCES = ("memory_mb", "cpus", "pids", "disk_mb", "disk_total_mb")
_SECONDS = ("timeout", "idle_timeout")


def sandbox_fields(options: SandboxOptions, slot: str | None) -> dict[str, Any]:
    """The body of a create request."""
    fields: dict[str, Any] = {"slot": slot, **options}
    resources = without_none(**{name: fields.pop(name, None) for name in _RESOURCES})
    for name in _SECONDS:
        fields[f"{name}_secs"] = whole_seconds(fields.pop(name, None))
    for name in ("env", "labels"):
        if fields.get(name) is not None:
            fields[name] = dict(fields[name])
    fields["network"] = network_field(fields.get("network"))
    return without_none(**fields, resources=resources or None)


def network_field(network: str | Sequence[str] | Mapping[str, Any] | None) -> Any:
    """A word or a policy as it is; entries become a policy that allows them."""
    if network is None or isinstance(network, str):
        return network
    return dict(network) if isinstance(network, Mapping) else {"allow": list(network)}


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
