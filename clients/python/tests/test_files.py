"""Files in a sandbox, and directories to it and from it."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from conftest import Proxy

from sandkeep import Client, ConnectionLost, NotFound, Sandbox, ToolConfigRefused


def test_files_are_written_read_listed_moved_and_removed(sandbox: Sandbox) -> None:
    files = sandbox.files
    info = files.write("deep/er/data.bin", bytes(range(256)), mode=0o600)
    assert (info.size, info.mode, info.kind) == (256, "0600", "file")
    assert files.read("deep/er/data.bin") == bytes(range(256))
    files.write("text", "h€llo")
    assert files.read_text("text") == "h€llo"
    assert [entry.path for entry in files.list("deep", depth=2)] == ["deep/er", "deep/er/data.bin"]
    files.mkdir("a/b", parents=True)
    files.move("text", "a/b/text")
    assert files.chmod("a/b/text", 0o640).mode == "0640"
    assert files.stat("a/b/text").size == 7
    assert files.exists("a/b/text") and not files.exists("text") and not files.exists("nothing/there")
    files.rm("a", recursive=True)
    with pytest.raises(NotFound) as raised:
        files.read("a/b/text")
    assert raised.value.code == "file_not_found" and raised.value.remediation


def test_a_name_that_is_no_text_is_a_path_too(sandbox: Sandbox) -> None:
    sandbox.files.write(b"\xff&=.txt", "odd")
    assert sandbox.files.read(b"\xff&=.txt") == b"odd"
    (entry,) = (entry for entry in sandbox.files.list() if entry.path_b64)
    assert entry.raw_path.endswith(b"\xff&=.txt")
    sandbox.files.rm(b"\xff&=.txt")
    sandbox.files.write("a?b#c %&=+.txt", "odd")
    assert sandbox.files.read_text("a?b#c %&=+.txt") == "odd"


def test_a_long_list_is_complete(sandbox: Sandbox) -> None:
    sandbox.run("mkdir many; cd many; seq 12000 | xargs touch", check=True)
    assert len(sandbox.files.list("many")) == 12_000


def test_a_directory_goes_there_and_back(sandbox: Sandbox, app: Path, tmp_path: Path) -> None:
    os.mkfifo(app / "pipe")
    (app / "a.pyc").write_text("")
    sandbox.files.upload(app, "there", exclude=["*.pyc"])
    assert sandbox.run("there/run.sh; cat there/link").stdout == "ran\nprint('one')\n"
    back = tmp_path / "back"
    sandbox.files.download("there", back, exclude=["pkg"])
    assert sorted(os.listdir(back)) == ["link", "main.py", "run.sh"]
    assert os.readlink(back / "link") == "main.py" and (back / "run.sh").stat().st_mode & 0o777 == 0o755
    sandbox.files.upload(app / "main.py", "one.py")
    sandbox.files.download("one.py", tmp_path / "two.py")
    assert (tmp_path / "two.py").read_text() == "print('one')\n"


def test_a_download_stays_beneath_its_directory(sandbox: Sandbox, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (target / "dir").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    sandbox.run("mkdir -p out/dir; echo x > out/file; chmod 4755 out/file; echo y > out/dir/z", check=True)
    with pytest.raises(OSError):
        sandbox.files.download("out", target)
    assert os.listdir(outside) == []
    (target / "dir").unlink()
    sandbox.files.download("out", target)
    assert os.listdir(outside) == [] and not (target / "file").is_symlink()
    assert (target / "file").stat().st_mode & 0o7777 == 0o755
    assert [name for name in os.listdir(target) if name.startswith(".sandkeep")] == []


def test_a_download_refuses_files_that_run_commands(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.run("mkdir -p out/.git; echo x > out/a; echo x > out/.git/config; echo x > .envrc", check=True)
    with pytest.raises(ToolConfigRefused) as raised:
        sandbox.files.download("out", tmp_path / "target")
    assert raised.value.paths == (".git/config",) and not (tmp_path / "target").exists()
    with pytest.raises(ToolConfigRefused):
        sandbox.files.download(".envrc", tmp_path)
    sandbox.files.download("out", tmp_path / "target", allow_tool_config=True)
    assert (tmp_path / "target" / ".git" / "config").exists()


def test_a_download_that_is_cut_off_writes_nothing(sandbox: Sandbox, proxy: Proxy, tmp_path: Path) -> None:
    sandbox.run("mkdir big; head -c 3000000 /dev/urandom > big/file", check=True)
    with Client(proxy.url) as far:
        there = far.get(sandbox.id)
    with Client(proxy.url) as far:
        there.files._http = far._http
        proxy.cut_after([1_000_000])
        with pytest.raises(ConnectionLost):
            there.files.download("big", tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_watch_sees_changes(sandbox: Sandbox) -> None:
    with closing(sandbox.files.watch(".")) as events:
        assert next(events).type == "watching"
        sandbox.files.write("new.txt", "x")
        seen = next(event for event in events if event.path is not None and event.path.endswith("new.txt"))
        assert seen.type in ("created", "modified")
