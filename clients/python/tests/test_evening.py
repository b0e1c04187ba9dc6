"""A first evening: the loop of an agent builder, word for word as it is told to newcomers.

The demo of the README runs in the tests of the program, as written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sandkeep import ExecResult

SNIPPET = """\
from sandkeep import Sandbox
with Sandbox.create(source="./app", network=["python"]) as sb:
    print(sb.run("pytest -q", on_stdout=print).exit_code)
    sb.turn("tests pass")
    best = max(sb.fork(3), key=lambda s: score(s.run("./try.sh")))
    print(best.diff().text()); best.apply("./app", exclude=["**/__pycache__/**"])
"""

TRY = """\
#!/bin/sh
mkdir -p __pycache__ && echo x > __pycache__/main.pyc
od -An -N3 -tu4 /dev/urandom | tee guess.txt
"""


@pytest.mark.usefixtures("daemon")
def test_the_evening_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "main.py").write_text("print('hello')\n")
    (app / "try.sh").write_text(TRY)
    (app / "try.sh").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    scores: list[int] = []

    def score(ran: ExecResult) -> int:
        assert ran.exit_code == 0, ran
        scores.append(int(ran.stdout))
        return scores[-1]

    exec(compile(SNIPPET, "evening", "exec"), {"score": score, "__name__": "__main__"})
    assert len(scores) == 3
    assert int((app / "guess.txt").read_text()) == max(scores), "the best one came home"
    assert sorted(path.name for path in app.iterdir()) == ["guess.txt", "main.py", "try.sh"]
    said = capsys.readouterr().out
    assert "guess.txt" in said and f"+{(app / 'guess.txt').read_text()}" in said


@pytest.mark.usefixtures("daemon")
def test_use_is_counted_also_after_the_sandbox_is_gone() -> None:
    from sandkeep import Client, Sandbox

    def used() -> float:
        with Client() as client:
            return sum(owner.cpu_secs for owner in client.usage())

    before = used()
    with Sandbox.create() as sandbox:
        assert sandbox.run("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done").exit_code == 0
    assert used() > before
