"""A small client side of RFC 6455 over a connection that httpx has upgraded. It does no IO by itself."""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from dataclasses import dataclass
from typing import Protocol

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MESSAGE_MAX_BYTES = 16 * 1024 * 1024

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


class AsyncStream(Protocol):
    """A connection, as httpcore has it."""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes: ...

    async def write(self, buffer: bytes, timeout: float | None = None) -> None: ...


class Stream(Protocol):
    """The same without `await`."""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes: ...

    def write(self, buffer: bytes, timeout: float | None = None) -> None: ...


class Handshake:
    def __init__(self) -> None:
        self._key = base64.b64encode(os.urandom(16))

    def headers(self) -> dict[str, str]:
        return {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": self._key.decode(),
        }

    def accepts(self, answer: str | None) -> bool:
        return answer == base64.b64encode(hashlib.sha1(self._key + _MAGIC).digest()).decode()


@dataclass(frozen=True)
class Message:
    opcode: int
    data: bytes


def frame(opcode: int, data: bytes) -> bytes:
    """One masked frame."""
    length = len(data)
    if length < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
    elif length < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
    mask = os.urandom(4)
    return head + mask + _masked(data, mask)


def _masked(data: bytes, mask: bytes) -> bytes:
    whole = (mask * (len(data) // 4 + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(whole, "big")).to_bytes(len(data), "big")


class Frames:
    """Bytes from the server to messages."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._parts = bytearray()
        self._opcode = BINARY

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are complete now. Raises ValueError if the bytes are not of a WebSocket."""
        self._pending += data
        messages: list[Message] = []
        while (message := self._next()) is not None:
            if message.opcode in (CLOSE, PING, PONG) or message.data or message.opcode != CONTINUATION:
                messages.append(message)
        return messages

    def _next(self) -> Message | None:
        if len(self._pending) < 2:
            return None
        first, second = self._pending[0], self._pending[1]
        length, start = second & 0x7F, 2
        if second & 0x80:
            raise ValueError("the server masked a frame")
        if length >= 126:
            size = 2 if length == 126 else 8
            start += size
            if len(self._pending) < start:
                return None
            length = int.from_bytes(self._pending[2:start], "big")
        if length + len(self._parts) > _MESSAGE_MAX_BYTES:
            raise ValueError("a message is too long")
        if len(self._pending) < start + length:
            return None
        data = bytes(self._pending[start : start + length])
        del self._pending[: start + length]
        return self._assemble(first & 0x0F, bool(first & 0x80), data)

    def _assemble(self, opcode: int, final: bool, data: bytes) -> Message:
        if opcode >= CLOSE:
            return Message(opcode, data)
        if opcode != CONTINUATION:
            self._opcode = opcode
            self._parts.clear()
        self._parts += data
        if not final:
            # Dropped by `feed`: the message is not complete.
            return Message(CONTINUATION, b"")
        whole = Message(self._opcode, bytes(self._parts))
        self._parts.clear()
        return whole
