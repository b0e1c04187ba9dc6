"""Bytes to lines.

Only `\\n` ends a line: JSON text may contain other characters that Python takes for line ends.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, cast

LINE_MAX_BYTES = 64 * 1024 * 1024


class JsonLines:
    """Reads a stream of NDJSON."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The objects that are complete now. Raises ValueError if the stream is not NDJSON."""
        searched = len(self._pending)
        self._pending += data
        end = self._pending.rfind(b"\n", searched)
        if end < 0:
            if len(self._pending) > LINE_MAX_BYTES:
                raise ValueError("a line is too long")
            return []
        complete = bytes(self._pending[:end])
        del self._pending[: end + 1]
        values = [json.loads(line) for line in complete.split(b"\n") if line.strip()]
        if not all(isinstance(value, dict) for value in values):
            raise ValueError("a line is not an object")
        return cast("list[dict[str, Any]]", values)


class TextLines:
    """Splits output into lines for a callback, which gets them without their ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    def feed(self, data: bytes) -> list[str]:
        *lines, self._pending = (self._pending + self._decoder.decode(data)).split("\n")
        return [line.removesuffix("\r") for line in lines]

    def finish(self) -> list[str]:
        """The last line, if it has no end."""
        rest = self._pending + self._decoder.decode(b"", final=True)
        self._pending = ""
        return [rest] if rest else []
