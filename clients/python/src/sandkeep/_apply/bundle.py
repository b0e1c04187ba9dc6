"""Changes of a sandbox, brought to a local directory.

First the directory is looked at where the sandbox has changes. Then an archive of the daemon has its plan and the files.
It is complete and in a local file before anything is written, and each file must have the digest of the plan.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from .. import _beneath as beneath
from .._data import Applied, ApplyPlan, Changes
from .._decode import decode
from .._errors import ApplyFailed, ToolConfigRefused
from .guard import Arrival, refuse
from .plan import Act, Looked, Plan, State, States, Step
from .select import Rules, Selection
from .staging import Staging

_PLAN = "sandkeep-plan.json"


@dataclass(frozen=True)
class Options:
    top: bytes
    """The directory in the sandbox, without the leading slash."""
    rules: Rules
    all_or_nothing: bool = False
    dry_run: bool = False
    allow_tool_config: bool = False
    applied: States = field(default_factory=dict[bytes, State])
    """The states of files that earlier applies left in the directory."""


@dataclass(frozen=True)
class Outcome:
    applied: Applied
    settled: States
    """The states of files that are the same on both sides now."""


class Begun:
    """A local directory that was looked at. Unless it is a dry run, nobody else applies to it until it is closed."""

    def __init__(self, local: str, changes: Changes, options: Options) -> None:
        if changes.truncated:
            raise ApplyFailed("the sandbox has more changes than one apply can take", "select less with path=…")
        self._local = local
        self._options = options
        selection = Selection(local, options.rules)
        self._root = _open_directory(local)
        self._staging: Staging | None = None
        try:
            self._staging = None if options.dry_run else Staging(self._root)
            self._looked = Looked.at(self._root, changes.changes, options.top, selection, options.applied)
        except BaseException:
            self.close()
            raise

    @property
    def files(self) -> Sequence[dict[str, Any]]:
        """As the daemon is told."""
        return self._looked.files

    def carry_out(self, file: IO[bytes]) -> Outcome:
        """Carries out the plan of an archive. If that fails, nothing is changed."""
        try:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as bundle:
                plan = self._guarded(self._looked.plan(_plan(bundle)))
                staging = self._staging
                if staging is None:
                    return Outcome(self._report(plan, undone=False), {})
                if plan.conflicts and self._options.all_or_nothing:
                    plan = Plan(conflicts=plan.conflicts)
                _stage(bundle, plan.steps, staging)
                if plan.steps:
                    staging.commit(plan.steps)
                return Outcome(self._report(plan, undone=staging.undone), plan.settled)
        except tarfile.TarError as error:
            raise ApplyFailed(f"the daemon sent an invalid archive: {error}") from error

    def close(self) -> None:
        if self._staging is not None:
            self._staging.close()
        os.close(self._root)

    def _guarded(self, plan: Plan) -> Plan:
        if not self._options.allow_tool_config:
            refused = refuse(os.fsencode(self._local), [(step.path, _arrival(step)) for step in plan.steps])
            if refused:
                raise ToolConfigRefused(refused)
        return plan

    def _report(self, plan: Plan, *, undone: bool) -> Applied:
        def shown(*acts: Act) -> list[str]:
            return [step.path.decode(errors="backslashreplace") for step in plan.steps if step.act in acts]

        return Applied(
            written=shown(Act.WRITE, Act.LINK, Act.MAKE_DIRECTORY, Act.MODE),
            removed=shown(Act.REMOVE, Act.REMOVE_DIRECTORY),
            kept=[path.decode(errors="backslashreplace") for path in plan.kept],
            conflicts=plan.conflicts,
            ignored=self._looked.ignored,
            undone=undone,
        )


def _open_directory(local: str) -> int:
    try:
        return os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ApplyFailed(f"{local}: {error.strerror}", "name an existing directory") from error


def _plan(bundle: tarfile.TarFile) -> ApplyPlan:
    first = bundle.next()
    content = None if first is None or first.name != _PLAN else bundle.extractfile(first)
    if content is None:
        raise ApplyFailed("the daemon sent an invalid archive: it does not begin with a plan")
    try:
        value: Any = json.load(content)
        return decode(ApplyPlan, value)
    except ValueError as error:
        raise ApplyFailed(f"the daemon sent an invalid plan: {error}") from error


def _arrival(step: Step) -> Arrival:
    if step.act in (Act.MAKE_DIRECTORY, Act.REMOVE_DIRECTORY):
        return Arrival.DIRECTORY
    return Arrival.LINK if step.act is Act.LINK else Arrival.FILE


def _stage(bundle: tarfile.TarFile, steps: Sequence[Step], staging: Staging) -> None:
    """Writes all new content beside the directory's own."""
    awaited = {step.source: number for number, step in enumerate(steps) if step.act is Act.WRITE}
    for number, step in enumerate(steps):
        if step.act is Act.LINK:
            staging.link(number, step.target)
    for info in bundle:
        source = beneath.clean(os.fsencode(info.name))
        number = awaited.pop(source, None)
        if number is None:
            continue
        content = bundle.extractfile(info) if info.isfile() else None
        if content is None or staging.write(number, content, steps[number].mode) != steps[number].digest:
            raise ApplyFailed(f"{info.name} arrived damaged", "try again")
    for source in awaited:
        raise ApplyFailed(f"{source!r} did not arrive", "try again")
