"""Directories to tar archives and back.

Archives from a sandbox are not trusted: every entry stays beneath the target, no link is followed, no device is made,
and set-user-ID bits are dropped.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from tempfile import TemporaryFile
from typing import IO

from . import _beneath as beneath
from ._apply.guard import Arrival, refuse
from ._errors import ApplyFailed, ToolConfigRefused
from ._globs import Globs

MODE_MASK = 0o777
_CHUNK_BYTES = 256 * 1024


class ArchiveKind(Enum):
    """The path that an archive was made of."""

    DIRECTORY = "directory"
    FILE = "file"

    @classmethod
    def of(cls, header: str | None) -> ArchiveKind:
        return cls.FILE if header == "file" else cls.DIRECTORY


def pack(local: str | os.PathLike[str], exclude: Sequence[str]) -> IO[bytes]:
    """Packs the contents of a directory into an unnamed file. Links stay links; FIFOs, sockets and devices are left out."""
    globs = Globs(exclude)
    file = TemporaryFile(prefix="sandkeep-")
    try:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, name in _walk(os.fsencode(local), b"", globs):
                _pack_one(archive, path, name)
    except BaseException:
        file.close()
        raise
    return file


def _walk(top: bytes, inner: bytes, globs: Globs) -> Iterator[tuple[bytes, bytes]]:
    with os.scandir(os.path.join(top, inner) if inner else top) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        name = os.path.join(inner, entry.name)
        is_directory = entry.is_dir(follow_symlinks=False)
        if globs.match(os.fsdecode(name), is_directory):
            continue
        yield entry.path, name
        if is_directory:
            yield from _walk(top, name, globs)


def _pack_one(archive: tarfile.TarFile, path: bytes, name: bytes) -> None:
    status = os.lstat(path)
    kind = beneath.kind_of(status.st_mode)
    info = tarfile.TarInfo(os.fsdecode(name))
    info.mode = stat.S_IMODE(status.st_mode) & MODE_MASK
    info.mtime = status.st_mtime
    if kind == "directory":
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif kind == "symlink":
        info.type = tarfile.SYMTYPE
        info.linkname = os.fsdecode(os.readlink(path))
        archive.addfile(info)
    elif kind == "file":
        with open(path, "rb") as content:
            info.size = os.fstat(content.fileno()).st_size
            archive.addfile(info, content)


def unpack(
    archive: IO[bytes], kind: ArchiveKind, local: str, exclude: Sequence[str], allow_tool_config: bool
) -> None:
    """Unpacks an archive of a sandbox, or nothing of it."""
    globs = Globs(exclude)
    with tarfile.open(fileobj=archive, mode="r:", encoding="utf-8", errors="surrogateescape") as opened:
        members = [(info, clean_name(info)) for info in opened.getmembers()]
        if kind is ArchiveKind.FILE:
            _unpack_file(opened, members, local, allow_tool_config)
            return
        wanted = [(info, name) for info, name in members if name and not globs.match(os.fsdecode(name), info.isdir())]
        if not allow_tool_config:
            refused = refuse(os.fsencode(local), [(name, _arrival(info)) for info, name in wanted])
            if refused:
                raise ToolConfigRefused(refused)
        os.makedirs(local, exist_ok=True)
        root = os.open(local, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for info, name in wanted:
                _unpack_one(opened, info, name, root)
            for info, name in reversed(wanted):
                if info.isdir():
                    with beneath.directory(root, name) as here:
                        os.fchmod(here, info.mode & MODE_MASK)
        finally:
            os.close(root)


def clean_name(info: tarfile.TarInfo) -> bytes:
    """The path of an entry. One that leads out of the archive is refused."""
    raw = os.fsencode(info.name)
    if raw.startswith(b"/") or b".." in raw.split(b"/"):
        raise ApplyFailed(f"the archive has an invalid path: {info.name!r}")
    return beneath.clean(raw or b".")


def _arrival(info: tarfile.TarInfo) -> Arrival:
    if info.isdir():
        return Arrival.DIRECTORY
    return Arrival.LINK if info.issym() or info.islnk() else Arrival.FILE


def _unpack_file(
    opened: tarfile.TarFile, members: list[tuple[tarfile.TarInfo, bytes]], local: str, allow_tool_config: bool
) -> None:
    files = [(info, name) for info, name in members if info.isfile()]
    if len(files) != 1:
        raise ApplyFailed("the daemon sent an invalid archive of a file")
    info, name = files[0]
    target = os.path.join(local, os.fsdecode(beneath.split(name)[1])) if os.path.isdir(local) else local
    parent, base = os.path.split(os.path.abspath(target))
    if not allow_tool_config:
        refused = refuse(os.fsencode(parent), [(os.fsencode(base), Arrival.FILE)])
        if refused:
            raise ToolConfigRefused(refused)
    root = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _unpack_one(opened, info, os.fsencode(base), root)
    finally:
        os.close(root)


def _unpack_one(opened: tarfile.TarFile, info: tarfile.TarInfo, name: bytes, root: int) -> None:
    parent, base = beneath.split(name)
    with beneath.directory(root, parent) as here:
        if info.isdir():
            with suppress(FileExistsError):
                os.mkdir(base, 0o700, dir_fd=here)
        elif info.issym():
            _replace(here, base, lambda draft: os.symlink(os.fsencode(info.linkname), draft, dir_fd=here))
        elif info.islnk():
            source_parent, source = beneath.split(beneath.clean(os.fsencode(info.linkname)))
            with beneath.directory(root, source_parent) as there:
                _replace(here, base, partial(_link, source, there, here))
        elif info.isfile():
            content = opened.extractfile(info)
            if content is not None:
                _replace(here, base, lambda draft: write_file(here, draft, content, info.mode & MODE_MASK))


def _link(source: bytes, there: int, here: int, draft: bytes) -> None:
    os.link(source, draft, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def _replace(here: int, base: bytes, make: Callable[[bytes], object]) -> None:
    """Makes something beside its place and moves it there at once."""
    draft = b".sandkeep-" + os.urandom(8).hex().encode()
    try:
        make(draft)
        os.rename(draft, base, src_dir_fd=here, dst_dir_fd=here)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=here)
        raise


def write_file(here: int, name: bytes, content: IO[bytes], mode: int) -> str:
    """Writes a new file, and answers its digest."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    hasher = hashlib.sha256()
    with open(os.open(name, flags, 0o600, dir_fd=here), "wb") as file:
        while data := content.read(_CHUNK_BYTES):
            hasher.update(data)
            file.write(data)
        os.fchmod(file.fileno(), mode)
    return f"sha256:{hasher.hexdigest()}"
