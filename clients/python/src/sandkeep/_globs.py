"""Patterns for paths, as in `.gitignore` without negation.

`*` and `?` stay within a name and `**` crosses directories. A pattern without a slash is for names at every depth. What
matches a directory matches all that is in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class Globs:
    def __init__(self, patterns: Sequence[str]) -> None:
        self._compiled = [re.compile(_translate(pattern), re.DOTALL) for pattern in patterns]

    def match(self, path: str) -> bool:
        """Whether a relative path with `/` matches, or one of the directories that it is in."""
        if not self._compiled:
            return False
        ends = [at for at, char in enumerate(path) if char == "/"] + [len(path)]
        return any(pattern.fullmatch(path, 0, end) for end in ends for pattern in self._compiled)


def _translate(pattern: str) -> str:
    if "/" not in pattern.rstrip("/"):
        pattern = f"**/{pattern}"
    pattern = pattern.strip("/")
    pattern = pattern.removesuffix("/**")
    found = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            found, at = found + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            found, at = found + ".*", at + 2
        elif pattern[at] == "*":
            found, at = found + "[^/]*", at + 1
        elif pattern[at] == "?":
            found, at = found + "[^/]", at + 1
        elif pattern[at] == "[" and "]" in pattern[at + 2 :]:
            end = pattern.index("]", at + 2)
            chosen = pattern[at + 1 : end].replace("\\", "\\\\")
            chosen = "^" + chosen[1:] if chosen.startswith("!") else chosen
            found, at = found + f"[{chosen}]", end + 1
        else:
            found, at = found + re.escape(pattern[at]), at + 1
    return found
