"""Reading the output of an exec, whatever becomes of the connection.

```
POST …/execs?stream ──events──▶ lost? ──GET …/output at the offsets──▶ events ──▶ … ──▶ the outcome
```

`Progress` remembers the offset of each stream. An event counts when its whole line has arrived, so a lost connection
neither loses nor repeats a byte. This file does no IO: the async and the sync client use the same code.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from ._data import ExecResult, Output
from ._lines import TextLines

STATUSES = frozenset({"exited", "signaled", "timed_out", "canceled", "oom_killed", "lost"})
OnLine = Callable[[str], None]


class Progress:
    """The part of the output that has arrived."""

    def __init__(self, exec_id: str | None = None, stdout_offset: int = 0, stderr_offset: int = 0) -> None:
        self.exec_id = exec_id
        self.offsets = {"stdout": stdout_offset, "stderr": stderr_offset}
        self.dropped = False
        self.ending: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> Output | None:
        """Reads an event. Raises ValueError if it is invalid."""
        kind = event.get("type")
        if kind in ("stdout", "stderr"):
            return self._output(kind, int(event["offset"]), _data(event))
        if kind == "gap":
            self.dropped = True
            self.offsets[event["stream"]] = max(self.offsets[event["stream"]], int(event["to"]))
        elif kind == "started":
            self.exec_id = str(event["exec_id"])
        elif kind in STATUSES:
            self.ending = event
        return None

    def query(self) -> dict[str, Any]:
        """How to ask for the rest."""
        return {
            "stdout_offset": self.offsets["stdout"],
            "stderr_offset": self.offsets["stderr"],
            "follow": True,
        }

    def _output(self, stream: str, offset: int, data: bytes) -> Output | None:
        known = self.offsets[stream] - offset
        if known > 0:
            data = data[known:]
            offset += known
        if not data:
            return None
        self.offsets[stream] = offset + len(data)
        return Output(stream, offset, data)


def _data(event: dict[str, Any]) -> bytes:
    if "data_b64" in event:
        return base64.b64decode(event["data_b64"])
    return str(event.get("data", "")).encode()


class Capture:
    """The first and the last part of one stream."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = max(limit_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.omitted = 0

    def add(self, data: bytes) -> None:
        room = max(self._half - len(self._head), 0)
        self._head += data[:room]
        self._tail += data[room:]
        # Cut now and then, not for every piece.
        if len(self._tail) > 2 * self._half:
            self._cut()

    def value(self) -> bytes:
        self._cut()
        return bytes(self._head + self._tail)

    def _cut(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self.omitted += excess


class Collector:
    """Collects the output of an exec, and calls back for each line."""

    def __init__(self, on_stdout: OnLine | None, on_stderr: OnLine | None, capture_bytes: int) -> None:
        self._captured = {"stdout": Capture(capture_bytes), "stderr": Capture(capture_bytes)}
        given = (("stdout", on_stdout), ("stderr", on_stderr))
        self._lines = {stream: (call, TextLines()) for stream, call in given if call is not None}

    def add(self, output: Output) -> None:
        self._captured[output.stream].add(output.data)
        if output.stream in self._lines:
            call, lines = self._lines[output.stream]
            for line in lines.feed(output.data):
                call(line)

    def finish(self, progress: Progress) -> ExecResult:
        for call, lines in self._lines.values():
            for line in lines.finish():
                call(line)
        ending = progress.ending or {}
        stdout, stderr = (self._captured[stream].value() for stream in ("stdout", "stderr"))
        omitted = any(captured.omitted for captured in self._captured.values())
        return ExecResult(
            exec_id=str(ending.get("exec_id", progress.exec_id)),
            status=str(ending["type"]),
            exit_code=ending.get("exit_code"),
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            duration=ending.get("duration_ms", 0) / 1000,
            stdout_raw=stdout,
            stderr_raw=stderr,
            truncated=omitted or progress.dropped or bool(ending.get("truncated")),
            signal=ending.get("signal"),
            error=ending.get("error"),
            shell=ending.get("shell"),
        )
