"""The few things that differ between the async and the sync client. This file is written by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import sleep
from typing import IO, Any, ParamSpec, TypeVar, cast

import httpx

from .._settings import Settings
from .._websocket import Stream

__all__ = ["blocking", "file_content", "network_stream", "open_http", "sleep"]

CHUNK_BYTES = 256 * 1024
P = ParamSpec("P")
T = TypeVar("T")


def open_http(settings: Settings) -> httpx.Client:
    verify = settings.verify()
    return httpx.Client(
        base_url=settings.url,
        headers=settings.headers(),
        timeout=settings.timeout(),
        transport=httpx.HTTPTransport(verify=verify, socket_options=settings.socket_options(), limits=_limits()),
        trust_env=False,
    )


def blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does work that reads or writes local files."""
    return work(*args, **kwargs)


def network_stream(response: httpx.Response) -> Stream:
    """The connection of a response with the status 101."""
    return cast("Any", response.extensions)["network_stream"]


def file_content(file: IO[bytes]) -> Iterator[bytes]:
    """A file from its beginning, as the body of a request."""
    blocking(file.seek, 0)
    while data := blocking(file.read, CHUNK_BYTES):
        yield data


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=5)
