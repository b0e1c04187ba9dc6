"""The few things that differ between the async and the sync client. This file is written by hand."""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, ParamSpec, TypeVar, cast

import httpx

from .._settings import Settings
from .._websocket import AsyncStream

__all__ = ["blocking", "file_content", "network_stream", "open_http", "sleep"]

CHUNK_BYTES = 256 * 1024
P = ParamSpec("P")
T = TypeVar("T")


def open_http(settings: Settings) -> httpx.AsyncClient:
    verify = settings.verify()
    return httpx.AsyncClient(
        base_url=settings.url,
        headers=settings.headers(),
        timeout=settings.timeout(),
        transport=httpx.AsyncHTTPTransport(verify=verify, socket_options=settings.socket_options(), limits=_limits()),
        trust_env=False,
    )


async def blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Does work that reads or writes local files, in a thread."""
    return await asyncio.to_thread(work, *args, **kwargs)


def network_stream(response: httpx.Response) -> AsyncStream:
    """The connection of a response with the status 101."""
    return cast("Any", response.extensions)["network_stream"]


async def file_content(file: IO[bytes]) -> AsyncIterator[bytes]:
    """A file from its beginning, as the body of a request."""
    await blocking(file.seek, 0)
    while data := await blocking(file.read, CHUNK_BYTES):
        yield data


def _limits() -> httpx.Limits:
    return httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=5)
