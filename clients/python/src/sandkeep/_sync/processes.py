# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""Servers and other long-running processes, and their ports."""

from __future__ import annotations

from collections.abc import Generator

from .._data import Output, ProcessInfo
from .._output import Progress
from .._settings import segment
from .execs import follow_output
from .http import Http


class Process:
    """A process in a sandbox. `started` is what it was when it was started or found."""

    def __init__(self, http: Http, base: str, started: ProcessInfo) -> None:
        self._http = http
        self._path = f"{base}/processes/{segment(started.id)}"
        self.started: ProcessInfo = started
        self.id: str = started.id
        self.url: str | None = started.url
        """Its port for browsers and HTTP clients, if it has one."""
        self.address: str | None = started.address
        """The `host:port` on the daemon's machine that leads to its port, if there is one."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def info(self) -> ProcessInfo:
        return self._http.read(ProcessInfo, self._path)

    def logs(
        self, *, stdout_offset: int = 0, stderr_offset: int = 0, follow: bool = False
    ) -> Generator[Output, None, None]:
        """The output from these offsets on. With `follow`, waits for more until the process ends."""
        progress = Progress(self.started.exec_id, stdout_offset, stderr_offset)
        for output in follow_output(self._http, f"{self._path}/logs", progress, follow=follow):
            yield output

    def signal(self, signal: str | int = "SIGTERM") -> None:
        self._http.post(f"{self._path}/signal", {"signal": str(signal)})

    def stop(self) -> None:
        """Sends SIGTERM to the process and its children, and after ten seconds SIGKILL to the rest."""
        self._http.delete(self._path)
