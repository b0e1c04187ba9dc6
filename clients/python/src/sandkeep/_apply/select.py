"""The choice of the changes that are applied, and of the side that wins where both have changed a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from .._globs import Globs, IgnoreFile

_IGNORE_FILE = ".gitignore"


@dataclass(frozen=True)
class Rules:
    """Patterns, as the caller of `apply` gave them."""

    exclude: Sequence[str] = ()
    include: Sequence[str] = ()
    ours: Sequence[str] = ()
    theirs: Sequence[str] = ()
    force: bool = False
    ignore: bool = True


class Left(Enum):
    """The reason for which a change is not applied."""

    OUT = "out"
    IGNORED = "ignored"


class Winner(Enum):
    OURS = "ours"
    THEIRS = "theirs"
    UNDECIDED = "undecided"


class Selection:
    """The rules for changes that arrive in a directory."""

    def __init__(self, local: str, rules: Rules) -> None:
        self._exclude = Globs(rules.exclude)
        self._include = Globs(rules.include) if rules.include else None
        self._ours = Globs(rules.ours)
        self._theirs = Globs(rules.theirs)
        self._force = rules.force
        self._ignored = _IgnoreFiles(local) if rules.ignore else None

    def leaves(self, path: bytes, is_directory: bool) -> Left | None:
        """The reason to leave out a change of this path; None if it is to be applied."""
        text = os.fsdecode(path)
        if self._include is not None and not self._include.match(text, is_directory):
            return Left.OUT
        if self._exclude.match(text, is_directory):
            return Left.OUT
        if self._ignored is not None and self._ignored.ignore(text, is_directory):
            return Left.IGNORED
        return None

    def winner(self, path: bytes) -> Winner:
        text = os.fsdecode(path)
        if self._ours.match(text):
            return Winner.OURS
        return Winner.THEIRS if self._force or self._theirs.match(text) else Winner.UNDECIDED


class _IgnoreFiles:
    """The `.gitignore` files of a directory, of those in it, and of those above it up to the top of its repository."""

    def __init__(self, local: str) -> None:
        self._directory = os.path.realpath(local)
        self._top = _top_of_repository(self._directory)
        self._read: dict[str, IgnoreFile] = {}

    def ignore(self, path: str, is_directory: bool) -> bool:
        """Whether a path is ignored, or a directory that it is in."""
        whole = os.path.join(self._directory, path)
        parts = os.path.relpath(whole, self._top).split("/")
        ends = range(1, len(parts) + 1)
        return any(self._names(parts[:end], is_directory or end < len(parts)) for end in ends)

    def _names(self, parts: Sequence[str], is_directory: bool) -> bool:
        """The innermost file that has a pattern for the path decides."""
        for at in reversed(range(len(parts))):
            directory = os.path.join(self._top, *parts[:at])
            decided = self._of(directory).decides("/".join(parts[at:]), is_directory)
            if decided is not None:
                return decided
        return False

    def _of(self, directory: str) -> IgnoreFile:
        if directory not in self._read:
            self._read[directory] = IgnoreFile(_text(os.path.join(directory, _IGNORE_FILE)))
        return self._read[directory]


def _top_of_repository(directory: str) -> str:
    above = directory
    while not os.path.exists(os.path.join(above, ".git")):
        parent = os.path.dirname(above)
        if parent == above:
            return directory
        above = parent
    return above


def _text(path: str) -> str:
    """The content of an ignore file; nothing if there is none that can be read."""
    if not os.path.isfile(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
            return file.read()
    except OSError:
        return ""
