"""Keeps a local daemon for as long as its stdin is open: run by `_local.py`, as a program of its own.

It prints one line, `ready URL` or `failed REASON`. When the process that started it ends, however it ends, stdin is at its
end too. Then the daemon is stopped. A temporary data directory is removed with all its sandboxes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections import deque

_STOPS_WITHIN_SECS = 60
_ANNOUNCED = re.compile(r"listens on (https?://\S+)")


def main(binary: str, data_dir: str) -> int:
    signal.signal(signal.SIGTERM, _terminated)
    temporary = None if data_dir else tempfile.mkdtemp(prefix="sandkeep-")
    directory = data_dir or temporary or ""
    last: deque[str] = deque(maxlen=20)
    try:
        daemon = subprocess.Popen(
            [binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        _say(f"failed {error}")
        return _removed(temporary, 1)
    assert daemon.stdout is not None
    url = None
    for line in daemon.stdout:
        last.append(line.strip())
        if found := _ANNOUNCED.search(line):
            url = found.group(1)
            break
    if url is None:
        daemon.wait()
        _say("failed " + " / ".join(last))
        return _removed(temporary, 1)
    # Its output is read, so that it never waits for a full pipe.
    threading.Thread(target=deque, args=(daemon.stdout, 0), daemon=True).start()
    _say(f"ready {url}")
    try:
        sys.stdin.read()
    finally:
        if temporary:
            _destroy_sandboxes(url)
        _stop(daemon)
    return _removed(temporary, 0)


def _terminated(_number: int, _frame: object) -> None:
    sys.exit(143)


def _say(line: str) -> None:
    print(line, flush=True)


def _destroy_sandboxes(url: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        while True:
            with opener.open(f"{url}/api/v1/sandboxes?limit=1000", timeout=_STOPS_WITHIN_SECS) as answer:
                items = json.load(answer)["items"]
            if not items:
                return
            for item in items:
                request = urllib.request.Request(f"{url}/api/v1/sandboxes/{item['id']}", method="DELETE")
                opener.open(request, timeout=_STOPS_WITHIN_SECS).close()
    except (OSError, ValueError, KeyError):
        # The daemon may be gone. A sandbox that stays keeps the data directory.
        return


def _stop(daemon: subprocess.Popen[str]) -> None:
    daemon.terminate()
    try:
        daemon.wait(_STOPS_WITHIN_SECS)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _removed(temporary: str | None, code: int) -> int:
    """Removes a temporary data directory, unless something is still mounted in it."""
    if temporary and not _mounted(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
    return code


def _mounted(directory: str) -> bool:
    try:
        with open("/proc/self/mountinfo") as table:
            points = [line.split(" ")[4] for line in table]
    except OSError:
        return False
    return any(point.startswith(os.path.realpath(directory) + "/") for point in points)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
