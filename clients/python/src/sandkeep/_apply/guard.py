"""Files that make tools on this machine run commands: git, editors, shells, version managers.

They are refused by their names alone, at every depth and in any case, by the rules of `sandkeep apply` and `sandkeep cp`:
otherwise code from a sandbox would run outside of it at the next `git status` or `cd`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from enum import Enum
from importlib import resources
from typing import Any


class Arrival(Enum):
    """The kind of thing that arrives at a path."""

    DIRECTORY = "directory"
    LINK = "link"
    FILE = "file"


# The list is the command line's, too.
_NAMES: dict[str, list[Any]] = json.loads(
    resources.files("sandkeep._apply").joinpath("tool_config.json").read_text(encoding="utf-8")
)
_DIRECTORIES: frozenset[str] = frozenset(_NAMES["directories"])
_FILES: frozenset[str] = frozenset(_NAMES["files"])
_PAIRS: tuple[tuple[str, str], ...] = tuple((pair[0], pair[1]) for pair in _NAMES["pairs"])
_PAIR_DIRECTORIES = frozenset(directory for directory, _ in _PAIRS)
_GIT_DATA: frozenset[str] = frozenset(_NAMES["git_data"])
_GIT_DATA_DIRECTORIES: frozenset[str] = frozenset(_NAMES["git_data_directories"])
_GIT_CONTROL: frozenset[str] = frozenset(_NAMES["git_control"])
_GIT_STORES: frozenset[str] = frozenset(_NAMES["git_stores"])


def refuse(top: bytes, arriving: Sequence[tuple[bytes, Arrival]]) -> list[str]:
    """The paths beneath a directory that must not be written."""
    top = os.path.realpath(top)
    # The directory itself counts: it may be a repository's own.
    above = [_fold(part) for part in top.split(b"/")]
    new = {part for path, _ in arriving for part in _parts_of_git(path)}

    def has(directory: Sequence[bytes], name: bytes) -> bool:
        sibling = (*(_fold(part) for part in directory), _fold(name))
        return sibling in new or os.path.lexists(os.path.join(top, *directory, name))

    def is_refused(path: bytes, arrival: Arrival) -> bool:
        if arrival is Arrival.DIRECTORY:
            return False
        parts = path.split(b"/")
        whole = above + [_fold(part) for part in parts]
        if ".git" in whole:
            of_git = not _is_git_data(whole[whole.index(".git") + 1 :], arrival)
        else:
            of_git = _is_of_repository(parts, has)
        return of_git or _is_named(whole, arrival)

    return [path.decode(errors="backslashreplace") for path, arrival in arriving if is_refused(path, arrival)]


def _parts_of_git(path: bytes) -> list[tuple[str, ...]]:
    """The directories and files on a path that can make a directory a repository."""
    folded = [_fold(part) for part in path.split(b"/")]
    marks = _GIT_CONTROL | _GIT_STORES | {"head"}
    return [tuple(folded[: at + 1]) for at, part in enumerate(folded) if part in marks]


def _fold(part: bytes) -> str:
    """A name as filesystems see it that ignore case, or characters that do not show."""
    text = part.decode(errors="replace").upper().lower()
    plain = "".join(char for char in text if char.isascii())
    name = plain.rstrip(". ")
    return ".git" if name == "git~1" else name or plain


def _is_named(parts: Sequence[str], arrival: Arrival) -> bool:
    last = parts[-1]
    return (
        last in _FILES
        or last.endswith(".code-workspace")
        or _is_toml_of_mise(last)
        or any(_is_config_called(last, name) for name in ("lefthook", ".lefthook"))
        or (arrival is Arrival.LINK and last in _PAIR_DIRECTORIES)
        or any(part in _DIRECTORIES for part in parts)
        or any(_is_pair(one, two) for one, two in zip(parts, parts[1:], strict=False))
    )


def _is_pair(directory: str, name: str) -> bool:
    return any(
        directory == wanted and (name.startswith(like[:-1]) if like.endswith("*") else name == like)
        for wanted, like in _PAIRS
    )


def _is_toml_of_mise(name: str) -> bool:
    rest = name.removeprefix(".")
    return rest.startswith("mise.") and rest.endswith("toml")


def _is_config_called(file: str, name: str) -> bool:
    """Whether it is `name.EXT` or `name-local.EXT`."""
    return file.startswith(name) and file[len(name) :].removeprefix("-local").startswith(".")


def _is_git_data(rest: Sequence[str], arrival: Arrival) -> bool:
    """Whether a path beneath `.git` is a plain file that git only reads as data. Git would write through a link."""
    if arrival is Arrival.LINK or not rest:
        return False
    if list(rest) == ["info", "exclude"]:
        return True
    if len(rest) == 3 and list(rest[:2]) == ["objects", "info"]:
        return not rest[2].endswith("alternates")
    if len(rest) == 1:
        return rest[0] in _GIT_DATA
    return rest[0] in _GIT_DATA_DIRECTORIES


def _is_of_repository(parts: Sequence[bytes], has: Callable[[Sequence[bytes], bytes], bool]) -> bool:
    """Whether a path is of a repository that is not called `.git`: any directory with `HEAD`, `objects` and `refs`.

    They may arrive one at a time, so `HEAD` is refused beside any of the others.
    """
    *directory, last = parts
    marks = _GIT_CONTROL | _GIT_STORES
    completes = _fold(last) == "head" and any(has(directory, name.encode()) for name in marks)
    return completes or any(_fold(part) in _GIT_CONTROL and has(parts[:at], b"HEAD") for at, part in enumerate(parts))
