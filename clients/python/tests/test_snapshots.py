"""Workspaces, turns, forks, diffs, and bringing changes home."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon

from sandkeep import ApplyConflict, ApplyFailed, Client, InvalidRequest, NotFound, Racer, Sandbox, ToolConfigRefused


def tree(top: Path) -> dict[str, str]:
    """All files of a directory, with what they hold."""
    found: dict[str, str] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            found[name] = f"{path.stat().st_mode & 0o777:o} {path.read_text()}"
        else:
            found[name] = "/"
    return found


@pytest.mark.usefixtures("daemon")
def test_a_workspace_is_where_everything_begins(app: Path) -> None:
    (app / "data.big").write_text("left out")
    with Sandbox.create(source=app, source_exclude=["*.big"], env={"A": "b"}, labels={"l": "m"}) as sandbox:
        assert sandbox.workspace == "/home/user/app"
        assert sandbox.run("pwd; echo $A; ls").stdout == "/home/user/app\nb\nlink\nmain.py\npkg\nrun.sh\n"
        assert sandbox.files.read_text("main.py") == "print('one')\n"
        assert sandbox.run("pwd", cwd="pkg").stdout == "/home/user/app/pkg\n"
        assert sandbox.workdir == sandbox.workspace and [s.name for s in sandbox.snapshots()] == ["base"]
        sandbox.run("echo 2 > main.py; echo 2 > pkg/part.py", check=True)
        assert sandbox.diff(path="pkg").paths == ["/home/user/app/pkg/part.py"]
        assert sandbox.revert("pkg", snapshot="base") == ["/home/user/app/pkg/part.py"]
        assert sandbox.revert(["main.py"], snapshot="base") == ["/home/user/app/main.py"]
        with sandbox.shell() as shell:
            assert shell.run("pwd").stdout == "/home/user/app\n"
        info = sandbox.info()
        assert len(sandbox.diff()) == 0 and info.labels == {"l": "m"} and info.source is not None
    with Client() as client, pytest.raises(NotFound) as raised:
        client.request("DELETE", f"/api/v1/uploads/{info.source.upload}")
    assert raised.value.code == "upload_not_found", "the archive stays at the daemon"


@pytest.mark.usefixtures("daemon")
def test_a_race_keeps_the_files_of_the_best() -> None:
    with Sandbox.create() as sandbox, Client() as client:
        sandbox.files.write("n", "0")
        seen: list[Racer] = []
        done = sandbox.race(3, "echo $SANDKEEP_RACER > n", judge="cat n", on_update=seen.append)
        assert done.winner == 3 and done.best is not None and done.best.score == 3.0
        assert sandbox.files.read_text("n") == "3\n"
        assert {racer.racer for racer in seen} == {1, 2, 3} and seen[0].state == "running"
        assert done.before is not None and done.turn is not None and done.turn.turn == 2
        sandbox.rollback(done.before.name)
        assert sandbox.files.read_text("n") == "0"
        none = sandbox.race(commands=["false", "echo 1 > n"], judge="echo no number")
        assert none.winner is None and none.best is None and none.turn is None
        assert [racer.problem is not None for racer in none.racers] == [True, True]
        with pytest.raises(InvalidRequest):
            sandbox.race(judge="echo 1")
        forks = [info.forked_from for info in client.sandboxes() if info.forked_from is not None]
        assert sandbox.id not in [fork.sandbox for fork in forks]


@pytest.mark.usefixtures("daemon")
def test_a_diff_shows_the_lines_and_apply_brings_them_home(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo 'print(2)' > main.py; rm pkg/part.py; chmod 700 run.sh; mkdir n; echo n > n/n; ln -s n l2", check=True)
        diff = sandbox.diff()
        assert "+print(2)" in diff.text() and "-print('one')" in diff.text()
        assert "/home/user/app/n/n" in diff.paths and not diff.truncated
        before = tree(app)
        planned = sandbox.apply(app, dry_run=True)
        assert tree(app) == before
        done = sandbox.apply(app)
        assert done == planned and done.removed == ["pkg/part.py"] and "n/n" in done.written
        assert tree(app) == {
            "l2": "-> n", "link": "-> main.py", "main.py": "644 print(2)\n", "n": "/", "n/n": "644 n\n", "pkg": "/",
            "run.sh": "700 #!/bin/sh\necho ran\n",
        }  # fmt: skip
        assert sandbox.apply(app).written == []
        sandbox.run("echo again > main.py", check=True)
        assert sandbox.apply(app).written == ["main.py"], "an apply after an apply"


@pytest.mark.usefixtures("daemon")
def test_a_fork_brings_home_what_its_parent_changed_too(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo parent > p; mkdir __pycache__; echo x > __pycache__/c", check=True)
        assert sandbox.turn("before the fork").turn == 1
        one, two = sandbox.fork(2, labels={"fork": "yes"})
        one.run("echo one > f", check=True)
        two.run("echo two > f", check=True)
        assert one.diff().paths == ["/home/user/app/f"], "since the fork"
        origin = one.info().forked_from
        assert origin is not None and origin.sandbox == sandbox.id
        assert one.diff("turn-0001", path="p").paths == [], "a snapshot of the source, by name"
        assert one.apply(app / "pkg", path=".", include=["p"], dry_run=True).written == ["p"]
        assert one.apply(app, exclude=["**/__pycache__/**"]).written == ["f", "p"]
        with pytest.raises(ApplyConflict) as raised:
            two.apply(app)
        assert [conflict.path for conflict in raised.value.conflicts] == ["f"]
        assert tree(app)["f"] == "644 one\n"
        assert raised.value.applied.written == ["__pycache__", "__pycache__/c"]
        sandbox.delete_snapshot("base")
        with pytest.raises(ApplyFailed, match="does not exist any more"):
            two.apply(app)
        assert two.apply(app, from_="base", dry_run=True).conflicts == raised.value.applied.conflicts
        with Client() as client:
            known = client.get(two.id).apply(app, dry_run=True)
            assert [conflict.path for conflict in known.conflicts] == ["f"]
    with Client() as client:
        assert client.sandboxes(labels={"fork": "yes"}) == [], "forks end with their parent"


@pytest.mark.usefixtures("daemon")
def test_a_conflict_stays_as_it_is_and_all_else_is_applied(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo theirs > main.py; echo theirs > new; echo theirs > pkg/part.py; echo x > run.sh", check=True)
        (app / "main.py").write_text("mine")
        (app / "pkg" / "part.py").unlink()
        with pytest.raises(ApplyConflict) as raised:
            sandbox.apply(app)
        assert [conflict.path for conflict in raised.value.conflicts] == ["main.py", "pkg/part.py"]
        assert raised.value.applied.written == ["new", "run.sh"]
        found = tree(app)
        assert (found["main.py"], found["new"], "pkg/part.py" in found) == ("644 mine", "644 theirs\n", False)
        assert sandbox.apply(app, ours=["*.py"]).written == []
        assert sandbox.apply(app, ours=["main.py"], theirs=["pkg/"]).written == ["pkg/part.py"]
        assert tree(app)["main.py"] == "644 mine"
        assert sandbox.apply(app, force=True).written == ["main.py"] and tree(app)["main.py"] == "644 theirs\n"


@pytest.mark.usefixtures("daemon")
def test_a_rename_is_applied_whole_or_not_at_all(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("mv main.py moved.py; mv pkg/part.py pkg/other.py", check=True)
        (app / "moved.py").write_text("mine")
        (app / "pkg" / "part.py").write_text("mine")
        before = tree(app)
        with pytest.raises(ApplyConflict) as raised:
            sandbox.apply(app)
        assert {conflict.path for conflict in raised.value.conflicts} == {"moved.py", "pkg/part.py"}
        assert tree(app) == before
        assert sandbox.apply(app, exclude=["main.py", "part.py"]).written == [] and tree(app) == before
        done = sandbox.apply(app, theirs=["*"])
        assert (done.written, done.removed) == (["moved.py", "pkg/other.py"], ["pkg/part.py", "main.py"])


@pytest.mark.usefixtures("daemon")
def test_a_path_in_conflict_keeps_everything_beneath_it(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("mkdir -p d/e; echo x > d/e/f; echo x > d/g; echo x > new", check=True)
        (app / "d").write_text("mine")
        with pytest.raises(ApplyConflict) as raised:
            sandbox.apply(app)
        assert [conflict.path for conflict in raised.value.conflicts] == ["d"]
        assert raised.value.applied.written == ["new"] and tree(app)["d"] == "644 mine"


@pytest.mark.usefixtures("daemon")
def test_ignored_files_are_not_applied_unless_asked_for(app: Path) -> None:
    (app / ".gitignore").write_text("*.log\n/dist/\n!keep.log\n")
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("mkdir dist; echo x | tee dist/a b.log keep.log new >pkg/c.log", check=True)
        done = sandbox.apply(app, dry_run=True)
        assert (done.written, done.ignored) == (["keep.log", "new"], 4)
        assert sandbox.apply(app, include=["*.log"], exclude=["pkg"], ignore=False).written == ["b.log", "keep.log"]
        assert sandbox.apply(app).written == ["new"]


@pytest.mark.usefixtures("daemon")
def test_with_all_or_nothing_a_conflict_keeps_everything_as_it_is(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo theirs > main.py; echo theirs > new; echo theirs > pkg/part.py", check=True)
        (app / "main.py").write_text("mine")
        (app / "pkg" / "part.py").unlink()
        before = tree(app)
        with pytest.raises(ApplyConflict) as raised:
            sandbox.apply(app, all_or_nothing=True)
        assert [conflict.path for conflict in raised.value.conflicts] == ["main.py", "pkg/part.py"]
        assert tree(app) == before and raised.value.code == "apply_conflict"
        assert raised.value.applied.written == raised.value.applied.removed == []
        assert sandbox.apply(app, exclude=["main.py", "pkg"]).written == ["new"]


@pytest.mark.usefixtures("daemon")
def test_apply_refuses_files_that_run_commands(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("mkdir .vscode; echo x > .vscode/tasks.json; echo x > new", check=True)
        before = tree(app)
        with pytest.raises(ToolConfigRefused) as raised:
            sandbox.apply(app)
        assert raised.value.paths == (".vscode/tasks.json",) and tree(app) == before
        sandbox.apply(app, allow_tool_config=True)
        assert (app / ".vscode" / "tasks.json").exists()


@pytest.mark.usefixtures("daemon")
def test_a_directory_with_files_of_the_callers_own_stays(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        (app / "pkg" / "mine").write_text("mine")
        sandbox.run("rm -r pkg", check=True)
        assert sandbox.apply(app).kept == ["pkg"]
        assert sorted(os.listdir(app / "pkg")) == ["mine"]


CRASHING = """
import os, sys
from sandkeep import Client
from sandkeep._apply.staging import Staging
take, count = Staging._take, int(sys.argv[3])
def crash(self, number, step):
    if number == count:
        os._exit(9)
    take(self, number, step)
Staging._take = crash
Client().get(sys.argv[1]).apply(sys.argv[2], path="/home/user/app")
"""


def test_an_apply_that_was_killed_is_undone_by_the_next(daemon: Daemon, app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo two > main.py; rm -r pkg; mkdir n; echo n > n/n; chmod 700 run.sh", check=True)
        before = tree(app)
        steps = 6
        for at in range(steps):
            ran = subprocess.run([sys.executable, "-c", CRASHING, sandbox.id, str(app), str(at)], timeout=300)
            assert ran.returncode == 9, f"step {at}"
            (app / "in-the-way").write_text("x")
            sandbox.files.write("in-the-way", "y")
            with pytest.raises(ApplyConflict):
                sandbox.apply(app, all_or_nothing=True)
            (app / "in-the-way").unlink()
            sandbox.files.rm("in-the-way")
            assert tree(app) == before, f"step {at}"
        sandbox.apply(app)
        assert tree(app)["main.py"] == "644 two\n" and "pkg" not in tree(app)


def test_the_command_line_undoes_an_apply_of_this_client(daemon: Daemon, app: Path, binary: str) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo two > main.py; rm -r pkg; mkdir n; echo n > n/n", check=True)
        ran = subprocess.run([sys.executable, "-c", CRASHING, sandbox.id, str(app), "3"], timeout=300)
        assert ran.returncode == 9 and (app / ".sandkeep-apply" / "journal").exists()
        command = [binary, "apply", sandbox.id, "--to", str(app), "--path", "/home/user/app"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and "undone" in done.stderr, done.stderr
        assert tree(app)["main.py"] == "644 two\n" and "pkg" not in tree(app)


NAMES = ["a", "b", "c.log", "d", "d/a", "d/b", "d/e", "d/e/f", "g"]


def scramble(top: Path, chance: random.Random) -> None:
    """Changes some files of a directory, and what kind of file they are."""
    for name in chance.sample(NAMES, 4):
        path = top / name
        if not path.parent.is_dir() or path.parent.is_symlink():
            continue
        moved = top / f"moved-{chance.choice('123')}"
        if chance.random() < 0.3 and path.exists() and not moved.exists():
            path.rename(moved)
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        kind = chance.choice(["file", "file", "link", "directory", "gone"])
        if kind == "file":
            path.write_text(chance.choice("xyz") * 50 + name)
        elif kind == "link":
            path.symlink_to(chance.choice(NAMES))
        elif kind == "directory":
            path.mkdir()
            (path / "inner").write_text(chance.choice("xyz"))


@pytest.mark.parametrize("options", [{}, {"force": True}, {"theirs": ["d/"], "ours": ["a"]}, {"include": ["d/"]}], ids=str)
def test_apply_does_the_same_as_the_command_line(
    daemon: Daemon, tmp_path: Path, binary: str, chance: random.Random, options: dict[str, Any]
) -> None:
    flags = [f"--{name}{'' if value is True else '=' + value[0]}" for name, value in options.items()]
    conflicts = 0
    for at in range(12):
        place = tmp_path / str(at)
        app, mine, theirs = (place / name for name in ("app", "mine", "theirs"))
        (app / "d" / "e").mkdir(parents=True)
        for name in ("a", "b", "d/a", "d/b", "d/e/f"):
            (app / name).write_text(name * 50)
        (app / ".gitignore").write_text("*.log\n")
        with Sandbox.create(source=app) as sandbox:
            shutil.copytree(app, theirs, symlinks=True)
            scramble(theirs, chance)
            sandbox.run("find . -mindepth 1 -delete", check=True)
            sandbox.files.upload(theirs, ".")
            scramble(app, chance)
            shutil.copytree(app, mine, symlinks=True)
            command = [binary, "apply", sandbox.name, "--to", str(mine), *flags]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode in (0, 8), done.stderr
            told = {line[10:].partition(":")[0] for line in done.stdout.splitlines() if line.startswith("conflict  ")}
            try:
                found = sandbox.apply(app, **options).conflicts
            except ApplyConflict as error:
                found = error.conflicts
            assert {conflict.path for conflict in found} == told, f"round {at}"
            assert tree(app) == tree(mine), f"round {at}"
            conflicts += len(told)
    assert conflicts > 0 or options.get("force"), "nothing was in conflict"


@pytest.mark.usefixtures("daemon")
def test_two_applies_to_one_directory_do_not_mix(app: Path) -> None:
    with Sandbox.create(source=app) as sandbox:
        sandbox.run("echo two > main.py", check=True)
        (app / ".sandkeep-apply").mkdir()
        place = os.open(app / ".sandkeep-apply", os.O_RDONLY)
        fcntl.flock(place, fcntl.LOCK_EX)
        with pytest.raises(ApplyFailed, match="in progress"):
            sandbox.apply(app)
        os.close(place)
        assert sandbox.apply(app).written == ["main.py"]
        (app / ".sandkeep-apply").mkdir()
        (app / ".sandkeep-apply" / "journal").write_text(json.dumps({"not": "a journal"}))
        with pytest.raises(ApplyFailed, match="cannot be read"):
            sandbox.apply(app)


def test_snapshots_are_taken_listed_rolled_back_and_deleted(sandbox: Sandbox) -> None:
    sandbox.files.write("a", "1")
    assert sandbox.snapshot("first", note="the beginning").note == "the beginning"
    sandbox.files.write("a", "2")
    sandbox.files.write("b", "2")
    assert sandbox.revert(["a"], snapshot="first") == ["/home/user/a"]
    assert sandbox.files.read_text("a") == "1" and sandbox.files.exists("b")
    sandbox.rollback("first")
    assert not sandbox.files.exists("b")
    assert sandbox.diff("base", "first").paths == ["/home/user/a"]
    sandbox.delete_snapshot("first")
    assert sandbox.snapshots() == []
    assert {"created", "snapshot", "rolled_back"} <= {entry.event for entry in sandbox.log()}


def test_a_sandbox_is_paused_resumed_stopped_and_started(sandbox: Sandbox) -> None:
    assert sandbox.pause().state == "paused" and sandbox.resume().state == "running"
    sandbox.files.write("kept", "x")
    assert sandbox.stop().state == "stopped"
    assert sandbox.stats().cpu is None
    assert sandbox.start().state == "running" and sandbox.files.exists("kept")
    sandbox.run("true")
    stats = sandbox.stats()
    assert stats.memory is not None and stats.memory.used_bytes > 0 and stats.disk is not None
    assert sandbox.update(labels={"a": "b"}, timeout=3600).labels == {"a": "b"}
    sandbox.keepalive()
    assert sandbox.update(labels={"a": None}).labels == {}
