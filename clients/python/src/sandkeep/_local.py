"""A local daemon for programs that have none.

The daemon is the child of a small process (`_keeper.py`) that waits for the end of this one, however it ends, and then
stops the daemon and removes its temporary files.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from ._errors import DaemonNotStarted
from ._settings import URL_DEFAULT

_STOPS_WITHIN_SECS = 300
_running: dict[str | None, _Keeper] = {}
_lock = threading.Lock()


class _Keeper:
    """The process that keeps one daemon."""

    def __init__(self, binary: str, data_dir: str | None) -> None:
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).with_name("_keeper.py")), binary, data_dir or ""],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for this process; the keeper follows it.
            start_new_session=True,
        )
        assert self.process.stdout is not None
        first, _, rest = self.process.stdout.readline().partition(" ")
        if first != "ready":
            raise DaemonNotStarted(
                f"the local daemon did not start: {rest.strip() or 'it printed nothing'}",
                f"try `{binary} serve`, or check the machine with `{binary} doctor`",
            )
        self.url = rest.strip()

    def stop(self) -> None:
        if self.owner != os.getpid() or self.process.stdin is None:
            return
        self.process.stdin.close()
        self.process.wait(_STOPS_WITHIN_SECS)


def local_daemon(data_dir: str | os.PathLike[str] | None = None) -> str | None:
    """The URL of a local daemon, which is started if there is none; None for the one of the environment."""
    if os.environ.get("SANDKEEP_URL") or (data_dir is None and _answers(URL_DEFAULT)):
        return None
    directory = None if data_dir is None else os.path.realpath(data_dir)
    with _lock:
        keeper = _running.get(directory)
        if keeper is None or keeper.owner != os.getpid() or keeper.process.poll() is not None:
            keeper = _Keeper(_binary(), directory)
            _running[directory] = keeper
        return keeper.url


@atexit.register
def stop_local_daemons() -> None:
    """Stops the daemons that this process has started, and removes temporary data directories."""
    with _lock:
        for keeper in _running.values():
            keeper.stop()
        _running.clear()


def _binary() -> str:
    named = os.environ.get("SANDKEEP_BIN")
    found = named or shutil.which("sandkeep")
    if found is None:
        raise DaemonNotStarted("`sandkeep` is not on PATH", "install it, or set SANDKEEP_URL to a running daemon")
    return found


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
