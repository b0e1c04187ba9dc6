"""A real daemon for all tests, a client of it, and a proxy that loses connections.

`SANDKEEP_BIN` names the binary. Without it, the tests that need a daemon skip and say so.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandkeep import Client, Sandbox

ANNOUNCED = re.compile(r"listens on (http://\S+)")
WAIT_SECS = 120


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SANDKEEP_")}


class Daemon:
    """A daemon with a data directory of its own. When it is finished, nothing of it may be left."""

    def __init__(self, binary: str, *arguments: str) -> None:
        self._binary = binary
        self._arguments = arguments
        self._place = tempfile.TemporaryDirectory(prefix="sandkeep-")
        self.data_dir = self._place.name
        self._listen = "127.0.0.1:0"
        self._said: list[str] = []
        self.start()

    def start(self) -> None:
        """Starts it, the second time on the same port."""
        self._process = subprocess.Popen(
            [self._binary, "serve", "--listen", self._listen, "--data-dir", self.data_dir, *self._arguments],
            env={**_environment(), "SANDKEEP_CONFIG": "/dev/null", "SANDKEEP_STORAGE_SIZE_MB": "512"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        found = None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if found := ANNOUNCED.search(line):
                break
        assert found is not None, "the daemon did not start:\n" + "".join(self._said)
        self.url = found.group(1)
        self._listen = self.url.removeprefix("http://")
        threading.Thread(target=self._said.extend, args=(self._process.stdout,), daemon=True).start()

    def kill(self) -> None:
        """Ends it as a power cut would."""
        self._process.kill()
        self._process.wait(WAIT_SECS)

    def finish(self) -> None:
        with Client(self.url) as client:
            for info in client.sandboxes():
                client.get(info.id).destroy()
        self._process.send_signal(signal.SIGTERM)
        status = self._process.wait(WAIT_SECS)
        leaks = subprocess.run(
            [self._binary, "doctor", "--leaks", "--data-dir", self.data_dir],
            env=_environment(),
            capture_output=True,
            text=True,
        )
        self._place.cleanup()
        assert status == 0, "".join(self._said)
        assert leaks.returncode == 0, leaks.stdout + leaks.stderr


class Proxy:
    """Forwards connections to a daemon, and cuts the answers after random numbers of bytes while `budgets` has some."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self._listener.getsockname()[1]
        self.budgets: list[int] = []
        self.cuts = 0
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, budgets: list[int]) -> None:
        """The next connections are cut after so many bytes each."""
        with self._lock:
            self.budgets = list(budgets)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                budget = self.budgets.pop(0) if self.budgets else None
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, budget), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, budget: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(16 * 1024):
                target.sendall(data if budget is None else data[:budget])
                if budget is not None:
                    budget -= len(data)
                    if budget <= 0:
                        self.cuts += 1
                        break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="session")
def binary() -> str:
    found = os.environ.get("SANDKEEP_BIN")
    if not found:
        pytest.skip("SANDKEEP_BIN does not name a sandkeep binary")
    if os.geteuid() != 0:
        pytest.skip("sandboxes of the default runtime need root here")
    return found


@pytest.fixture(scope="session")
def daemon(binary: str) -> Iterator[Daemon]:
    daemon = Daemon(binary)
    yield daemon
    daemon.finish()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests see no daemon but their own."""
    for name in ("SANDKEEP_URL", "SANDKEEP_API_KEY", "SANDKEEP_CA_FILE"):
        monkeypatch.delenv(name, raising=False)
    if "daemon" in request.fixturenames:
        monkeypatch.setenv("SANDKEEP_URL", request.getfixturevalue("daemon").url)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as client:
        yield client


@pytest.fixture
def sandbox(daemon: Daemon) -> Iterator[Sandbox]:
    with Sandbox.create() as sandbox:
        yield sandbox


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A small project."""
    top = tmp_path / "app"
    (top / "pkg").mkdir(parents=True)
    (top / "main.py").write_text("print('one')\n")
    (top / "pkg" / "part.py").write_text("x = 1\n")
    (top / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (top / "run.sh").chmod(0o755)
    (top / "link").symlink_to("main.py")
    return top


@pytest.fixture
def proxy(daemon: Daemon) -> Iterator[Proxy]:
    proxy = Proxy(daemon.url)
    yield proxy
    proxy.close()


@pytest.fixture
def chance() -> random.Random:
    return random.Random(4711)
