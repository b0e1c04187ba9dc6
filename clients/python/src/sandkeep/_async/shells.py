"""Shells that keep directory, variables and functions between commands."""

from __future__ import annotations

from .._data import ExecResult, ShellInfo
from .._output import OnLine
from .._requests import milliseconds, stdin_fields, without_none
from .._settings import segment
from .execs import CAPTURE_BYTES, run_command
from .http import AsyncHttp


class AsyncShell:
    """A shell in a sandbox. As a context manager it is closed at the end."""

    def __init__(self, http: AsyncHttp, base: str, shell_id: str) -> None:
        self._http = http
        self._base = base
        self._path = f"{base}/shells/{segment(shell_id)}"
        self.id: str = shell_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def __aenter__(self) -> AsyncShell:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def info(self) -> ShellInfo:
        return await self._http.read(ShellInfo, self._path)

    async def run(
        self,
        command: str,
        *,
        on_stdout: OnLine | None = None,
        on_stderr: OnLine | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
        capture_bytes: int = CAPTURE_BYTES,
    ) -> ExecResult:
        """Runs a command after any earlier ones. `result.shell` is `kept`, `replaced` or `ended` after a timeout."""
        body = without_none(command=command, timeout_ms=milliseconds(timeout), **stdin_fields(stdin))
        return await run_command(
            self._http,
            self._base,
            f"{self._path}/execs",
            body,
            command=command,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            check=check,
            capture_bytes=capture_bytes,
        )

    async def close(self) -> None:
        """Closes the shell and kills every process in it."""
        await self._http.delete(self._path)
