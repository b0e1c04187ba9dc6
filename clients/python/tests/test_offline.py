"""What needs no daemon: decoding, patterns, frames, the rules for repeating."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import httpx
import pytest

import sandkeep
from sandkeep._apply.guard import Arrival, refuse
from sandkeep._apply.select import Left, Rules, Selection
from sandkeep._decode import decode, timestamp
from sandkeep._errors import refusal
from sandkeep._globs import Globs
from sandkeep._lines import JsonLines, TextLines
from sandkeep._output import Capture, Progress
from sandkeep._retry import Attempts, Repeat
from sandkeep._websocket import BINARY, PING, TEXT, Frames, frame

TOP = Path(__file__).resolve().parent.parent


def test_the_sync_client_is_the_async_one() -> None:
    script = TOP / "scripts" / "make_sync.py"
    spec = importlib.util.spec_from_file_location("make_sync", script)
    assert spec is not None and spec.loader is not None
    make_sync = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_sync)
    stale = [path.name for path, text in make_sync.wanted().items() if path.read_text() != text]
    assert stale == [], "run scripts/make_sync.py"


def test_both_clients_have_the_same_methods() -> None:
    for name in sandkeep.__all__:
        if name.startswith("Async"):
            ours, other = getattr(sandkeep, name), getattr(sandkeep, name.removeprefix("Async"))
            words = {"aclose": "close", "__aenter__": "__enter__", "__aexit__": "__exit__"}
            methods = {words.get(method, method) for method in vars(ours)}
            assert methods - set(vars(other)) == set(), name


def test_a_line_ends_at_a_newline_and_nowhere_else() -> None:
    lines = JsonLines()
    text = '{"data":"a\u2028b\u0085c"}\n{"n":1}\n{"half"'.encode()
    found = [value for at in range(len(text)) for value in lines.feed(text[at : at + 1])]
    assert found == [{"data": "a\u2028b\u0085c"}, {"n": 1}]
    with pytest.raises(ValueError):
        JsonLines().feed(b"no json\n")


def test_a_callback_gets_lines_and_characters_that_were_cut_in_two() -> None:
    lines = TextLines()
    found = [line for byte in "h€llo\r\nworld".encode() for line in lines.feed(bytes([byte]))]
    assert found + lines.finish() == ["h€llo", "world"]


def test_output_that_arrives_twice_counts_once() -> None:
    progress = Progress("ex1")
    first = progress.take({"type": "stdout", "offset": 0, "data": "hello"})
    second = progress.take({"type": "stdout", "offset": 3, "data": "lo wor"})
    assert first is not None and second is not None
    assert (first.data, second.offset, second.data) == (b"hello", 5, b" wor")
    assert progress.take({"type": "stdout", "offset": 0, "data": "hello"}) is None
    progress.take({"type": "gap", "stream": "stdout", "from": 9, "to": 100})
    assert progress.query()["stdout_offset"] == 100 and progress.dropped


def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    capture = Capture(10)
    for byte in range(100):
        capture.add(bytes([byte]))
    assert capture.value() == bytes([0, 1, 2, 3, 4, 95, 96, 97, 98, 99])
    assert capture.omitted == 90


def test_times_with_nanoseconds_are_read() -> None:
    expected = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone.utc)
    assert timestamp("2026-01-02T03:04:05.678901234Z") == expected
    assert timestamp("2026-01-02T05:04:05.678901+02:00") == expected
    with pytest.raises(ValueError):
        timestamp("yesterday")


@dataclass
class Inner:
    n: int


@dataclass
class Outer:
    from_: Inner
    many: list[Inner]
    maybe: str | None = None


def test_unknown_fields_are_ignored_and_wrong_ones_refused() -> None:
    read = decode(Outer, {"from": {"n": 1, "new": 2}, "many": [{"n": 3}], "later": {}})
    assert read == Outer(Inner(1), [Inner(3)])
    for wrong in ({"from": {"n": "1"}, "many": []}, {"many": []}, [], None):
        with pytest.raises(ValueError):
            decode(Outer, wrong)


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*.pyc", ["a.pyc", "b/c/a.pyc"], ["a.py", "a.pyc.txt"]),
        ("**/__pycache__/**", ["__pycache__", "a/__pycache__/b.pyc"], ["pycache", "a/__pycache"]),
        ("node_modules", ["node_modules/x/y", "a/node_modules"], ["node_modules2"]),
        ("/build", ["build", "build/x"], ["a/build"]),
        ("src/*.c", ["src/a.c"], ["src/b/a.c", "a.c"]),
        ("src/**/t?.[ch]", ["src/t1.c", "src/a/b/t2.h"], ["src/t12.c", "src/t1.o"]),
        ("a.b", ["a.b"], ["aXb"]),
        ("./top", ["top", "top/x"], ["a/top"]),
        ("[!a-c]x", ["dx"], ["ax", "/x"]),
        (r"\!a\*", ["!a*"], ["!ab", "a*"]),
    ],
)
def test_patterns_choose_paths(pattern: str, matching: list[str], other: list[str]) -> None:
    globs = Globs([pattern])
    assert [path for path in matching if not globs.match(path)] == []
    assert [path for path in other if globs.match(path)] == []
    assert not Globs([]).match("a")


# The command line's tests try the same.
CASES = json.loads((Path(__file__).parent / "tool_config_cases.json").read_text(encoding="utf-8"))
REFUSED: list[str] = CASES["refused"]
TAKEN: list[str] = CASES["taken"]


def test_a_pattern_with_a_slash_at_its_end_is_for_directories() -> None:
    globs = Globs(["build/", "*.txt", "!keep.txt"])
    assert globs.match("build", True) and globs.match("a/build/x") and not globs.match("build")
    assert globs.match("a.txt") and not globs.match("a/keep.txt")
    for wrong in ("a[", "a\\", "[z-a]"):
        with pytest.raises(ValueError, match="is not a pattern"):
            Globs([wrong])


def test_ignore_files_count_from_the_top_of_the_repository(tmp_path: Path) -> None:
    app = tmp_path / "app"
    (app / "sub").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("# no\n*.log\n/app/dist\nnode_modules/\nall/**\n!all/one\n[\n\\#x \n")
    (app / "sub" / ".gitignore").write_bytes(b"!keep.log\r\n")
    selection = Selection(str(app), Rules())
    ignored = ["a.log", "sub/b.log", "dist", "dist/x", "sub/node_modules/a/b", "#x"]
    kept = ["sub/keep.log", "sub/dist/x", "main.py", "node_modules", "# no", "all/x"]
    assert [path for path in ignored if selection.leaves(path.encode(), False) is not Left.IGNORED] == []
    assert [path for path in kept if selection.leaves(path.encode(), False) is not None] == []
    assert Selection(str(app), Rules(ignore=False)).leaves(b"a.log", False) is None
    above = Selection(str(tmp_path), Rules())
    found = [above.leaves(path, False) for path in (b"all", b"all/x", b"all/one", b"all/d/x")]
    assert found == [None, Left.IGNORED, None, Left.IGNORED]


def test_ignore_files_mean_what_they_mean_to_git(tmp_path: Path, chance: random.Random) -> None:
    names = ["a", "b", "ab", "a.c", "d"]
    pieces = ["a", "b", "*", "?", "**", "[ab]", "[!a]", "a.*", "/", "/", "a*", "\\a"]
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    for name in names:
        for inner in names:
            (tmp_path / name / inner).mkdir(parents=True)
            (tmp_path / name / inner / "a").write_text("")
    paths = sorted(tmp_path.glob("[abd]*")) + sorted(tmp_path.glob("[abd]*/*")) + sorted(tmp_path.glob("[abd]*/*/a"))
    relative = [str(path.relative_to(tmp_path)) for path in paths]
    for _ in range(300):
        lines = ["!" * (chance.random() < 0.3) + "".join(chance.choices(pieces, k=chance.randint(1, 5))) for _ in range(3)]
        (tmp_path / ".gitignore").write_text("\n".join(lines))
        command = ["git", "-C", str(tmp_path), "check-ignore", "--stdin", "--no-index"]
        answer = subprocess.run(command, input="\n".join(relative), capture_output=True, text=True)
        assert answer.returncode in (0, 1), answer.stderr
        selection = Selection(str(tmp_path), Rules())
        found = [name for name, path in zip(relative, paths, strict=True) if selection.leaves(name.encode(), path.is_dir())]
        assert found == answer.stdout.split("\n")[:-1], lines


def _refused(top: Path, *arriving: tuple[str, Arrival]) -> list[str]:
    found = refuse(os.fsencode(top), [(path.encode(), arrival) for path, arrival in arriving])
    return [path for path, _ in arriving if path in found]


def test_files_that_run_commands_are_refused_at_every_depth_and_in_any_case(tmp_path: Path) -> None:
    for path in REFUSED:
        assert _refused(tmp_path, (path, Arrival.FILE)) == [path]
        assert _refused(tmp_path, (path, Arrival.LINK)) == [path]
    for path in TAKEN:
        assert _refused(tmp_path, (path, Arrival.FILE)) == []
    for path in (".git/refs/heads/main", ".git/objects", ".vscode", ".config"):
        assert _refused(tmp_path, (path, Arrival.LINK)) == [path]
    assert _refused(tmp_path, (".git/hooks", Arrival.DIRECTORY), ("src", Arrival.LINK)) == []


def test_a_repository_by_another_name_is_refused_too(tmp_path: Path) -> None:
    file = Arrival.FILE
    bare = (("x/HEAD", file), ("x/config", file), ("x/hooks/update", file), ("x/objects/p", file))
    assert _refused(tmp_path, *bare) == ["x/HEAD", "x/config", "x/hooks/update"]
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "HEAD").write_text("ref: refs/heads/main")
    assert _refused(tmp_path, ("y/config", file), ("z/config", file)) == ["y/config"]
    within = tmp_path / "r" / ".git"
    within.mkdir(parents=True)
    assert _refused(within, ("config", file), ("index", file)) == ["config"]


def test_frames_are_read_however_they_arrive() -> None:
    def unmasked(opcode: int, data: bytes, final: bool = True) -> bytes:
        first = (0x80 if final else 0) | opcode
        if len(data) < 126:
            return struct.pack("!BB", first, len(data)) + data
        return struct.pack("!BBH", first, 126, len(data)) + data

    sent = unmasked(BINARY, b"x" * 300) + unmasked(TEXT, b"he", False) + unmasked(PING, b"p") + unmasked(0, b"llo")
    frames = Frames()
    found = [message for byte in sent for message in frames.feed(bytes([byte]))]
    assert [(m.opcode, m.data) for m in found] == [(BINARY, b"x" * 300), (PING, b"p"), (TEXT, b"hello")]
    with pytest.raises(ValueError):
        Frames().feed(frame(TEXT, b"a client's frame"))


def test_a_request_is_repeated_only_if_that_cannot_carry_it_out_twice() -> None:
    unsent, lost = httpx.ConnectError("refused"), httpx.ReadError("reset")
    once, often = (Attempts("http://x", repeat, 30) for repeat in (Repeat.NO, Repeat.YES))
    assert once.after_transport_error(unsent) > 0
    assert often.after_transport_error(lost) > 0 and often.lost
    with pytest.raises(sandkeep.ConnectionLost):
        once.after_transport_error(lost)
    limited = refusal({"code": "rate_limited", "retryable": True}, 429, "7")
    busy = refusal({"code": "busy", "retryable": True}, 409)
    assert limited is not None and busy is not None
    assert Attempts("http://x", Repeat.NO, 30).after_refusal(limited) == 7
    starting = refusal({"code": "guest_unreachable", "retryable": True}, 503)
    quota = refusal({"code": "quota_exceeded", "retryable": True}, 429)
    assert starting is not None and quota is not None
    assert 0 < Attempts("http://x", Repeat.YES, 30).after_refusal(starting) < 1
    with pytest.raises(sandkeep.ServerError):
        Attempts("http://x", Repeat.NO, 30).after_refusal(starting)
    for patience, error in ((5, limited), (30, busy), (30, quota)):
        with pytest.raises(type(error)) as raised:
            Attempts("http://x", Repeat.YES, patience).after_refusal(error)
        assert raised.value is error


def test_nobody_answers_is_an_error_that_says_what_to_do() -> None:
    with sandkeep.Client("http://127.0.0.1:1") as client, pytest.raises(sandkeep.ConnectionFailed) as raised:
        client.version()
    assert raised.value.code == "connection_failed" and "sandkeep serve" in raised.value.remediation
    with pytest.raises(sandkeep.SandkeepError):
        sandkeep.Client("127.0.0.1:4500")


def test_a_key_is_never_shown() -> None:
    with sandkeep.Client("http://127.0.0.1:1", "sk_secret") as client:
        assert "secret" not in repr(client) + repr(vars(client)) + repr(vars(vars(client)["_http"]))
