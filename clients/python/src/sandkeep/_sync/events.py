# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""Events of a daemon, across lost connections."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import httpx

from .._data import Event
from .._errors import ApiError
from .._lines import JsonLines
from .._retry import Attempts, Repeat
from ._platform import sleep
from .execs import RECONNECT_SECS
from .http import NDJSON, Http

_PATH = "/api/v1/events"


def read_events(http: Http, query: dict[str, Any]) -> Generator[Event, None, None]:
    """The events that are kept, page by page."""
    while True:
        page = http.get(_PATH, **query, limit=1000)
        if page.get("gap") is not None:
            yield _gap(page["gap"])
        for item in page["items"]:
            yield http.decode(Event, item)
        query["after"] = page["next"]
        if not page["more"]:
            return


def follow_events(http: Http, query: dict[str, Any]) -> Generator[Event, None, None]:
    """Events as they happen. Reconnects after the last one that arrived."""
    attempts = Attempts(http.settings.url, Repeat.YES, RECONNECT_SECS, RECONNECT_SECS)
    while True:
        lines = JsonLines()
        try:
            with http.stream("GET", _PATH, query={**query, "follow": True}, headers=NDJSON) as response:
                for data in response.iter_bytes():
                    attempts.restart()
                    for line in http.parse(lines, data):
                        if line.get("kind") == "heartbeat":
                            query["after"] = line["data"]["seq"]
                            continue
                        event = _gap(line["data"]) if line.get("kind") == "gap" else http.decode(Event, line)
                        query["after"] = event.seq
                        yield event
            sleep(attempts.after_transport_error(httpx.ReadError("the stream ended")))
        except ApiError as refused:
            sleep(attempts.after_refusal(refused))
        except httpx.TransportError as error:
            sleep(attempts.after_transport_error(error))


def _gap(data: dict[str, Any]) -> Event:
    return Event(int(data["oldest"]) - 1, "gap", data=data)
