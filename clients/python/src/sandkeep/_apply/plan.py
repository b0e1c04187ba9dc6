"""The steps that bring the changes of a sandbox to a directory, and the conflicts.

Three states of every file are compared: before, in the sandbox now, and in the directory. Where the directory has the
state of before, the change is carried out; where it has the state of now, nothing is left to do; anything else is a
conflict, unless the caller has said which side wins. A path in conflict stays as it is in the directory, with everything
beneath it. A rename is carried out whole or not at all.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .. import _beneath as beneath
from .._data import Conflict, FileChange, FileFacts
from .._errors import ApplyFailed
from .select import Left, Selection, Winner

# Set-user-ID bits do not come home.
_MODE_MASK = 0o777

Facts = Mapping[bytes, FileFacts | None]
"""States of files by their paths in the local directory; None for a file that is not there."""


class Act(Enum):
    REMOVE = "remove"
    REMOVE_DIRECTORY = "remove_directory"
    MAKE_DIRECTORY = "make_directory"
    WRITE = "write"
    LINK = "link"
    MODE = "mode"


_REMOVALS = (Act.REMOVE, Act.REMOVE_DIRECTORY)
_ARRIVALS = (Act.MAKE_DIRECTORY, Act.WRITE, Act.LINK)


@dataclass(frozen=True)
class Step:
    path: bytes
    act: Act
    mode: int = 0
    digest: str = ""
    source: bytes = b""
    """The path in the sandbox, of a file to write."""
    target: bytes = b""
    """The target of a link."""


@dataclass(frozen=True)
class Change:
    """A difference between before and now, with the path as the local directory calls it."""

    path: bytes
    before: FileFacts | None
    after: FileFacts | None
    source: bytes = b""
    mode_only: bool = False
    moved_from: bytes | None = None
    """The old path of a renamed file, if it is beneath the directory, too."""
    is_new: bool = False
    """Whether the path did not exist before: a file was renamed to it, and `before` is that of its old path."""


@dataclass
class Plan:
    steps: list[Step] = field(default_factory=list[Step])
    """In the order in which they can be carried out."""
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    kept: list[bytes] = field(default_factory=list[bytes])
    ignored: int = 0
    """The number of changes that ignore files name."""
    settled: dict[bytes, FileFacts | None] = field(default_factory=dict[bytes, "FileFacts | None"])
    """The states of files that will be the same on both sides."""


def changes_of_diff(found: Sequence[FileChange], top: bytes) -> list[Change]:
    """The changes that a diff has beneath a directory. The directory itself is the caller's."""
    changes: list[Change] = []
    for change in found:
        source = beneath.clean(_raw(change.path, change.path_b64))
        path = beneath.within(source, top)
        moved_from = None
        if change.kind == "renamed":
            old = beneath.clean(_raw(change.from_path or "", change.from_path_b64))
            moved_from = beneath.within(old, top) or None
        if path == b"":
            _must_be_directory(source, change)
        elif path is None:
            if moved_from:
                changes.append(Change(moved_from, change.before, None))
        elif change.kind == "renamed":
            changes.append(Change(path, change.before, change.after, source, moved_from=moved_from, is_new=True))
        elif change.kind == "mode":
            if "mode" in change.differs:
                changes.append(Change(path, change.before, change.after, source, mode_only=True))
        else:
            changes.append(Change(path, change.before, change.after, source))
    return changes


def _must_be_directory(source: bytes, change: FileChange) -> None:
    facts = change.after or change.before
    if facts is not None and facts.type != "directory":
        shown = source.decode(errors="backslashreplace")
        raise ApplyFailed(
            f"/{shown} is not a directory in the sandbox", "give the directory that it is in, and include=[…] for the file"
        )


def plan(root: int, changes: Sequence[Change], selection: Selection, applied: Facts | None = None) -> Plan:
    """Looks at a local directory, and at nothing but the paths in the changes.

    `applied` are states of files that earlier applies left in the directory. They count as states of before.
    """
    planning = _Planning(root, selection, applied or {})
    for change in changes:
        if planning.leaves(change):
            continue
        if change.mode_only:
            planning.mode(change)
        elif change.is_new:
            planning.rename(change)
        else:
            planning.change(change)
    return planning.finish()


class _Planning:
    def __init__(self, root: int, selection: Selection, applied: Facts) -> None:
        self._root = root
        self._selection = selection
        self._applied = applied
        self._plan = Plan()
        # Directories that have to go, because something else takes their place.
        self._needed: set[bytes] = set()
        self._blocked: set[bytes] = set()
        """The paths in conflict."""
        self._renamed: list[tuple[bytes, bytes]] = []
        """From where to where files were renamed."""

    def leaves(self, change: Change) -> bool:
        """Whether the caller does not want a change. One half of a rename would lose the file."""
        now = change.after or change.before
        left = self._selection.leaves(change.path, now is not None and now.type == "directory")
        if left is None and change.moved_from is not None:
            was_directory = change.before is not None and change.before.type == "directory"
            left = self._selection.leaves(change.moved_from, was_directory)
        self._plan.ignored += left is Left.IGNORED
        return left is not None

    def rename(self, change: Change) -> None:
        conflicts = len(self._blocked)
        self.change(Change(change.path, None, change.after, change.source))
        if change.moved_from is None:
            return
        if len(self._blocked) == conflicts:
            self.change(Change(change.moved_from, change.before, None))
        self._renamed.append((change.moved_from, change.path))

    def change(self, change: Change) -> None:
        path, before, after = change.path, change.before, change.after
        here = beneath.look(self._root, path)
        if self._is_as(path, here, after):
            self._plan.settled[path] = after
            return
        if not self._is_as(path, here, before) and not self._was_applied(path, here):
            winner = self._selection.winner(path)
            if winner is Winner.OURS:
                return
            if winner is Winner.UNDECIDED:
                self._conflict_of(path, here, before)
                return
        step = None if after is None else self._arrival(change, after, here)
        if after is not None and step is None:
            return
        self._plan.settled[path] = after
        self._remove_first(here, path, step)
        if step is None:
            return
        self._plan.steps.append(step)
        if step.act is Act.MAKE_DIRECTORY and step.mode & 0o700 != 0o700:
            # Its contents could not be written if the caller may not write there.
            self._plan.steps[-1] = Step(path, Act.MAKE_DIRECTORY, step.mode | 0o700)
            self._plan.steps.append(Step(path, Act.MODE, step.mode))

    def mode(self, change: Change) -> None:
        after = change.after
        if after is None or after.type not in ("file", "directory"):
            return
        here = beneath.look(self._root, change.path)
        if here is None:
            self._conflict(change.path, "its mode was changed in the sandbox, and it is not here")
        elif beneath.kind_of(here.st_mode) != after.type:
            self._conflict(change.path, "its mode was changed in the sandbox, and it is something else here")
        elif here.st_mode & _MODE_MASK != _mode(after):
            self._plan.steps.append(Step(change.path, Act.MODE, _mode(after)))

    def finish(self) -> Plan:
        while True:
            self._keep_what_is_not_empty()
            self._make_parents()
            if not self._drop_what_conflicts():
                break
        steps = self._plan.steps
        # Removals first, from within; then arrivals, from without; modes when nothing more is written into a directory.
        removals = sorted((s for s in steps if s.act in _REMOVALS), key=lambda s: s.path, reverse=True)
        arrivals = sorted((s for s in steps if s.act in _ARRIVALS), key=lambda s: s.path)
        modes = sorted((s for s in steps if s.act is Act.MODE), key=lambda s: s.path, reverse=True)
        self._plan.steps = removals + arrivals + modes
        return self._plan

    def _drop_what_conflicts(self) -> bool:
        """Drops all steps at or beneath a path in conflict, and those at the other path of a rename.

        Answers whether there were any. A directory may not become empty without them.
        """

        def is_blocked(path: bytes) -> bool:
            while path:
                if path in self._blocked:
                    return True
                path = beneath.split(path)[0]
            return False

        halves = {half for ends in self._renamed if any(map(is_blocked, ends)) for half in ends}
        steps = [step for step in self._plan.steps if not is_blocked(step.path) and step.path not in halves]
        dropped = len(steps) < len(self._plan.steps)
        gone = {step.path for step in self._plan.steps} - {step.path for step in steps}
        self._plan.steps = steps
        self._plan.settled = {path: facts for path, facts in self._plan.settled.items() if path not in gone}
        return dropped

    def _arrival(self, change: Change, after: FileFacts, here: os.stat_result | None) -> Step | None:
        mode = _mode(after)
        if here is not None and stat.S_ISREG(here.st_mode) and change.before and _mode(change.before) == mode:
            mode = here.st_mode & _MODE_MASK
        if after.type == "directory":
            return Step(change.path, Act.MAKE_DIRECTORY, mode)
        if after.type == "file":
            if after.digest is None:
                raise ApplyFailed("the daemon sent an invalid diff: a digest is missing")
            return Step(change.path, Act.WRITE, mode, after.digest, change.source)
        if after.type == "symlink":
            return Step(change.path, Act.LINK, target=_target(after))
        # FIFOs, sockets and devices mean nothing outside of the sandbox.
        return None

    def _remove_first(self, here: os.stat_result | None, path: bytes, following: Step | None) -> None:
        """Removes a thing that makes way for one of another kind. A file is replaced at once."""
        if here is None:
            return
        is_directory = stat.S_ISDIR(here.st_mode)
        if not is_directory and following is not None and following.act in (Act.WRITE, Act.LINK):
            return
        if is_directory and following is not None:
            self._needed.add(path)
        self._plan.steps.append(Step(path, Act.REMOVE_DIRECTORY if is_directory else Act.REMOVE))

    def _keep_what_is_not_empty(self) -> None:
        """A directory goes only with all that is in it. If not, it stays, or nothing can take its place."""
        removed = {step.path for step in self._plan.steps if step.act in _REMOVALS}
        for path in sorted(removed, reverse=True):
            here = beneath.look(self._root, path)
            if here is None or not stat.S_ISDIR(here.st_mode):
                continue
            if all(path + b"/" + name in removed for name in beneath.names(self._root, path)):
                continue
            removed.discard(path)
            self._plan.steps = [step for step in self._plan.steps if step.path != path]
            if path in self._needed:
                self._conflict(path, "the sandbox has a file in its place, and there is more in it here")
            else:
                self._plan.kept.append(path)

    def _make_parents(self) -> None:
        """Makes the directories that lead to an arrival and that the local directory lacks."""
        gone = {step.path for step in self._plan.steps if step.act in _REMOVALS}
        made = {step.path for step in self._plan.steps if step.act is Act.MAKE_DIRECTORY}
        for arriving in [step.path for step in self._plan.steps if step.act in _ARRIVALS]:
            parent = beneath.split(arriving)[0]
            while parent and parent not in made:
                here = beneath.look(self._root, parent)
                if here is not None and stat.S_ISDIR(here.st_mode):
                    break
                if here is not None and parent not in gone:
                    self._conflict(parent, "the sandbox has a directory in its place")
                    break
                self._plan.steps.append(Step(parent, Act.MAKE_DIRECTORY, 0o755))
                made.add(parent)
                parent = beneath.split(parent)[0]

    def _is_as(self, path: bytes, here: os.stat_result | None, facts: FileFacts | None) -> bool:
        """Whether the thing here is as in the facts, as far as the directory cares."""
        if here is None or facts is None:
            return here is None and facts is None
        if beneath.kind_of(here.st_mode) != facts.type:
            return False
        if facts.type == "file":
            return here.st_size == facts.bytes and beneath.digest(self._root, path) == facts.digest
        if facts.type == "symlink":
            return beneath.link_target(self._root, path) == _target(facts)
        return True

    def _was_applied(self, path: bytes, here: os.stat_result | None) -> bool:
        return path in self._applied and self._is_as(path, here, self._applied[path])

    def _conflict_of(self, path: bytes, here: os.stat_result | None, before: FileFacts | None) -> None:
        if here is None:
            self._conflict(path, "it was removed here and changed in the sandbox")
        elif before is None:
            self._conflict(path, "it is new in the sandbox and something else here")
        else:
            self._conflict(path, "it was changed here and in the sandbox")

    def _conflict(self, path: bytes, reason: str) -> None:
        if path in self._blocked:
            return
        self._blocked.add(path)
        self._plan.conflicts.append(Conflict(path.decode(errors="backslashreplace"), reason))


def _mode(facts: FileFacts) -> int:
    return int(facts.mode, 8) & _MODE_MASK


def _raw(path: str, path_b64: str | None) -> bytes:
    return os.fsencode(path) if path_b64 is None else base64.b64decode(path_b64)


def _target(facts: FileFacts) -> bytes:
    if facts.target is None and facts.target_b64 is None:
        raise ApplyFailed("the daemon sent an invalid diff: the target of a link is missing")
    return _raw(facts.target or "", facts.target_b64)
