# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""Commands in a terminal, over a WebSocket."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import httpx

from .._errors import ConnectionLost, UnexpectedAnswer
from .._output import STATUSES
from .._websocket import BINARY, CLOSE, PING, PONG, TEXT, Frames, Handshake, Message, Stream, frame
from ._platform import network_stream
from .http import Http

_READ_BYTES = 64 * 1024


class Terminal:
    """A command in a terminal. One thread may read while another one writes."""

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._frames = Frames()
        self._messages: list[Message] = []
        self.exec_id: str | None = None
        self.ending: dict[str, Any] | None = None
        """How the command ended, in the words of the API, when the output is at its end."""

    def read(self) -> bytes:
        """The next piece of output; empty when the command has ended."""
        while self.ending is None:
            message = self._message()
            if message.opcode == BINARY and message.data:
                return message.data
            if message.opcode == TEXT:
                self._event(message.data)
            elif message.opcode == PING:
                self._send(PONG, message.data)
            elif message.opcode == CLOSE:
                raise ConnectionLost(self._url, "the terminal was closed")
        return b""

    def write(self, data: str | bytes) -> None:
        """Types."""
        self._send(BINARY, data.encode() if isinstance(data, str) else data)

    def resize(self, rows: int, cols: int) -> None:
        self._send(TEXT, json.dumps({"type": "resize", "rows": rows, "cols": cols}).encode())

    def signal(self, signal: str) -> None:
        self._send(TEXT, json.dumps({"type": "signal", "signal": signal}).encode())

    @property
    def exit_code(self) -> int | None:
        return None if self.ending is None else self.ending.get("exit_code")

    def _event(self, text: bytes) -> None:
        try:
            event: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise UnexpectedAnswer(self._url, f"an invalid event: {error}") from error
        if event.get("type") in STATUSES:
            self.ending = event
        elif event.get("type") == "detached":
            raise ConnectionLost(self._url, str(event.get("reason", "")))
        self.exec_id = event.get("exec_id", self.exec_id)

    def _message(self) -> Message:
        while not self._messages:
            try:
                data = self._stream.read(_READ_BYTES)
            except OSError as error:
                raise ConnectionLost(self._url, str(error)) from error
            if not data:
                raise ConnectionLost(self._url, "the terminal was disconnected")
            try:
                self._messages = self._frames.feed(data)
            except ValueError as error:
                raise UnexpectedAnswer(self._url, str(error)) from error
        return self._messages.pop(0)

    def _send(self, opcode: int, data: bytes) -> None:
        try:
            self._stream.write(frame(opcode, data))
        except OSError as error:
            raise ConnectionLost(self._url, str(error)) from error


@contextmanager
def open_terminal(http: Http, path: str, query: dict[str, Any]) -> Generator[Terminal, None, None]:
    """Connects to a terminal, and disconnects at the end of the block."""
    handshake = Handshake()
    url = http.settings.url
    try:
        with http.stream("GET", path, query=query, headers=handshake.headers()) as response:
            accepted = handshake.accepts(response.headers.get("sec-websocket-accept"))
            if response.status_code != 101 or not accepted:
                raise UnexpectedAnswer(url, "it is no WebSocket", response.status_code)
            yield Terminal(network_stream(response), url)
    except httpx.TransportError as error:
        raise ConnectionLost(url, str(error) or type(error).__name__) from error
