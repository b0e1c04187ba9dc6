"""The difference between two points in time of a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ._data import Changes, DiffSide, FileChange


@dataclass(frozen=True)
class Diff:
    """Files that differ. Iterating gives the changes, sorted by path."""

    files: list[FileChange]
    from_: DiffSide
    to: DiffSide
    truncated: bool
    """Whether there are more changes than the limit."""
    frozen: bool
    """False if the sandbox was running and could not be frozen meanwhile."""

    @classmethod
    def of(cls, changes: Changes) -> Diff:
        return cls(changes.changes, changes.from_, changes.to, changes.truncated, changes.frozen)

    def __iter__(self) -> Iterator[FileChange]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def paths(self) -> list[str]:
        return [change.path for change in self.files]

    def text(self) -> str:
        """All changes as `diff -u` shows them. A change without text is one line that names it."""
        return "".join(_shown(change) for change in self.files)


def _shown(change: FileChange) -> str:
    if change.text:
        return change.text if change.text.endswith("\n") else change.text + "\n"
    moved = f" (from {change.from_path})" if change.from_path else ""
    omitted = f" ({change.text_omitted})" if change.text_omitted else ""
    return f"{change.kind}: {change.path}{moved}{omitted}\n"
