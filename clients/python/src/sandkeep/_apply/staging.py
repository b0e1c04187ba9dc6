"""Changing a directory as a whole, even if this process or the machine dies half-way.

All new content is first written to `.sandkeep-apply` within the directory. Then the journal says how each step is undone,
and the steps are carried out by renames. A step that fails undoes those before it. If the process dies, the next apply
finds the journal and undoes them. The removal of the journal completes the work.

The files have the same names and the same journal as those of `sandkeep apply`, so that either undoes the other's.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from .. import _beneath as beneath
from .._archive import write_file
from .._errors import ApplyFailed
from .plan import Act, Step

PLACE = b".sandkeep-apply"
_JOURNAL = b"journal"
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Staging:
    """The place within a directory where a change of it is prepared."""

    def __init__(self, root: int) -> None:
        """Begins a change, and undoes one that was interrupted."""
        self._root = root
        with suppress(FileExistsError):
            os.mkdir(PLACE, 0o700, dir_fd=root)
        self._place = os.open(PLACE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            fcntl.flock(self._place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._place)
            raise ApplyFailed("another apply to this directory is in progress") from error
        notes = self._read_journal()
        self.undone = notes is not None
        if notes is not None:
            self._undo(notes)
            os.unlink(_JOURNAL, dir_fd=self._place)
        self._empty()

    def write(self, number: int, content: IO[bytes], mode: int) -> str:
        """The new content for a step; answers its digest."""
        return write_file(self._place, _new(number), content, mode)

    def link(self, number: int, target: bytes) -> None:
        os.symlink(target, _new(number), dir_fd=self._place)

    def commit(self, steps: Sequence[Step]) -> None:
        """Carries out all steps, or none."""
        notes = [self._note(step) for step in steps]
        os.sync()
        self._write_journal(notes)
        for number, step in enumerate(steps):
            try:
                self._take(number, step)
            except OSError as error:
                self._undo(notes)
                os.unlink(_JOURNAL, dir_fd=self._place)
                shown = step.path.decode(errors="backslashreplace")
                raise ApplyFailed(f"{shown} cannot be changed, so nothing was changed: {error.strerror}") from error
        os.unlink(_JOURNAL, dir_fd=self._place)
        os.sync()

    def close(self) -> None:
        """Removes the place. If an undo has failed, the journal is still there, and so the place stays."""
        if not self._has(_JOURNAL):
            self._empty()
            with suppress(OSError):
                os.rmdir(PLACE, dir_fd=self._root)
        os.close(self._place)

    def _empty(self) -> None:
        for name in os.listdir(self._place):
            beneath.remove_tree(self._place, os.fsencode(name))

    def _note(self, step: Step) -> dict[str, Any]:
        _refuse_own(step.path)
        undo: Any
        if step.act in (Act.REMOVE, Act.REMOVE_DIRECTORY):
            undo = "put_back"
        elif step.act is Act.MAKE_DIRECTORY:
            undo = "remove_directory"
        elif step.act is Act.MODE:
            here = beneath.look(self._root, step.path)
            # A step before this one makes it if it is not there, and undoing that removes it.
            undo = {"mode": 0o700 if here is None else stat.S_IMODE(here.st_mode)}
        else:
            undo = "restore"
        return {"path": list(step.path), "undo": undo}

    def _write_journal(self, notes: list[dict[str, Any]]) -> None:
        draft = b"journal.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(draft, flags, 0o600, dir_fd=self._place), "w") as file:
            json.dump(notes, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, _JOURNAL, src_dir_fd=self._place, dst_dir_fd=self._place)
        os.fsync(self._place)

    def _read_journal(self) -> list[dict[str, Any]] | None:
        try:
            file = os.open(_JOURNAL, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._place)
        except FileNotFoundError:
            return None
        with open(file) as journal:
            try:
                notes = json.load(journal)
                return [{"path": bytes(note["path"]), "undo": note["undo"]} for note in notes]
            except (ValueError, TypeError, KeyError) as error:
                place = PLACE.decode()
                raise ApplyFailed(
                    f"an earlier apply was interrupted, and its journal {place}/journal cannot be read",
                    f"put back the files in {place} by hand, then remove it",
                ) from error

    def _take(self, number: int, step: Step) -> None:
        parent, name = beneath.split(step.path)
        with beneath.directory(self._root, parent) as here:
            if step.act in (Act.REMOVE, Act.REMOVE_DIRECTORY):
                os.rename(name, _old(number), src_dir_fd=here, dst_dir_fd=self._place)
            elif step.act is Act.MAKE_DIRECTORY:
                os.mkdir(name, 0o700, dir_fd=here)
                with beneath.directory(here, name) as made:
                    os.fchmod(made, step.mode)
            elif step.act is Act.MODE:
                _set_mode(here, name, step.mode)
            else:
                # By a second name, so that there always is one file or the other.
                with suppress(FileNotFoundError):
                    os.link(name, _old(number), src_dir_fd=here, dst_dir_fd=self._place, follow_symlinks=False)
                os.rename(_new(number), name, src_dir_fd=self._place, dst_dir_fd=here)

    def _undo(self, notes: list[dict[str, Any]]) -> None:
        """Undoes the steps that were taken, the last first. It can be repeated."""
        for number, note in reversed(list(enumerate(notes))):
            path = beneath.clean(bytes(note["path"]))
            try:
                _refuse_own(path)
                self._undo_one(number, note["undo"], path)
            except OSError as error:
                shown = path.decode(errors="backslashreplace")
                raise ApplyFailed(
                    f"{shown} cannot be put back: {error.strerror}",
                    f"the next apply tries again; the file is in {PLACE.decode()}",
                ) from error

    def _undo_one(self, number: int, undo: Any, path: bytes) -> None:
        parent, name = beneath.split(path)
        try:
            with beneath.directory(self._root, parent) as here:
                self._undo_in(here, name, number, undo)
        except OSError as error:
            # Its directory was never made, or is undone already.
            if error.errno not in _NOT_THERE:
                raise

    def _undo_in(self, here: int, name: bytes, number: int, undo: Any) -> None:
        if undo in ("restore", "put_back") and self._has(_old(number)):
            os.rename(_old(number), name, src_dir_fd=self._place, dst_dir_fd=here)
            # A rename onto another name of the same file leaves both.
            with suppress(FileNotFoundError):
                os.unlink(_old(number), dir_fd=self._place)
        elif undo == "restore" and not self._has(_new(number)):
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=here)
        elif undo == "remove_directory":
            try:
                os.rmdir(name, dir_fd=here)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST):
                    raise
        elif isinstance(undo, dict):
            with suppress(FileNotFoundError):
                _set_mode(here, name, int(undo["mode"]))  # pyright: ignore[reportUnknownArgumentType]

    def _has(self, name: bytes) -> bool:
        try:
            os.stat(name, dir_fd=self._place, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True


def _refuse_own(path: bytes) -> None:
    """The place where a change is prepared is ours alone."""
    if path == PLACE or path.startswith(PLACE + b"/"):
        raise ApplyFailed(f"{PLACE.decode()} is a name of sandkeep's own")


def _set_mode(here: int, name: bytes, mode: int) -> None:
    """A link in its place is not followed."""
    if stat.S_ISLNK(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
        raise OSError(errno.ELOOP, "it is a symbolic link")
    os.chmod(name, mode, dir_fd=here)


def _new(number: int) -> bytes:
    return b"new-%d" % number


def _old(number: int) -> bytes:
    return b"old-%d" % number
