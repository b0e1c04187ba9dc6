# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""Running commands."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import httpx

from .._data import ExecInfo, ExecResult, Output
from .._errors import ApiError, CommandFailed, ConnectionLost, UnexpectedAnswer
from .._lines import JsonLines
from .._output import Collector, OnLine, Progress
from .._retry import Attempts, Repeat
from .._settings import segment
from ._platform import sleep
from .http import NDJSON, Http

CAPTURE_BYTES = 16 * 1024 * 1024
RECONNECT_SECS = 60.0


class Exec:
    """A command that was started. It continues when this client disconnects."""

    def __init__(self, http: Http, base: str, exec_id: str, command: str = "") -> None:
        self._http = http
        self._path = f"{base}/execs/{segment(exec_id)}"
        self._command = command
        self.id: str = exec_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def info(self) -> ExecInfo:
        return self._http.read(ExecInfo, self._path)

    def output(self, *, stdout_offset: int = 0, stderr_offset: int = 0, follow: bool = True) -> Generator[Output, None, None]:
        """The output from these offsets on. With `follow`, waits for more until the command ends."""
        progress = Progress(self.id, stdout_offset, stderr_offset)
        for output in follow_output(self._http, f"{self._path}/output", progress, follow=follow):
            yield output

    def wait(
        self,
        *,
        on_stdout: OnLine | None = None,
        on_stderr: OnLine | None = None,
        check: bool = False,
        capture_bytes: int = CAPTURE_BYTES,
    ) -> ExecResult:
        """Waits for the end of the command. All of its output is read, from the beginning."""
        collector = Collector(on_stdout, on_stderr, capture_bytes)
        progress = Progress(self.id)
        with closing(follow_output(self._http, f"{self._path}/output", progress)) as outputs:
            for output in outputs:
                collector.add(output)
        return _checked(collector.finish(progress), self._command, check)

    def write(self, data: str | bytes, *, close: bool = False) -> None:
        """Sends bytes to the command's stdin, which must have been started with `stdin_open=True`."""
        raw = data.encode() if isinstance(data, str) else data
        self._http.send("POST", f"{self._path}/stdin", query={"close": close}, content=lambda: raw)

    def close_stdin(self) -> None:
        self.write(b"", close=True)

    def signal(self, signal: str | int) -> None:
        """Sends a signal, such as `SIGINT`, to the first process of the command."""
        self._http.post(f"{self._path}/signal", {"signal": str(signal)})

    def kill(self) -> None:
        """Kills the command and every process it started. No effect if it has ended."""
        self._http.delete(self._path)


def run_command(
    http: Http,
    base: str,
    path: str,
    body: dict[str, Any],
    *,
    command: str,
    on_stdout: OnLine | None,
    on_stderr: OnLine | None,
    check: bool,
    capture_bytes: int,
) -> ExecResult:
    """Starts a command, follows its output and waits for its end."""
    collector = Collector(on_stdout, on_stderr, capture_bytes)
    progress = Progress()
    with closing(_started(http, path, body, progress)) as outputs:
        for output in outputs:
            collector.add(output)
    if progress.ending is None:
        if progress.exec_id is None:
            raise ConnectionLost(http.settings.url, "the command may have been started")
        rest = f"{base}/execs/{segment(progress.exec_id)}/output"
        with closing(follow_output(http, rest, progress)) as outputs:
            for output in outputs:
                collector.add(output)
    return _checked(collector.finish(progress), command, check)


def _started(http: Http, path: str, body: dict[str, Any], progress: Progress) -> Generator[Output, None, None]:
    """The output for as long as the first connection lasts."""
    attempts = Attempts(http.settings.url, Repeat.NO, http.settings.retry_secs)
    lines = JsonLines()
    while progress.exec_id is None:
        try:
            with http.stream("POST", path, query={"stream": True}, body=body, headers=NDJSON) as response:
                for data in response.iter_bytes():
                    for output in _outputs(http, lines, data, progress):
                        yield output
            return
        except ApiError as refused:
            sleep(attempts.after_refusal(refused))
        except httpx.TransportError as error:
            if progress.exec_id is None:
                sleep(attempts.after_transport_error(error))


def follow_output(
    http: Http, path: str, progress: Progress, *, follow: bool = True
) -> Generator[Output, None, None]:
    """The output from where `progress` is. Reconnects until the command has ended."""
    attempts = Attempts(http.settings.url, Repeat.YES, RECONNECT_SECS, RECONNECT_SECS)
    while progress.ending is None:
        lines = JsonLines()
        query = {**progress.query(), "follow": follow}
        try:
            with http.stream("GET", path, query=query, headers=NDJSON) as response:
                for data in response.iter_bytes():
                    for output in _outputs(http, lines, data, progress):
                        attempts.restart()
                        yield output
            if not follow:
                return
            if progress.ending is None:
                # The daemon ends its streams when it shuts down.
                sleep(attempts.after_transport_error(httpx.ReadError("the stream ended")))
        except ApiError as refused:
            sleep(attempts.after_refusal(refused))
        except httpx.TransportError as error:
            sleep(attempts.after_transport_error(error))


def _outputs(http: Http, lines: JsonLines, data: bytes, progress: Progress) -> list[Output]:
    found: list[Output] = []
    for event in http.parse(lines, data):
        try:
            output = progress.take(event)
        except (KeyError, TypeError, ValueError) as error:
            raise UnexpectedAnswer(http.settings.url, f"an invalid event: {error}") from error
        if output is not None:
            found.append(output)
    return found


def _checked(result: ExecResult, command: str, check: bool) -> ExecResult:
    if check and not result.ok:
        raise CommandFailed(command, result)
    return result
