"""The package as users get it: types, a wheel, and documents whose examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parent.parent
REPOSITORY = TOP.parent.parent
DOCUMENTS = [TOP / "README.md", REPOSITORY / "docs" / "guides" / "python.md"]


def test_the_types_are_strictly_correct() -> None:
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--project", str(TOP)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_a_wheel_is_built_and_works_in_a_clean_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=TOP, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("sandkeep-0.1.0-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read("sandkeep-0.1.0.dist-info/METADATA").decode()
    assert "sandkeep/py.typed" in names and not [name for name in names if "test" in name]
    assert re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE) == ["httpx<1,>=0.27"]
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    # Its dependencies are those of this environment, so that the test needs no network.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", wheel], check=True)
    import httpx

    paths = {**os.environ, "PYTHONPATH": str(Path(httpx.__file__).parent.parent)}
    script = "import sandkeep, sys; print(sandkeep.__version__, sandkeep.__file__.startswith(sys.prefix))"
    ran = subprocess.run([python, "-c", script], env=paths, capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == "0.1.0 True\n", ran.stderr
    search = {**paths, "PATH": f"{tmp_path / 'clean' / 'bin'}:{os.environ['PATH']}"}
    verify = [sys.executable, "-m", "pyright", "--verifytypes", "sandkeep", "--ignoreexternal"]
    verified = subprocess.run(verify, env=search, capture_output=True, text=True, cwd=tmp_path)
    assert "Type completeness score: 100%" in verified.stdout, verified.stdout + verified.stderr


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_examples_of_the_documents_run(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All `python` blocks in order, in one namespace, in a directory with a small project."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "main.py").write_text("print('hello')\n")
    (app / "test_main.py").write_text("import unittest\n\nclass Works(unittest.TestCase):\n    def test_it(self): pass\n")
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks, "the document has no examples"
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks:
        at = text[: text.index(block)].count("\n")
        exec(compile("\n" * at + block, str(document), "exec"), namespace)
