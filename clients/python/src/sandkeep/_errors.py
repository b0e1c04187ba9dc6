"""Every exception of this package.

All of them are a `SandkeepError` with the same attributes, whether the daemon refused a request or the request never
arrived: `code` is stable and for programs, `detail` and `remediation` are for people.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ._data import Applied, Conflict, ExecResult


class SandkeepError(Exception):
    """The base of all exceptions of this package."""

    def __init__(
        self,
        detail: str,
        *,
        code: str,
        title: str = "",
        remediation: str = "",
        retryable: bool = False,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code: str = code
        """A stable name of the error. docs/reference/errors.md lists those of the daemon."""
        self.title: str = title or detail
        """The error in general."""
        self.detail: str = detail
        """The error in this case."""
        self.remediation: str = remediation
        """What to do about it."""
        self.retryable: bool = retryable
        """Whether the same request may succeed later."""
        self.status: int | None = status
        """The HTTP status of the answer; None if there was no answer."""

    def __str__(self) -> str:
        return f"{self.detail} ({self.code}): {self.remediation}" if self.remediation else f"{self.detail} ({self.code})"


class ApiError(SandkeepError):
    """The daemon refused a request."""

    retry_after_secs: float | None = None
    """The time after which the daemon asks to try again."""


class InvalidRequest(ApiError):
    """The request is wrong (400, 405, 413, 415, 416, 422, 426)."""


class Unauthenticated(ApiError):
    """The API key is missing or invalid (401)."""


class Forbidden(ApiError):
    """The API key does not allow this (403)."""


class NotFound(ApiError):
    """The sandbox, or a thing in it, does not exist (404)."""


class Conflicting(ApiError):
    """The state of the sandbox does not allow this (409)."""


class LimitReached(ApiError):
    """A quota, a rate limit or another limit is reached (429)."""


class NoSpace(ApiError):
    """A disk is full (507)."""


class ServerError(ApiError):
    """The daemon or the sandbox failed (500, 502, 503, 504)."""


class ConnectionFailed(SandkeepError):
    """No daemon answers at the URL. The request was not sent."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"no daemon answers at {url}: {reason}",
            code="connection_failed",
            title="no daemon answers",
            remediation="start one with `sandkeep serve`, set SANDKEEP_URL, or use local=True",
            retryable=True,
        )


class ConnectionLost(SandkeepError):
    """The connection ended before the answer. The request may have been carried out."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            f"the connection to {url} ended before the answer was complete: {reason}",
            code="connection_lost",
            title="the connection was lost",
            remediation="check what the request changed before you repeat it",
        )


class UnexpectedAnswer(SandkeepError):
    """The server does not speak Sandkeep's API."""

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        super().__init__(
            f"the server at {url} sent an unexpected answer: {reason}",
            code="unexpected_answer",
            remediation="check that the URL is that of a Sandkeep daemon",
            status=status,
        )


class CommandFailed(SandkeepError):
    """A command that was run with `check=True` did not exit with 0."""

    def __init__(self, command: str, result: ExecResult) -> None:
        ending = f"exited with {result.exit_code}" if result.status == "exited" else f"ended: {result.status}"
        last = (result.stderr or result.stdout).rstrip()[-2000:]
        super().__init__(
            f"{command!r} {ending}" + (f"\n{last}" if last else ""),
            code="command_failed",
            title="the command failed",
        )
        self.result: ExecResult = result


class ApplyConflict(SandkeepError):
    """Files changed both in the sandbox and in the local directory. They stay as they are in the directory."""

    def __init__(self, applied: Applied) -> None:
        conflicts = applied.conflicts
        shown = "; ".join(f"{conflict.path}: {conflict.reason}" for conflict in conflicts[:20])
        count = len(applied.written) + len(applied.removed)
        super().__init__(
            f"{len(conflicts)} conflicts ({count or 'no'} other changes were applied): {shown}",
            code="apply_conflict",
            title="files changed on both sides",
            remediation="choose a side with ours=[…], theirs=[…] or force=True, or leave the files out with exclude=[…]",
        )
        self.conflicts: tuple[Conflict, ...] = tuple(conflicts)
        self.applied: Applied = applied
        """The changes that were applied; none with `all_or_nothing`."""


class ToolConfigRefused(SandkeepError):
    """Files would make tools on this machine run commands. Nothing was written."""

    def __init__(self, paths: Sequence[str]) -> None:
        more = f" and {len(paths) - 20} more" if len(paths) > 20 else ""
        super().__init__(
            f"nothing was written: these files make tools on this machine run commands: {', '.join(paths[:20])}{more}",
            code="tool_config_refused",
            title="files that run commands were refused",
            remediation="review them in the sandbox, then repeat with allow_tool_config=True",
        )
        self.paths: tuple[str, ...] = tuple(paths)


class ApplyFailed(SandkeepError):
    """The local directory could not be changed, or the daemon sent something invalid."""

    def __init__(self, detail: str, remediation: str = "") -> None:
        super().__init__(detail, code="apply_failed", remediation=remediation)


class DaemonNotStarted(SandkeepError):
    """A local daemon could not be started."""

    def __init__(self, detail: str, remediation: str) -> None:
        super().__init__(detail, code="daemon_not_started", remediation=remediation)


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflicting,
    429: LimitReached,
    507: NoSpace,
}


def refusal(problem: object, status: int, retry_after: str | None = None) -> ApiError | None:
    """The exception for a problem+json body; None if it is none."""
    if not isinstance(problem, dict):
        return None
    fields = cast("dict[str, Any]", problem)
    if not isinstance(fields.get("code"), str):
        return None
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else InvalidRequest)
    error = kind(
        str(fields.get("detail", "")),
        code=str(fields["code"]),
        title=str(fields.get("title", "")),
        remediation=str(fields.get("remediation", "")),
        retryable=fields.get("retryable") is True,
        status=status,
    )
    if retry_after is not None and retry_after.isdigit():
        error.retry_after_secs = float(retry_after)
    return error
