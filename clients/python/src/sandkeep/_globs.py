"""Patterns for paths, as in a `.gitignore` file.

`*` and `?` stay within a name and `**` crosses directories. A pattern without a slash, or with one only at its end, is for
names at every depth; any other begins at the top. A slash at the end is for directories. The last pattern that matches
decides, and `!` in front of it takes a path back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Pattern:
    regex: re.Pattern[str]
    takes_back: bool
    only_directories: bool


class IgnoreFile:
    """The lines of a `.gitignore` file. A line that is not a pattern means nothing."""

    def __init__(self, text: str) -> None:
        self._patterns: list[_Pattern] = []
        for line in text.removeprefix("\ufeff").split("\n"):
            line = line.removesuffix("\r")
            if line.startswith("#"):
                continue
            try:
                pattern = _compile(_without_trailing_spaces(line))
            except ValueError:
                continue
            if pattern is not None:
                self._patterns.append(pattern)

    def decides(self, path: str, is_directory: bool) -> bool | None:
        """Whether a path is ignored; None if no pattern names it. The directories that it is in are not considered."""
        return _decides(self._patterns, path, is_directory)


class Globs:
    """Patterns that a caller gives. Besides, `dir/**` names the directory itself, too, and `./x` begins at the top."""

    def __init__(self, patterns: Sequence[str]) -> None:
        given = [pattern[1:] if pattern.startswith("./") else pattern for pattern in patterns]
        compiled = [_compile(pattern, with_itself=True) for pattern in given]
        self._patterns = [pattern for pattern in compiled if pattern is not None]

    def match(self, path: str, is_directory: bool = False) -> bool:
        """Whether a relative path with `/` matches, or else the innermost of its directories that a pattern names."""
        while path and self._patterns:
            decided = _decides(self._patterns, path, is_directory)
            if decided is not None:
                return decided
            path, is_directory = path.rpartition("/")[0], True
        return False


def _decides(patterns: Sequence[_Pattern], path: str, is_directory: bool) -> bool | None:
    for pattern in reversed(patterns):
        if (is_directory or not pattern.only_directories) and pattern.regex.fullmatch(path):
            return not pattern.takes_back
    return None


def _without_trailing_spaces(line: str) -> str:
    stripped = line.rstrip(" ")
    slashes = len(stripped) - len(stripped.rstrip("\\"))
    # An escaped space stays.
    return stripped + " " if slashes % 2 and stripped != line else stripped


def _compile(pattern: str, *, with_itself: bool = False) -> _Pattern | None:
    """A pattern; None for an empty one. Raises ValueError if it cannot be read."""
    takes_back = pattern.startswith("!")
    glob = pattern[1:] if takes_back else pattern
    only_directories = glob.endswith("/")
    glob = glob.removesuffix("/")
    if not glob:
        return None
    if "/" not in glob:
        glob = f"**/{glob}"
    glob = glob.removeprefix("/")
    if with_itself:
        glob = glob.removesuffix("/**")
    try:
        regex = re.compile(_translate(glob), re.DOTALL)
    except (re.error, ValueError) as error:
        raise ValueError(f"{pattern!r} is not a pattern: {error}") from error
    return _Pattern(regex, takes_back, only_directories)


def _translate(glob: str) -> str:
    found = ""
    at = 0
    while at < len(glob):
        begins = at == 0 or glob[at - 1] == "/"
        if begins and glob.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif begins and glob[at:] == "**":
            found, at = found + ".+", at + 2
        elif glob[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif glob[at] == "?":
            found, at = found + "[^/]", at + 1
        elif glob[at] == "[":
            chosen, at = _character_class(glob, at)
            found += chosen
        elif glob[at] == "\\":
            if at + 1 == len(glob):
                raise ValueError("it ends with a backslash")
            found, at = found + re.escape(glob[at + 1]), at + 2
        else:
            found, at = found + re.escape(glob[at]), at + 1
    return found


def _character_class(glob: str, at: int) -> tuple[str, int]:
    """A class such as `[!a-z]` as a regular expression, and the position after it. It never matches a slash."""
    begin = at + 1
    negated = glob[begin : begin + 1] in ("!", "^")
    begin += negated
    chosen = ""
    at = begin
    while at < len(glob) and (glob[at] != "]" or at == begin):
        if glob[at] == "\\" and at + 1 < len(glob):
            at += 1
            chosen += re.escape(glob[at])
        else:
            chosen += "-" if glob[at] == "-" else re.escape(glob[at])
        at += 1
    if at >= len(glob):
        raise ValueError("a class is not closed")
    return f"(?!/)[{'^' if negated else ''}{chosen}]", at + 1
