"""Whether a request is sent again, and when.

A request is repeated if that cannot carry it out twice: because it never left, because the daemon refused it before any
effect, or because repeating it has no further effect.
"""

from __future__ import annotations

import time
from enum import Enum

import httpx

from ._errors import ApiError, ConnectionFailed, ConnectionLost, SandkeepError

_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_REFUSED_BEFORE_ANY_EFFECT = {"rate_limited", "shutting_down", "auth_unavailable"}
_DELAY_SECS = 0.05
_DELAY_MAX_SECS = 2.0
_UNREACHABLE_SECS = 1.0


class Repeat(Enum):
    """Whether a request may be carried out twice."""

    NO = "no"
    YES = "yes"


class Attempts:
    """The attempts at one request. Each method returns how long to wait before the next one, or raises."""

    def __init__(self, url: str, repeat: Repeat, patience_secs: float, unreachable_secs: float = _UNREACHABLE_SECS) -> None:
        self._url = url
        self._repeat = repeat
        self._patience_secs = patience_secs
        self._unreachable_secs = unreachable_secs
        self.restart()

    def restart(self) -> None:
        """There was progress: the time for further attempts begins anew."""
        self._began = time.monotonic()
        self._count = 0
        self.lost = False
        """Whether an attempt may have been carried out although no answer arrived."""

    def after_transport_error(self, error: Exception) -> float:
        unsent = isinstance(error, _UNSENT)
        reason = str(error) or type(error).__name__
        failure = ConnectionFailed(self._url, reason) if unsent and not self.lost else ConnectionLost(self._url, reason)
        if not unsent:
            self.lost = True
            if self._repeat is Repeat.NO:
                raise failure from error
        patience = self._unreachable_secs if unsent else self._patience_secs
        return self._wait(None, patience, failure, error)

    def after_refusal(self, refusal: SandkeepError) -> float:
        if not isinstance(refusal, ApiError):
            raise refusal
        asked = refusal.retry_after_secs
        # A quota has no Retry-After: waiting would not help.
        passing = refusal.status == 503 or (refusal.status == 429 and asked is not None)
        repeatable = refusal.retryable and self._repeat is Repeat.YES and passing
        if refusal.code not in _REFUSED_BEFORE_ANY_EFFECT and not repeatable:
            raise refusal
        return self._wait(asked, self._patience_secs, refusal, None)

    def _wait(self, asked: float | None, patience: float, failure: Exception, cause: Exception | None) -> float:
        delay = min(_DELAY_SECS * 2**self._count, _DELAY_MAX_SECS) if asked is None else asked
        self._count += 1
        if time.monotonic() - self._began + delay > patience:
            raise failure from cause
        return delay
