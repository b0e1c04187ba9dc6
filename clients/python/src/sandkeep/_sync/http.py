# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""Requests to the daemon: sent, repeated where that is safe, and their failures as exceptions."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import httpx

from .._decode import decode
from .._errors import ApiError, ConnectionLost, NotFound, UnexpectedAnswer, refusal
from .._lines import JsonLines
from .._retry import Attempts, Repeat
from .._settings import Settings
from ._platform import open_http, sleep

T = TypeVar("T")

NDJSON = {"accept": "application/x-ndjson"}
_PROBLEM_MAX_BYTES = 1024 * 1024


class Http:
    """The connections to one daemon."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._client = open_http(settings)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str, /, **query: Any) -> Any:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, repeat: Repeat = Repeat.NO) -> Any:
        return self.call("POST", path, body={} if body is None else body, repeat=repeat)

    def post_once(self, path: str, body: Any) -> Any:
        """A POST that is carried out once however often it is sent."""
        key = {"idempotency-key": uuid4().hex}
        return self.call("POST", path, body=body, headers=key, repeat=Repeat.YES)

    def delete(self, path: str, **query: Any) -> None:
        self.call("DELETE", path, query=query, repeat=Repeat.YES)

    def read(self, kind: type[T], path: str, /, **query: Any) -> T:
        return self.decode(kind, self.get(path, **query))

    def items(self, kind: type[T], path: str, field: str = "items", **query: Any) -> list[T]:
        """All pages of a list."""
        found: list[T] = []
        cursor: str | None = None
        while True:
            page = self.get(path, **query, cursor=cursor)
            found += [self.decode(kind, item) for item in page[field]]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found

    def decode(self, kind: type[T], value: Any) -> T:
        try:
            return decode(kind, value)
        except ValueError as error:
            raise UnexpectedAnswer(self.settings.url, str(error)) from error

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | str | None = None,
        body: Any = None,
        content: Callable[[], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: Repeat | None = None,
    ) -> Any:
        """One request, and its answer from JSON; None if the answer is empty."""
        response = self.send(
            method, path, query=query, body=body, content=content, headers=headers, repeat=repeat
        )
        if not response.content:
            return None
        try:
            return response.json()
        except ValueError as error:
            raise UnexpectedAnswer(self.settings.url, str(error), response.status_code) from error

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | str | None = None,
        body: Any = None,
        content: Callable[[], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        repeat: Repeat | None = None,
    ) -> httpx.Response:
        """One request. `content` is called for each attempt, and answers the bytes to send."""
        if repeat is None:
            repeat = Repeat.YES if method == "GET" else Repeat.NO
        attempts = Attempts(self.settings.url, repeat, self.settings.retry_secs)
        while True:
            request = self._request(method, path, query, body, content, headers)
            try:
                response = self._client.send(request)
            except httpx.TransportError as error:
                sleep(attempts.after_transport_error(error))
                continue
            if response.is_success:
                return response
            refused = self._refusal(response)
            if isinstance(refused, NotFound) and method == "DELETE" and attempts.lost:
                # An earlier attempt deleted it, and its answer was lost.
                return response
            sleep(attempts.after_refusal(refused))

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | str | None = None,
        body: Any = None,
        content: Callable[[], Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Generator[httpx.Response, None, None]:
        """One attempt at a request whose answer is read piece by piece. Transport errors are the caller's."""
        request = self._request(method, path, query, body, content, headers)
        response = self._client.send(request, stream=True)
        try:
            if not response.is_success and response.status_code != 101:
                response.read()
                raise self._refusal(response)
            yield response
        finally:
            response.close()

    def events(
        self, method: str, path: str, *, query: Mapping[str, Any] | str | None = None, body: Any = None
    ) -> Generator[dict[str, Any], None, None]:
        """The objects of an NDJSON answer, once. A lost connection is ConnectionLost."""
        lines = JsonLines()
        try:
            with self.stream(method, path, query=query, body=body, headers=NDJSON) as response:
                for data in response.iter_bytes():
                    for event in self.parse(lines, data):
                        yield event
        except httpx.TransportError as error:
            raise ConnectionLost(self.settings.url, str(error) or type(error).__name__) from error

    def parse(self, lines: JsonLines, data: bytes) -> list[dict[str, Any]]:
        try:
            return lines.feed(data)
        except ValueError as error:
            raise UnexpectedAnswer(self.settings.url, str(error)) from error

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | str | None,
        body: Any,
        content: Callable[[], Any] | None,
        headers: Mapping[str, str] | None,
    ) -> httpx.Request:
        sent = dict(headers or {})
        if content is not None:
            sent.setdefault("content-type", "application/octet-stream")
        if isinstance(query, str):
            path, query = f"{path}?{query}", None
        elif query is not None:
            query = {name: _query_value(value) for name, value in query.items() if value is not None}
        return self._client.build_request(
            method,
            path,
            params=query or None,
            json=body,
            content=None if content is None else content(),
            headers=sent,
        )

    def _refusal(self, response: httpx.Response) -> ApiError | UnexpectedAnswer:
        status = response.status_code
        try:
            problem = response.json() if len(response.content) <= _PROBLEM_MAX_BYTES else None
        except ValueError:
            problem = None
        found = refusal(problem, status, response.headers.get("retry-after"))
        return found or UnexpectedAnswer(self.settings.url, f"status {status}", status)


def _query_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
