"""The caller's side of a plan, and the plan: the daemon compares, and decides which steps there are.

The daemon is told how the local directory looks where the sandbox has changes. Its plan is checked: it may concern
nothing else.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .. import _beneath as beneath
from .._data import ApplyPlan, Conflict, FileChange, PlanAction, PlanPath
from .._errors import ApplyFailed
from .select import Left, Selection, Winner

State = tuple[str, str] | None
"""The type of a file, and its digest or target; None for a file that is not there."""
States = Mapping[bytes, State]
"""By paths in the local directory."""


class Act(Enum):
    REMOVE = "remove"
    REMOVE_DIRECTORY = "remove_directory"
    MAKE_DIRECTORY = "make_directory"
    WRITE = "write"
    LINK = "link"
    MODE = "mode"


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


@dataclass
class Plan:
    steps: list[Step] = field(default_factory=list[Step])
    """In the order in which they can be carried out."""
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    kept: list[bytes] = field(default_factory=list[bytes])
    settled: dict[bytes, State] = field(default_factory=dict[bytes, State])
    """The states of files that will be the same on both sides."""


class Looked:
    """The local directory, where the sandbox has changes, and where the steps for them depend on more."""

    def __init__(self, root: int, applied: States) -> None:
        self._root = root
        self._applied = applied
        self.files: list[dict[str, Any]] = []
        """As the daemon is told."""
        self.ignored = 0
        """The number of changes that ignore files name."""
        self._changed: dict[bytes, State] = {}
        self._context: set[bytes] = set()

    @classmethod
    def at(cls, root: int, changes: Sequence[FileChange], top: bytes, selection: Selection, applied: States) -> Looked:
        """Looks at what the caller wants changed. `applied` are states that earlier applies left."""
        looked = cls(root, applied)
        for change in changes:
            for path in looked._wanted(change, top, selection):
                looked._changed[path] = None
        for path in list(looked._changed):
            looked._look(path, selection.winner(path))
        return looked

    def plan(self, told: ApplyPlan) -> Plan:
        """The daemon's plan. Raises ApplyFailed if it concerns other files than those that it was told of."""
        plan = Plan(
            steps=[_step(action) for action in told.actions],
            conflicts=[Conflict(_shown(_path(found)), found.reason) for found in told.conflicts],
            kept=[_path(kept) for kept in told.kept],
        )
        for step in plan.steps:
            if step.path not in self._changed and not (step.path in self._context and step.act is Act.MAKE_DIRECTORY):
                raise ApplyFailed(f"the daemon's plan changes {_shown(step.path)}, which the sandbox did not change")
        for path in map(_path, told.same):
            plan.settled[path] = self._changed.get(path)
        for step in plan.steps:
            if step.act is not Act.MODE:
                plan.settled[step.path] = _after(step)
        return plan

    def _wanted(self, change: FileChange, top: bytes, selection: Selection) -> list[bytes]:
        """The paths of a change that is to be applied. One half of a rename would lose the file."""
        source = beneath.clean(_raw(change.path, change.path_b64))
        path = beneath.within(source, top)
        if path is None:
            return []
        now = change.after or change.before
        if not path:
            if now is not None and now.type != "directory":
                raise ApplyFailed(
                    f"/{_shown(source)} is not a directory in the sandbox",
                    "give the directory that it is in, and include=[…] for the file",
                )
            return []
        left = selection.leaves(path, now is not None and now.type == "directory")
        moved_from = None
        if change.from_path is not None:
            moved_from = beneath.within(beneath.clean(_raw(change.from_path, change.from_path_b64)), top) or None
        if left is None and moved_from is not None:
            left = selection.leaves(moved_from, change.before is not None and change.before.type == "directory")
        self.ignored += left is Left.IGNORED
        if left is not None:
            return []
        return [path] if moved_from is None else [path, moved_from]

    def _look(self, path: bytes, winner: Winner) -> None:
        here = beneath.look(self._root, path)
        file = _described(path, here)
        kind = file["type"]
        if here is not None:
            if kind == "file":
                file["bytes"], file["digest"] = here.st_size, beneath.digest(self._root, path)
            elif kind == "symlink":
                file["target"], file["target_b64"] = _spelled(beneath.link_target(self._root, path))
            elif kind == "directory":
                self._other_entry(path)
            content = file.get("digest") or file.get("target_b64") or file.get("target") or ""
            self._changed[path] = (kind, content)
        if path in self._applied and self._applied[path] == self._changed[path]:
            file["as_applied"] = True
        if winner is not Winner.UNDECIDED:
            file["on_conflict"] = winner.value
        self.files.append(file)
        parent = beneath.split(path)[0]
        while parent and parent not in self._changed and parent not in self._context:
            self._add_context(parent, _described(parent, beneath.look(self._root, parent)))
            parent = beneath.split(parent)[0]

    def _other_entry(self, path: bytes) -> None:
        """One entry of a directory that the sandbox has not changed is enough to keep the directory."""
        for name in beneath.names(self._root, path):
            entry = path + b"/" + name
            if entry not in self._changed:
                if entry not in self._context:
                    self._add_context(entry, _described(entry, beneath.look(self._root, entry)))
                return

    def _add_context(self, path: bytes, file: dict[str, Any]) -> None:
        self._context.add(path)
        self.files.append({**file, "context": True})


def _described(path: bytes, here: os.stat_result | None) -> dict[str, Any]:
    text, path_b64 = _spelled(path)
    if here is None:
        return {"path": text, "path_b64": path_b64, "type": "absent"}
    kind = beneath.kind_of(here.st_mode)
    kind = kind if kind in ("file", "directory", "symlink") else "other"
    return {"path": text, "path_b64": path_b64, "type": kind, "mode": f"{stat.S_IMODE(here.st_mode):04o}"}


def _step(action: PlanAction) -> Step:
    try:
        act = Act(action.action)
        return Step(
            beneath.clean(_raw(action.path, action.path_b64)),
            act,
            # Set-user-ID bits do not come home.
            mode=int(action.mode or "0", 8) & 0o777,
            digest=action.digest or "",
            source=beneath.clean(_raw(action.source or "", action.source_b64)) if act is Act.WRITE else b"",
            target=_raw(action.target or "", action.target_b64),
        )
    except ValueError as error:
        raise ApplyFailed(f"the daemon sent an invalid plan: {error}") from error


def _after(step: Step) -> State:
    if step.act is Act.WRITE:
        return ("file", step.digest)
    if step.act is Act.LINK:
        target, target_b64 = _spelled(step.target)
        return ("symlink", target_b64 or target)
    return ("directory", "") if step.act is Act.MAKE_DIRECTORY else None


def _path(named: PlanPath) -> bytes:
    return beneath.clean(_raw(named.path, named.path_b64))


def _shown(path: bytes) -> str:
    return path.decode(errors="backslashreplace")


def _spelled(path: bytes) -> tuple[str, str | None]:
    """As text, and as base64 if it is not UTF-8."""
    try:
        return path.decode(), None
    except UnicodeDecodeError:
        return path.decode(errors="replace"), base64.b64encode(path).decode()


def _raw(path: str, path_b64: str | None) -> bytes:
    return os.fsencode(path) if path_b64 is None else base64.b64decode(path_b64)
