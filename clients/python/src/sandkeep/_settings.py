"""How a daemon is reached: its URL, its certificates and the API key."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import quote

import httpx

from ._errors import SandkeepError

URL_DEFAULT = "http://127.0.0.1:4500"
CONNECT_SECS = 10.0
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))


@dataclass(frozen=True)
class Settings:
    url: str
    key: str | None = field(repr=False, default=None)
    ca_file: str | None = None
    retry_secs: float = 30.0
    """The longest time that is spent on repeating one request, or on reconnecting to one stream."""

    @classmethod
    def resolve(cls, url: str | None, key: str | None, ca_file: str | None, retry_secs: float) -> Settings:
        """Fills in from the environment what is not given, like the command line."""
        url = url or os.environ.get("SANDKEEP_URL") or URL_DEFAULT
        if not url.startswith(("http://", "https://")):
            raise SandkeepError(f"{url!r} is not an http or https URL", code="invalid_url")
        return cls(
            url.rstrip("/"),
            key or os.environ.get("SANDKEEP_API_KEY") or None,
            ca_file or os.environ.get("SANDKEEP_CA_FILE") or None,
            retry_secs,
        )

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key.strip()}"} if self.key else {}

    def verify(self) -> ssl.SSLContext | bool:
        if not self.url.startswith("https://"):
            return False
        return ssl.create_default_context(cafile=self.ca_file)

    def timeout(self) -> httpx.Timeout:
        """A command may run for hours without output, so only connecting is limited. Keepalive finds dead peers."""
        return httpx.Timeout(None, connect=CONNECT_SECS)

    def socket_options(self) -> list[tuple[int, int, int]]:
        options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
        return options


def segment(text: str) -> str:
    """A part of a path of the API."""
    return quote(text, safe="")


def path_query(path: str | bytes) -> str:
    """A path as a query; its bytes need not be UTF-8."""
    return "path=" + quote(os.fsencode(path), safe="/")
