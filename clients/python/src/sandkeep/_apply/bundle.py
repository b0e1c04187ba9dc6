"""A bundle from the daemon, brought to a local directory.

A bundle is a tar: first the list of changes with digests, then the new files. It is complete and in a local file before
anything is written, and each file must have the digest of the list.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from .. import _beneath as beneath
from .._data import Applied, Changes, FileFacts
from .._decode import decode
from .._errors import ApplyFailed, ToolConfigRefused
from .guard import Arrival, refuse
from .plan import Act, Facts, Plan, Step, changes_of_diff, plan
from .select import Rules, Selection
from .staging import Staging

_MANIFEST = "sandkeep-diff.json"


@dataclass(frozen=True)
class Options:
    top: bytes
    """The directory in the sandbox, without the leading slash."""
    rules: Rules
    all_or_nothing: bool = False
    dry_run: bool = False
    allow_tool_config: bool = False
    applied: Facts = field(default_factory=dict[bytes, "FileFacts | None"])
    """The states of files that earlier applies left in the directory."""


@dataclass(frozen=True)
class Outcome:
    applied: Applied
    settled: Facts
    """The states of files that are the same on both sides now."""


def apply(file: IO[bytes], local: str, options: Options) -> Outcome:
    """Applies a bundle to a directory. If that fails, nothing is changed."""
    selection = Selection(local, options.rules)
    root = _open_directory(local)
    try:
        with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as bundle:
            changes = changes_of_diff(_manifest(bundle).changes, options.top)

            def guarded() -> Plan:
                return _guarded(local, plan(root, changes, selection, options.applied), options)

            if options.dry_run:
                return Outcome(_report(guarded(), undone=False), {})
            staging = Staging(root)
            try:
                planned = guarded()
                if planned.conflicts and options.all_or_nothing:
                    planned = Plan(conflicts=planned.conflicts, ignored=planned.ignored)
                _stage(bundle, planned.steps, staging)
                if planned.steps:
                    staging.commit(planned.steps)
            finally:
                staging.close()
            return Outcome(_report(planned, undone=staging.undone), planned.settled)
    except tarfile.TarError as error:
        raise ApplyFailed(f"the daemon sent an invalid archive: {error}") from error
    finally:
        os.close(root)


def _open_directory(local: str) -> int:
    try:
        return os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise ApplyFailed(f"{local}: {error.strerror}", "name an existing directory") from error


def _manifest(bundle: tarfile.TarFile) -> Changes:
    first = bundle.next()
    content = None if first is None or first.name != _MANIFEST else bundle.extractfile(first)
    if content is None:
        raise ApplyFailed("the daemon sent an invalid archive: it does not begin with a list of changes")
    try:
        value: Any = json.load(content)
        changes = decode(Changes, value)
    except ValueError as error:
        raise ApplyFailed(f"the daemon sent an invalid list of changes: {error}") from error
    if changes.truncated:
        raise ApplyFailed("the sandbox has more changes than one apply can take", "select less with path=…")
    return changes


def _guarded(local: str, planned: Plan, options: Options) -> Plan:
    if not options.allow_tool_config:
        refused = refuse(os.fsencode(local), [(step.path, _arrival(step)) for step in planned.steps])
        if refused:
            raise ToolConfigRefused(refused)
    return planned


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


def _report(planned: Plan, *, undone: bool) -> Applied:
    def shown(*acts: Act) -> list[str]:
        return [step.path.decode(errors="backslashreplace") for step in planned.steps if step.act in acts]

    return Applied(
        written=shown(Act.WRITE, Act.LINK, Act.MAKE_DIRECTORY, Act.MODE),
        removed=shown(Act.REMOVE, Act.REMOVE_DIRECTORY),
        kept=[path.decode(errors="backslashreplace") for path in planned.kept],
        conflicts=planned.conflicts,
        ignored=planned.ignored,
        undone=undone,
    )
