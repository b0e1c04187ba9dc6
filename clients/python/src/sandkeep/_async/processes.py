"""Servers and other long-running processes, and their ports."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from .._data import Output, ProcessInfo
from .._output import Progress
from .._settings import segment
from .execs import follow_output
from .http import AsyncHttp


class AsyncProcess:
    """A process in a sandbox. `started` is what it was when it was started or found."""

    def __init__(self, http: AsyncHttp, base: str, started: ProcessInfo) -> None:
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

    async def info(self) -> ProcessInfo:
        return await self._http.read(ProcessInfo, self._path)

    async def logs(
        self, *, stdout_offset: int = 0, stderr_offset: int = 0, follow: bool = False
    ) -> AsyncGenerator[Output, None]:
        """The output from these offsets on. With `follow`, waits for more until the process ends."""
        progress = Progress(self.started.exec_id, stdout_offset, stderr_offset)
        async for output in follow_output(self._http, f"{self._path}/logs", progress, follow=follow):
            yield output

    async def signal(self, signal: str | int = "SIGTERM") -> None:
        await self._http.post(f"{self._path}/signal", {"signal": str(signal)})

    async def stop(self) -> None:
        """Sends SIGTERM to the process and its children, and after ten seconds SIGKILL to the rest."""
        await self._http.delete(self._path)
